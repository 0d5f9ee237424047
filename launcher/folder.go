package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// The daemon's configuration. Few workers, because one agent talks to it; no virtlogd, because what the guest's console says goes to the
// launcher's pipe. Security drivers, cgroups and namespaces are for privileged daemons; here the container is all that.
const (
	daemonConf = `auth_unix_rw = "none"
auth_unix_ro = "none"
min_workers = 1
max_workers = 4
prio_workers = 1
admin_min_workers = 1
admin_max_workers = 1
`
	qemuConf = `stdio_handler = "file"
remember_owner = 0
`
)

// capabilities is where the daemon keeps what it found out about QEMU.
const capabilities = "cache/libvirt/qemu/cache/capabilities"

// qemuDriver is the one driver of libvirt's that a Pod needs. The daemon loads whatever lies in its folder: the drivers of
// networks, storage, devices and so on cost memory and time, and do nothing here.
const qemuDriver = "libvirt_driver_qemu.so"

// driverDirs are where distributions keep the drivers.
func driverDirs() []string {
	return []string{"/usr/lib/*/libvirt/connection-driver", "/usr/lib64/libvirt/connection-driver", "/usr/lib/libvirt/connection-driver"}
}

// folder is the shared folder, which holds everything that the daemon writes.
type folder string

func (f folder) path(elements ...string) string {
	return filepath.Join(append([]string{string(f)}, elements...)...)
}

func (f folder) held() bool { return protocol.Held(string(f)) }

// guestPID reads the process id of a domain's QEMU, or 0.
func (f folder) guestPID(domain string) int {
	content, err := os.ReadFile(f.path("run", "libvirt", "qemu", "run", filepath.Base(domain)+".pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil || pid < 1 {
		return 0
	}
	return pid
}

// prepare makes what the daemon needs. What an earlier container of the same Pod left in run goes, as /run does when a host
// boots: it names processes by numbers that now belong to others. Definitions and what is known of QEMU stay.
func (f folder) prepare() error {
	if err := os.RemoveAll(f.path("run")); err != nil {
		return fmt.Errorf("clearing the runtime folder: %w", err)
	}
	for _, dir := range []string{"run", "config/libvirt", "cache", "data", "home", "tmp", "drivers"} {
		if err := os.MkdirAll(f.path(dir), 0o700); err != nil {
			return fmt.Errorf("making the folders of libvirt: %w", err)
		}
	}
	for name, content := range map[string]string{"libvirtd.conf": daemonConf, "qemu.conf": qemuConf} {
		if err := os.WriteFile(f.path("config", "libvirt", name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("configuring libvirt: %w", err)
		}
	}
	if err := f.linkDriver(); err != nil {
		return err
	}
	pipe := f.path(protocol.ConsolePipe)
	if err := os.Remove(pipe); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("making the console's pipe: %w", err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return fmt.Errorf("making the console's pipe %s: %w", pipe, err)
	}
	return nil
}

// linkDriver makes a folder with the driver for QEMU alone.
func (f folder) linkDriver() error {
	for _, pattern := range driverDirs() {
		found, err := filepath.Glob(filepath.Join(pattern, qemuDriver))
		if err != nil || len(found) == 0 {
			continue
		}
		link := f.path("drivers", qemuDriver)
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("choosing libvirt's drivers: %w", err)
		}
		if err := os.Symlink(found[0], link); err != nil {
			return fmt.Errorf("choosing libvirt's drivers: %w", err)
		}
		return nil
	}
	return fmt.Errorf("%s is in none of %s: the image lacks libvirt's driver for QEMU", qemuDriver, strings.Join(driverDirs(), ", "))
}

// environment is all that the daemon, and so QEMU, gets to see: nothing of the Pod's.
func (f folder) environment() []string {
	return []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + f.path("home"),
		"TMPDIR=" + f.path("tmp"),
		"XDG_RUNTIME_DIR=" + f.path("run"),
		"XDG_CONFIG_HOME=" + f.path("config"),
		"XDG_CACHE_HOME=" + f.path("cache"),
		"XDG_DATA_HOME=" + f.path("data"),
		"LIBVIRT_DRIVER_DIR=" + f.path("drivers"),
		"MALLOC_ARENA_MAX=1", // an arena per thread doubles the daemon's heap
	}
}
