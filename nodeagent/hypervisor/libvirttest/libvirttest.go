// Package libvirttest starts a libvirtd of its own for a test, and tiny guests for it. The daemon is privileged and behaves
// like the host's qemu:///system, but lives in a mount namespace with folders of its own: any number of them run at a
// time, they may be killed and restarted at will, and the host's libvirtd is neither used nor disturbed. What they do share
// with the host are network interfaces and the file system outside libvirt's folders. Its QEMU runs as root.
//
// It needs root, libvirtd, virsh, tini and QEMU, and fails the test when one is missing: `make setup` installs them.
package libvirttest

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds every wait of this package. It is generous: six test runs may share two cores.
const patience = 4 * time.Minute

//go:embed daemon.sh
var script []byte

const daemonConf = `unix_sock_dir = "%s"
auth_unix_rw = "none"
auth_unix_ro = "none"
`

// qemuConf lets QEMU run without the host's user, cgroups, security driver, device namespaces and virtlogd. As root it can
// read images in folders that only root sees, such as those of testing.T.TempDir.
const qemuConf = `user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
`

// Daemon is a private libvirtd. Its methods fail the test that it was started for.
type Daemon struct {
	// URI connects to it, also from virsh.
	URI string
	// Dir holds etc, lib, run, cache and log, which the daemon has in place of /etc/libvirt, /var/lib/libvirt,
	// /run/libvirt, /var/cache/libvirt and /var/log/libvirt.
	Dir string

	t        testing.TB
	commands io.WriteCloser // of daemon.sh
	ended    chan struct{}  // closed when daemon.sh has ended
	output   string         // file with what it said
}

// Start starts a libvirtd for the test and ends it, and its guests, with the test.
func Start(t testing.TB) *Daemon {
	t.Helper()
	require(t)
	dir, err := os.MkdirTemp("", "libvirttest") // not t.TempDir: the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatalf("make a folder for libvirtd: %v", err)
	}
	d := &Daemon{
		URI: "qemu+unix:///system?socket=" + filepath.Join(dir, "sock", "libvirt-sock"),
		Dir: dir, t: t, ended: make(chan struct{}), output: filepath.Join(dir, "daemon.out"),
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the folder of libvirtd: %v", err)
		}
	})
	for name, content := range map[string]string{
		"etc/libvirtd.conf": fmt.Sprintf(daemonConf, filepath.Join(dir, "sock")),
		"etc/qemu.conf":     qemuConf,
		"daemon.sh":         string(script),
		"sock/.keep":        "",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatalf("configure libvirtd: %v", err)
		}
	}
	warm := d.loadCapabilities()
	d.supervise()
	d.Start()
	if !warm {
		d.Virsh("domcapabilities") // probes QEMU
		d.saveCapabilities()
	}
	return d
}

// For is the daemon for another test, a part of the one that it was started for: what goes wrong fails that one, and at its end the daemon
// runs and has no domains.
func (d *Daemon) For(t testing.TB) *Daemon {
	part := *d
	part.t = t
	t.Cleanup(func() {
		if !part.listens() {
			part.Start()
		}
		var script strings.Builder
		for name := range strings.FieldsSeq(part.Virsh("list", "--all", "--name")) {
			fmt.Fprintf(&script, "destroy %s; undefine --nvram %s; ", name, name) // one of both has nothing to do, often
		}
		if script.Len() > 0 {
			_ = exec.Command("virsh", "-q", "-c", part.URI, script.String()).Run() // what is left, the next line tells
		}
		if left := strings.TrimSpace(part.Virsh("list", "--all", "--name")); left != "" {
			t.Errorf("domains that cannot be removed: %s", left)
		}
	})
	return &part
}

// require fails the test when something is missing.
func require(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("tests against a real libvirt need root: run them as root, or with sudo")
	}
	for _, program := range []string{"libvirtd", "virsh", "tini", "unshare", "qemu-system-x86_64"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%s is missing (%v): run `make setup`, which installs what the tests need", program, err)
		}
	}
}

// supervise starts daemon.sh.
func (d *Daemon) supervise() {
	d.t.Helper()
	output, err := os.Create(d.output)
	if err != nil {
		d.t.Fatalf("start libvirtd: %v", err)
	}
	defer output.Close() //nolint:errcheck // the child writes to its own copy
	cmd := exec.Command("unshare", "-m", "sh", filepath.Join(d.Dir, "daemon.sh"), d.Dir)
	cmd.Stdout, cmd.Stderr = output, output
	// A group of its own: an interrupt at the terminal is for the test, which then ends this through the pipe.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.commands, err = cmd.StdinPipe(); err != nil {
		d.t.Fatalf("start libvirtd: %v", err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatalf("start libvirtd: %v", err)
	}
	go func() {
		defer close(d.ended)
		_ = cmd.Wait() // its output tells more than its exit status
	}()
	d.t.Cleanup(func() {
		d.Signal(syscall.SIGCONT) // a stopped daemon would not go
		_ = d.commands.Close()    // the end of its input ends it; Wait closes the pipe too
		select {
		case <-d.ended:
		case <-time.After(patience):
			d.t.Errorf("libvirtd has not ended for %s%s", patience, d.said())
		}
	})
}

// Start starts the daemon again after Kill and waits until it accepts connections.
func (d *Daemon) Start() {
	d.t.Helper()
	if _, err := io.WriteString(d.commands, "start\n"); err != nil {
		d.t.Fatalf("start libvirtd: %v%s", err, d.said())
	}
	for deadline := time.Now().Add(patience); !d.listens(); time.Sleep(5 * time.Millisecond) {
		select {
		case <-d.ended:
			d.t.Fatalf("start libvirtd: it ended%s", d.said())
		default:
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("start libvirtd: its socket is not there after %s%s", patience, d.said())
		}
	}
}

// Kill kills the daemon with SIGKILL and waits until it is gone. Its guests go on.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.Signal(syscall.SIGKILL)
	for deadline := time.Now().Add(patience); d.listens(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("kill libvirtd: it still accepts connections after %s", patience)
		}
	}
}

// Signal sends a signal to the daemon. SIGSTOP makes one that accepts connections and never answers.
func (d *Daemon) Signal(signal syscall.Signal) {
	d.t.Helper()
	pid, err := readPID(filepath.Join(d.Dir, "libvirtd.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return // it never came up
	}
	if err == nil {
		err = syscall.Kill(pid, signal)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		d.t.Fatalf("send %s to libvirtd: %v", signal, err)
	}
}

// QEMU returns the process id of a running domain's QEMU.
func (d *Daemon) QEMU(domain string) int {
	d.t.Helper()
	pid, err := d.FindQEMU(domain)
	if err != nil {
		d.t.Fatalf("find QEMU of domain %q: %v", domain, err)
	}
	return pid
}

// FindQEMU returns the process id of a domain's QEMU, for a domain that may be going down or coming up.
func (d *Daemon) FindQEMU(domain string) (int, error) {
	return readPID(filepath.Join(d.Dir, "run", "qemu", domain+".pid"))
}

// Mend gets libvirtd over having been killed in the middle of starting one of the domains, as docs/operating.md tells: libvirt 9 that
// had not noted QEMU's process yet says for ever that the domain is being started.
func (d *Daemon) Mend(domains ...string) {
	d.t.Helper()
	for _, domain := range domains {
		path := filepath.Join(d.Dir, "run", "qemu", domain+".xml")
		state, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(state), "reason='starting up' pid='0'") {
			continue
		}
		d.t.Logf("libvirtd does not get over the start of %s that it was killed in", domain)
		d.Kill()
		if err := os.Remove(path); err != nil {
			d.t.Fatalf("mend domain %q: %v", domain, err)
		}
		d.Start()
	}
}

// CrashQEMU kills a domain's QEMU with SIGKILL.
func (d *Daemon) CrashQEMU(domain string) {
	d.t.Helper()
	if err := syscall.Kill(d.QEMU(domain), syscall.SIGKILL); err != nil {
		d.t.Fatalf("kill QEMU of domain %q: %v", domain, err)
	}
}

// Virsh runs virsh and returns what it prints.
func (d *Daemon) Virsh(arguments ...string) string {
	d.t.Helper()
	output, err := exec.Command("virsh", append([]string{"-q", "-c", d.URI}, arguments...)...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("virsh %s: %v\n%s", strings.Join(arguments, " "), err, output)
	}
	return string(output)
}

func (d *Daemon) listens() bool {
	conn, err := net.Dial("unix", filepath.Join(d.Dir, "sock", "libvirt-sock"))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

// said returns the last of what the daemon and its script wrote.
func (d *Daemon) said() string {
	var said strings.Builder
	for _, path := range []string{d.output, filepath.Join(d.Dir, "log", "libvirtd.log")} {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		const last = 2000
		fmt.Fprintf(&said, "\n%s: %s", filepath.Base(path), content[max(0, len(content)-last):])
	}
	return said.String()
}

func readPID(path string) (int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(content)))
}
