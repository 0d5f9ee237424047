package disks

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func TestHostDiskIsMade(t *testing.T) {
	store := newStore(t, Options{})
	path := filepath.Join(t.TempDir(), "new", "disk.img")
	want := Ensured{Path: path, Format: diskfile.Raw, CapacityBytes: 64 * mib, Created: true}
	for range 2 {
		got, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", HostDisk{Path: path, Create: true, Capacity: 64 * mib})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Fatal(diff, err)
		}
		want.Created = false
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() != 64*mib || info.Mode() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	if blocks := run(t, "stat", "-c", "%b", path); blocks != "0\n" {
		t.Errorf("a sparse disk takes %s blocks", blocks)
	}
}

// TestHostDiskFormatIsRemembered is the attack that the record exists for.
func TestHostDiskFormatIsRemembered(t *testing.T) {
	store := newStore(t, Options{})
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	write(t, secret, []byte("the host's secret"))
	evil := filepath.Join(dir, "evil.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", secret, "-F", "raw", evil, "1M")
	header, err := os.ReadFile(evil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "disk.img")
	disk := HostDisk{Path: path, Create: true, Capacity: mib}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0) // the guest writes into its raw disk
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteAt(header, 0); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	for _, who := range []struct{ reason, vm string }{{"the same machine", "web-1"}, {"another machine that names the file", "web-2"}} {
		got, err := store.EnsureHostDisk(t.Context(), vm(who.vm), "data", disk)
		if err != nil || got.Format != diskfile.Raw {
			t.Errorf("%s: %+v, %v; want raw for good", who.reason, got, err)
		}
	}
	fresh := newStore(t, Options{})
	if _, err := fresh.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); !errors.Is(err, ErrForeignData) {
		t.Errorf("without any record: %v, want ErrForeignData", err)
	}
}

func TestHostDisk(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "secret.img"), make([]byte, mib))
	tests := []struct {
		reason  string
		prepare func(t *testing.T, root string)
		path    string // below root unless absolute
		create  bool
		want    error
		text    string
		format  diskfile.Format
	}{
		{"a raw disk that is there", func(t *testing.T, root string) { write(t, root+"/a.img", make([]byte, mib)) }, "a.img", false, nil, "", diskfile.Raw},
		{"a qcow2 disk that is there", func(t *testing.T, root string) {
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", root+"/a.img", "1M")
		}, "a.img", false, nil, "", diskfile.QCOW2},
		{"a disk that is to be made", nil, "a/b/c.img", true, nil, "", diskfile.Raw},
		{"an empty file that a killed process left", func(t *testing.T, root string) { write(t, root+"/a.img", nil) }, "a.img", true, nil, "", diskfile.Raw},
		{"an empty file that is to be there", func(t *testing.T, root string) { write(t, root+"/a.img", nil) }, "a.img", false, nil, "empty", ""},
		{"a disk that is not there", nil, "a.img", false, ErrMissing, "qemu-img create -f raw", ""},
		{"a directory that is not there", nil, "a/b/c.img", false, ErrMissing, "does not exist", ""},
		{"a link inside the root", func(t *testing.T, root string) {
			write(t, root+"/real/a.img", make([]byte, mib))
			symlink(t, "real", root+"/link")
		}, "link/a.img", false, nil, "", diskfile.Raw},
		{"a link to a directory outside", func(t *testing.T, root string) { symlink(t, outside, root+"/link") }, "link/secret.img", false, ErrForbidden, "escapes", ""},
		{"a link to a directory outside, to create in", func(t *testing.T, root string) { symlink(t, outside, root+"/link") }, "link/new.img", true, ErrForbidden, "escapes", ""},
		{"a link upwards", func(t *testing.T, root string) { symlink(t, "../..", root+"/link") }, "link/x/secret.img", false, ErrForbidden, "escapes", ""},
		{"the disk is a link", func(t *testing.T, root string) { symlink(t, outside+"/secret.img", root+"/a.img") }, "a.img", false, ErrForbidden, "symbolic link", ""},
		{"the disk is a dangling link, to be made", func(t *testing.T, root string) { symlink(t, outside+"/new.img", root+"/a.img") }, "a.img", true, ErrForbidden, "symbolic link", ""},
		{"the disk is a directory", func(t *testing.T, root string) { write(t, root+"/a.img/x", nil) }, "a.img", false, ErrForbidden, "a directory", ""},
		{"the disk is a pipe, which would hang", func(t *testing.T, root string) {
			if err := syscall.Mkfifo(root+"/a.img", 0o600); err != nil {
				t.Fatal(err)
			}
		}, "a.img", false, ErrForbidden, "a pipe", ""},
		{"a path outside the roots", nil, outside + "/secret.img", false, ErrForbidden, "host disks are allowed below", ""},
		{"a path that only begins like the root", nil, "/ROOT-2/a.img", false, ErrForbidden, "host disks are allowed below", ""},
		{"a path with ..", nil, "/a/../etc/shadow", false, ErrForbidden, "absolute path without", ""},
		{"a relative path", nil, "./a.img", false, ErrForbidden, "absolute path without", ""},
		{"another driver", nil, "nbd:localhost:1", false, ErrForbidden, "absolute path without", ""},
		{"a control character", nil, "/a\nb", false, ErrForbidden, "control character", ""},
		{"VMDK", func(t *testing.T, root string) {
			write(t, root+"/a.vmdk", append([]byte("KDMV"), make([]byte, mib)...))
		}, "a.vmdk", false, nil, "the image is VMDK", ""},
		{"qcow2 with a backing file", func(t *testing.T, root string) {
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-u", "-b", "/etc/passwd", "-F", "raw", root+"/a.img", "1M")
		}, "a.img", false, ErrForeignData, "backing file", ""},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "root")
			if err := os.Mkdir(root, 0o755); err != nil {
				t.Fatal(err)
			}
			if test.prepare != nil {
				test.prepare(t, root)
			}
			path := test.path
			switch {
			case strings.HasPrefix(path, "/ROOT"):
				path = strings.Replace(path, "/ROOT", root, 1)
			case !filepath.IsAbs(path) && !strings.HasPrefix(path, ".") && !strings.Contains(path, ":"):
				path = filepath.Join(root, path)
			}
			store := newStore(t, Options{HostDiskRoots: []string{"/nonexistent", root}})
			got, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", HostDisk{Path: path, Create: test.create, Capacity: mib})
			if test.format == "" {
				if err == nil || (test.want != nil && !errors.Is(err, test.want)) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("EnsureHostDisk() = %+v, %v, want %v and %q", got, err, test.want, test.text)
				}
				if left := files(t, store.Dir()); len(left) != 0 {
					t.Errorf("an error left %v", left)
				}
				return
			}
			if err != nil || got.Format != test.format || got.CapacityBytes != mib {
				t.Errorf("EnsureHostDisk() = %+v, %v", got, err)
			}
		})
	}
	if diff := cmp.Diff([]string{"secret.img"}, files(t, outside)); diff != "" {
		t.Errorf("something was made outside the roots: %s", diff)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestHostDiskInStoreIsForbidden(t *testing.T) {
	store := newStore(t, Options{})
	other, err := store.EnsureEmptyDisk(t.Context(), vm("db-1"), "data", mib)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	symlink(t, filepath.Dir(other.Path), link)
	image := filepath.Join(store.Dir(), "images", "disk")
	write(t, image, make([]byte, mib))
	for _, path := range []string{other.Path, filepath.Join(link, "data.qcow2"), image} {
		if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "stolen", HostDisk{Path: path}); !errors.Is(err, ErrForbidden) {
			t.Errorf("EnsureHostDisk(%s) = %v: not a machine's own, want ErrForbidden", path, err)
		}
	}
	root := filepath.Join(store.Dir(), "hostdisks")
	withRoot := newStoreIn(t, store.Dir(), Options{HostDiskRoots: []string{root}})
	write(t, filepath.Join(root, "a.img"), make([]byte, mib))
	if _, err := withRoot.EnsureHostDisk(t.Context(), vm("web-1"), "allowed", HostDisk{Path: filepath.Join(root, "a.img")}); err != nil {
		t.Errorf("a directory that the operator set aside: %v", err)
	}
}

func TestHostDiskNoSpace(t *testing.T) {
	dir := tmpfs(t, "1m")
	store := newStore(t, Options{})
	path := filepath.Join(dir, "disk.img")
	_, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", HostDisk{Path: path, Create: true, Capacity: 2 * mib})
	var full *diskfile.NoSpaceError
	if !errors.As(err, &full) || full.Need != 2*mib || full.Free <= 0 || full.Free > mib {
		t.Errorf("EnsureHostDisk() = %v, want a NoSpaceError with figures", err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("files were left: %v", left)
	}
}

func TestHostDiskInUse(t *testing.T) {
	store := newStore(t, Options{})
	disk := HostDisk{Path: filepath.Join(t.TempDir(), "disk.img"), Create: true, Capacity: mib}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); err != nil {
		t.Fatal(err)
	}
	stop := hold(t, "raw", disk.Path)
	_, err := store.EnsureHostDisk(t.Context(), vm("web-2"), "data", disk)
	var used *diskfile.InUseError
	if !errors.As(err, &used) || used.PID == 0 || used.Process != "qemu-system-x86_64, guest holder" {
		t.Errorf("EnsureHostDisk() = %v, want an InUseError that names the guest", err)
	}
	disk.Shared = true
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-3"), "data", disk); err != nil {
		t.Errorf("a shared disk: %v", err)
	}
	disk.Shared = false
	stop()
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-2"), "data", disk); err != nil {
		t.Errorf("after its user stopped: %v", err)
	}
}

func TestHostDiskThatWasLost(t *testing.T) {
	store := newStore(t, Options{})
	disk := HostDisk{Path: filepath.Join(t.TempDir(), "disk.img"), Create: true, Capacity: mib}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(disk.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); !errors.Is(err, ErrMissing) {
		t.Errorf("EnsureHostDisk() = %v, want ErrMissing instead of a fresh empty disk", err)
	}
	if _, err := store.Delete(t.Context(), "default/web-1/data"); err != nil {
		t.Fatal(err)
	}
	if got, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", disk); err != nil || !got.Created {
		t.Errorf("after it was pruned: %+v, %v", got, err)
	}
}

func TestHostDiskPathChanges(t *testing.T) {
	store := newStore(t, Options{})
	dir := t.TempDir()
	for _, name := range []string{"a.img", "b.img", "a.img"} {
		if _, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "data", HostDisk{Path: filepath.Join(dir, name), Create: true, Capacity: mib}); err != nil {
			t.Fatal(err)
		}
	}
	disks, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, disk := range disks {
		paths[filepath.Base(disk.Path)] = true
	}
	if !paths["a.img"] || !paths["b.img"] {
		t.Errorf("List() = %+v, want the disk of the former path as well", disks)
	}
}
