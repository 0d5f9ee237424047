package nodeagent_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// opens locks a disk as QEMU does, until closed is called.
func opens(t *testing.T, path string) (closed func()) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	closed = sync.OnceFunc(func() { _ = file.Close() })
	t.Cleanup(closed)
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 100, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	return closed
}

// TestPendingDiskIsReverted: a disk that the guest has open, and that the definition dropped meanwhile, is its own.
func TestPendingDiskIsReverted(t *testing.T) {
	r := newRig(t, nil)
	with := vm{name: "a", change: specOf(t, `{
		"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "data", "disk": {"bus": "virtio"}}]}},
		"volumes": [{"name": "data", "emptyDisk": {"capacity": "1Mi"}}]
	}`)}
	r.must(r.request(with, "on"))
	closed := opens(t, filepath.Join(r.dir, "state", "disks", "default", "a", "data.qcow2"))
	r.fake.Fail(fake.SetPower, func(context.Context, string) error { closed(); return nil })
	r.pending(vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}})
	r.must(r.request(with, ""))
	r.pending(vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}})
	r.must(r.request(with, "cycle"))
}

// TestHostDiskUnderAnotherName: the guest's own disk is not in use by another.
func TestHostDiskUnderAnotherName(t *testing.T) {
	r := newRig(t, nil)
	path := filepath.Join(r.dir, "disk.img")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	named := func(name string) vm {
		return vm{name: "a", change: specOf(t, `{
			"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "`+name+`", "disk": {"bus": "virtio"}}]}},
			"volumes": [{"name": "`+name+`", "hostDisk": {"path": "`+path+`", "type": "Disk"}}]
		}`)}
	}
	r.must(r.request(named("x"), "on"))
	opens(t, path)
	r.pending(named("y"))
}

// TestFirmwareOfARunningGuest: its UEFI variables are not removed by a definition, with volumes or without.
func TestFirmwareOfARunningGuest(t *testing.T) {
	r := newRig(t, map[string]string{"usr/share/OVMF/OVMF_CODE_4M.fd": "x", "usr/share/OVMF/OVMF_VARS_4M.fd": "x"})
	efi := func(host string) vm {
		return vm{name: "a", change: specOf(t, `{
			"hostname": "`+host+`", "domain": {"memory": {"guest": "64Mi"}, "devices": {}, "firmware": {"bootloader": {"efi": {"secureBoot": false}}}}
		}`)}
	}
	r.must(r.request(efi("x"), "on"))
	path := filepath.Join(r.dir, "state", "vms", "default", "a", "nvram.fd")
	if err := os.WriteFile(path, []byte("variables"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.must(r.request(efi("y"), ""))
	if _, err := os.Stat(path); err != nil {
		t.Error("the variables of a guest that runs:", err)
	}
}

// TestCredentialsOfADefinitionThatIsRefused are kept nowhere.
func TestCredentialsOfADefinitionThatIsRefused(t *testing.T) {
	r := newRig(t, nil)
	r.fake.Fail(fake.Define, func(context.Context, string) error { return errors.New("refused") })
	if err := r.execute(r.request(credentialed("a", "s3cret"), "on")); err == nil {
		t.Fatal("the definition was taken")
	}
	if _, err := os.Stat(r.credentialsFile("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the credentials of no VM: %v", err)
	}
}

// TestCredentialsAreSwept: a new agent removes those of VMs that are gone, and no others.
func TestCredentialsAreSwept(t *testing.T) {
	r := newRig(t, nil)
	r.must(r.request(credentialed("a", "s3cret"), ""))
	r.stop()
	if err := os.MkdirAll(filepath.Dir(r.credentialsFile("gone")), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.credentialsFile("gone"), r.credentialsFile("gone") + ".new"} {
		if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
	left := []string{"gone"}
	for deadline := time.Now().Add(4 * time.Minute); len(left) > 0 && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left, _ = filepath.Glob(r.credentialsFile("gone") + "*")
	}
	if len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if _, err := os.Stat(r.credentialsFile("a")); err != nil {
		t.Errorf("the credentials of a VM that is there: %v", err)
	}
}
