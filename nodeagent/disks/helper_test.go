package disks

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
)

func vm(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

func newStore(t testing.TB, opts Options) *Store {
	t.Helper()
	return newStoreIn(t, filepath.Join(t.TempDir(), "state"), opts)
}

func newStoreIn(t testing.TB, dir string, opts Options) *Store {
	t.Helper()
	store, err := NewStore(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// run executes a real program that `make setup` installs.
func run(t testing.TB, program string, arguments ...string) string {
	t.Helper()
	out, err := exec.Command(program, arguments...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s (make setup installs it): %v: %s", program, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// check has qemu-img look for damage.
func check(t testing.TB, path string) {
	t.Helper()
	run(t, "qemu-img", "check", "-q", "-f", "qcow2", path)
}

// put writes a pattern into a disk the way a guest does.
func put(t testing.TB, format, path, command string) {
	t.Helper()
	run(t, "qemu-io", "-f", format, "-c", command, path)
}

// hold starts a real QEMU that has the disk open, as the guest "holder", and returns what stops it.
func hold(t testing.TB, format, path string) (stop func()) {
	t.Helper()
	qemu := exec.Command("qemu-system-x86_64", "-name", "guest=holder,debug-threads=on", "-accel", "tcg", "-machine", "q35", "-m", "16M", "-S",
		"-display", "none", "-nodefaults", "-monitor", "stdio",
		"-blockdev", "driver="+format+",node-name=disk,file.driver=file,file.filename="+path,
		"-device", "virtio-blk-pci,drive=disk")
	input, err := qemu.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	qemu.Stdout, qemu.Stderr = &out, &out
	if err := qemu.Start(); err != nil {
		t.Fatalf("qemu-system-x86_64 (make setup installs it): %v", err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = input.Close()
		_ = qemu.Process.Kill()
		_ = qemu.Wait() // it was killed
	}
	t.Cleanup(stop)
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		// Asking takes no lock: one that did would now and then be in QEMU's way.
		if errors.Is(diskfile.CheckUnused(path), diskfile.ErrInUse) {
			return stop
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("QEMU did not take the disk: %s", out.String())
		}
	}
}

// tmpfs mounts a file system of a size.
func tmpfs(t testing.TB, size string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("mount (as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	return dir
}

// files returns the names of all files below dir, without directories.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
