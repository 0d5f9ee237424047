package disks

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// loopDevice makes a block device of a file.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device.img")
	write(t, path, make([]byte, size))
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Skipf("this machine has no loop devices: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", device).CombinedOutput(); err != nil {
			t.Errorf("losetup: %v: %s", err, out)
		}
	})
	return device
}

func TestDevice(t *testing.T) {
	store := newStore(t, Options{})
	device := loopDevice(t, 4*mib)
	got, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "raw", HostDisk{Path: device})
	if err != nil || got.Path != device || !got.Block || got.CapacityBytes != 4*mib || got.LogicalBlock != 512 || got.PhysicalBlock == 0 {
		t.Fatalf("EnsureHostDisk() = %+v, %v", got, err)
	}
	claim := data(4 * mib)
	claim.Path, claim.Block = device, true
	if got, err := store.EnsureClaim(t.Context(), claim); err != nil || !got.Block || got.CapacityBytes != 4*mib {
		t.Errorf("EnsureClaim() = %+v, %v", got, err)
	}
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 1 || disks[0].Missing || disks[0].CapacityBytes != 4*mib {
		t.Errorf("List() = %+v, %v", disks, err)
	}
	if deleted, err := store.Delete(t.Context(), disks[0].ID); err != nil || deleted[0].Kept == "" {
		t.Errorf("Delete() = %+v, %v; a device is only forgotten", deleted, err)
	}
	run(t, "mke2fs", "-q", device)
	mount := t.TempDir()
	run(t, "mount", device, mount)
	defer run(t, "umount", mount)
	for _, test := range []struct {
		reason           string
		shared, readOnly bool
		want             error
	}{
		{"alone", false, false, ErrInUse},
		{"with other guests", true, false, ErrInUse},
		{"only to read", false, true, nil},
		{"only to read what others write", true, true, nil},
	} {
		_, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "raw", HostDisk{Path: device, Shared: test.shared, ReadOnly: test.readOnly})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: EnsureHostDisk() of a mounted device = %v, want %v", test.reason, err, test.want)
		}
		claim.Shared, claim.ReadOnly = test.shared, test.readOnly
		if _, err := store.EnsureClaim(t.Context(), claim); !errors.Is(err, test.want) {
			t.Errorf("%s: EnsureClaim() of a mounted device = %v, want %v", test.reason, err, test.want)
		}
	}
}

func TestWhatIsNoDevice(t *testing.T) {
	tests := []struct {
		reason, path string
		roots        []string
		want         error
	}{
		{"a character device", "/dev/null", nil, ErrForbidden},
		{"a directory", "/dev/shm", nil, ErrForbidden},
		{"nothing", "/dev/gitvirt-none", nil, ErrMissing},
		{"outside the roots", "/dev/null", []string{"/srv"}, ErrForbidden},
		{"a link out of /dev", "/dev/gitvirt-test-link", nil, ErrForbidden},
	}
	elsewhere := filepath.Join(t.TempDir(), "device")
	if err := errors.Join(unix.Mknod(elsewhere, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))), os.Symlink(elsewhere, "/dev/gitvirt-test-link")); err != nil {
		t.Skip("cannot make devices:", err)
	}
	t.Cleanup(func() { _ = os.Remove("/dev/gitvirt-test-link") })
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, Options{HostDiskRoots: test.roots})
			if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "raw", HostDisk{Path: test.path}); !errors.Is(err, test.want) {
				t.Errorf("EnsureHostDisk(%s) = %v, want %v", test.path, err, test.want)
			}
			claim := data(mib)
			claim.Path, claim.Block = test.path, true
			if _, err := store.EnsureClaim(t.Context(), claim); !errors.Is(err, test.want) {
				t.Errorf("EnsureClaim(%s) = %v, want %v", test.path, err, test.want)
			}
		})
	}
}
