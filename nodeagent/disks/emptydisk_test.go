package disks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func TestEmptyDiskIsMadeOnceAndKept(t *testing.T) {
	store := newStore(t, Options{})
	made, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", 64*mib+1)
	if err != nil {
		t.Fatal(err)
	}
	path := store.Dir() + "/disks/default/web-1/data.qcow2"
	want := Ensured{Path: path, Format: diskfile.QCOW2, CapacityBytes: 64*mib + 512, Created: true}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Error(diff)
	}
	check(t, path)
	put(t, "qcow2", path, "write -P 7 1M 64k")

	again, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", 64*mib+1)
	want.Created = false
	if diff := cmp.Diff(want, again); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if err := store.RemoveVolatile(vm("web-1")); err != nil {
		t.Fatal(err)
	}
	put(t, "qcow2", path, "read -P 7 1M 64k")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", info.Mode(), err)
	}
	if diff := cmp.Diff([]string{"data.json", "data.qcow2"}, files(t, filepath.Dir(path))); diff != "" {
		t.Error(diff)
	}
}

func TestEmptyDiskCapacity(t *testing.T) {
	store := newStore(t, Options{})
	steps := []struct {
		reason   string
		capacity int64
		want     error
		text     string
		grown    bool
	}{
		{"the first time", 64 * mib, nil, "", false},
		{"more grows", 128 * mib, nil, "", true},
		{"the same does nothing", 128 * mib, nil, "", false},
		{"less would cut off data", 64 * mib, ErrShrink, "set the capacity to at least 128.0 MiB", false},
		{"nothing is no disk", 0, nil, "want more than 0", false},
	}
	for _, step := range steps {
		got, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", step.capacity)
		if step.text != "" {
			if err == nil || (step.want != nil && !errors.Is(err, step.want)) || !strings.Contains(err.Error(), step.text) {
				t.Errorf("%s: %v, want %v and %q", step.reason, err, step.want, step.text)
			}
			continue
		}
		if err != nil || got.Grown != step.grown || got.CapacityBytes != step.capacity {
			t.Errorf("%s: %+v, %v", step.reason, got, err)
		}
		if step.capacity == 64*mib {
			put(t, "qcow2", got.Path, "write -P 7 1M 64k")
		}
	}
	path := store.Dir() + "/disks/default/web-1/data.qcow2"
	check(t, path)
	put(t, "qcow2", path, "read -P 7 1M 64k")
	if disks, err := store.List(t.Context()); err != nil || len(disks) != 1 || disks[0].CapacityBytes != 128*mib {
		t.Errorf("List() = %+v, %v", disks, err)
	}
}

func TestEmptyDiskFaults(t *testing.T) {
	tests := []struct {
		reason string
		damage func(t *testing.T, path string)
		want   error
		text   string
	}{
		{"a disk that was lost is not replaced by an empty one", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, ErrMissing, "is gone; put it back"},
		{"a disk that is cut off", func(t *testing.T, path string) {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}, nil, "cut off"},
		{"a disk that somebody replaced by another format", func(t *testing.T, path string) { write(t, path, make([]byte, 4096)) }, nil, "not a qcow2 image any more"},
		{"a disk that somebody gave a backing file", func(t *testing.T, path string) {
			run(t, "qemu-img", "rebase", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", path)
		}, ErrForeignData, "backing file"},
		{"a disk that is a link", func(t *testing.T, path string) {
			if err := errors.Join(os.Rename(path, path+".x"), os.Symlink(path+".x", path)); err != nil {
				t.Fatal(err)
			}
		}, syscall.ELOOP, ""},
		{"a record that is cut off", func(t *testing.T, path string) {
			write(t, strings.TrimSuffix(path, ".qcow2")+".json", []byte("{"))
		}, nil, "disk record"},
		{"a disk in use", func(t *testing.T, path string) { hold(t, "qcow2", path) }, ErrInUse, "in use by qemu-system-x86_64, guest holder (process "},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, Options{})
			made, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", 64*mib)
			if err != nil {
				t.Fatal(err)
			}
			test.damage(t, made.Path)
			before := files(t, store.Dir())
			_, err = store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", 128*mib)
			if err == nil || (test.want != nil && !errors.Is(err, test.want)) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("EnsureEmptyDisk() = %v, want %v and %q", err, test.want, test.text)
			}
			if diff := cmp.Diff(before, files(t, store.Dir())); diff != "" {
				t.Errorf("an error changed the files: %s", diff)
			}
		})
	}
}

// TestEmptyDiskAfterCrash leaves what kill -9 leaves at each step.
func TestEmptyDiskAfterCrash(t *testing.T) {
	tests := []struct {
		reason string
		leave  func(t *testing.T, path string)
	}{
		{"while qemu-img wrote", func(t *testing.T, path string) { write(t, diskfile.TemporaryName(path), []byte("half")) }},
		{"before the record was written", func(t *testing.T, path string) {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "64M")
		}},
		{"while the record was written", func(t *testing.T, path string) {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", path, "64M")
			write(t, filepath.Join(filepath.Dir(path), ".data.json.tmp"), []byte("{"))
		}},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, Options{})
			path := store.Dir() + "/disks/default/web-1/data.qcow2"
			test.leave(t, path)
			if _, err := store.List(t.Context()); err != nil {
				t.Errorf("List() = %v", err)
			}
			if _, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", 64*mib); err != nil {
				t.Fatal(err)
			}
			check(t, path)
			if diff := cmp.Diff([]string{"data.json", "data.qcow2"}, files(t, filepath.Dir(path))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNamesCannotEscape(t *testing.T) {
	store := newStore(t, Options{})
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a..b", "a b", "A", "a\x00", "-a", "json:{}", strings.Repeat("a", 254)} {
		for part := range 3 {
			owner, volumeName := vm("web-1"), "data"
			switch part {
			case 0:
				owner.Namespace = name
			case 1:
				owner.Name = name
			case 2:
				volumeName = name
			}
			t.Run(fmt.Sprintf("%q as part %d", name, part), func(t *testing.T) {
				_, errEmpty := store.EnsureEmptyDisk(t.Context(), owner, volumeName, mib)
				_, errHost := store.EnsureHostDisk(t.Context(), owner, volumeName, HostDisk{Path: "/tmp/x", Create: true, Capacity: 1})
				_, errOverlay := store.NewOverlay(t.Context(), owner, volumeName, Backing{Path: "/x", Format: diskfile.Raw, VirtualSize: mib})
				errISO := store.MakeVolatile(owner, volumeName)
				errs := []error{errEmpty, errHost, errOverlay, errISO}
				if part < 2 {
					errs = append(errs, store.RemoveVolatile(owner))
				}
				for _, err := range errs {
					if !errors.Is(err, ErrForbidden) {
						t.Errorf("got %v, want ErrForbidden", err)
					}
				}
			})
		}
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("files were made: %v", left)
	}
}

func TestQemuImgFaults(t *testing.T) {
	tests := []struct {
		reason string
		opts   Options
		text   string
	}{
		{"qemu-img is not installed", Options{QEMUImg: "no-such-qemu-img"}, "apt-get install qemu-utils"},
		{"qemu-img fails", Options{QEMUImg: "false"}, "false create: exit status 1"},
		{"qemu-img hangs", Options{Timeout: 50 * time.Millisecond, Run: func(ctx context.Context, _ string, _ ...string) error {
			return runProcess(ctx, "sleep", "60")
		}}, "no end after 50ms"},
		{"qemu-img is killed", Options{Run: func(ctx context.Context, _ string, arguments ...string) error {
			write(t, strings.TrimPrefix(arguments[len(arguments)-2], "file:"), []byte("half"))
			return runProcess(ctx, "sh", "-c", "kill -9 $$")
		}}, "signal: killed"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, test.opts)
			_, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", mib)
			if err == nil || !strings.Contains(err.Error(), test.text) {
				t.Errorf("EnsureEmptyDisk() = %v, want %q", err, test.text)
			}
			if left := files(t, store.Dir()); len(left) != 0 {
				t.Errorf("files were left: %v", left)
			}
		})
	}
}

func TestNoSpaceForQCOW2(t *testing.T) {
	store := newStoreIn(t, filepath.Join(tmpfs(t, "100k"), "state"), Options{})
	_, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", gib)
	var full *diskfile.NoSpaceError
	if !errors.As(err, &full) || !errors.Is(err, ErrNoSpace) {
		t.Errorf("EnsureEmptyDisk() = %v, want a NoSpaceError", err)
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("files were left on the full disk: %v", left)
	}
}

func TestOverlay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a, comma "and" a b`)
	raw, qcow2 := filepath.Join(dir, "base.img"), filepath.Join(dir, "base.qcow2")
	write(t, raw, make([]byte, mib))
	put(t, "raw", raw, "write -P 5 0 64k")
	run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2)
	store := newStoreIn(t, filepath.Join(dir, "state"), Options{})
	for _, backing := range []Backing{{raw, diskfile.Raw, mib}, {qcow2, diskfile.QCOW2, mib}} {
		t.Run(string(backing.Format), func(t *testing.T) {
			path, err := store.NewOverlay(t.Context(), vm("web-1"), "root", backing)
			if err != nil {
				t.Fatal(err)
			}
			if named, err := store.OverlayPath(vm("web-1"), "root"); err != nil || named != path {
				t.Errorf("OverlayPath() = %q, %v; want %q", named, err, path)
			}
			check(t, path)
			put(t, "qcow2", path, "read -P 5 0 64k")
			put(t, "qcow2", path, "write -P 6 0 64k")
			if out := run(t, "qemu-img", "info", "--output=json", path); !strings.Contains(out, `"backing-filename-format": "`+string(backing.Format)+`"`) {
				t.Errorf("the format of the backing image is not fixed: %s", out)
			}
			again, err := store.NewOverlay(t.Context(), vm("web-1"), "root", backing)
			if err != nil || again != path {
				t.Fatal(again, err)
			}
			put(t, "qcow2", path, "read -P 5 0 64k") // what the guest wrote is gone
		})
	}
	if err := store.RemoveVolatile(vm("web-1")); err != nil {
		t.Fatal(err)
	}
	if err := store.RemoveVolatile(vm("web-1")); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("files were left: %v", left)
	}
}

func TestOverlayFaults(t *testing.T) {
	store := newStore(t, Options{})
	image := filepath.Join(t.TempDir(), "base.img")
	write(t, image, make([]byte, mib))
	good := Backing{image, diskfile.Raw, mib}
	tests := []struct {
		reason  string
		backing Backing
		want    error
		text    string
	}{
		{"a relative image", Backing{"base.img", diskfile.Raw, mib}, nil, "not a complete backing image"},
		{"another driver", Backing{"json:{}", diskfile.Raw, mib}, nil, "not a complete backing image"},
		{"no format would be probed", Backing{image, "", mib}, nil, "not a complete backing image"},
		{"an image that is gone", Backing{image + ".x", diskfile.Raw, mib}, ErrMissing, "its image"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, err := store.NewOverlay(t.Context(), vm("web-1"), "root", test.backing)
			if err == nil || (test.want != nil && !errors.Is(err, test.want)) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("NewOverlay() = %v, want %v and %q", err, test.want, test.text)
			}
		})
	}
	path, err := store.NewOverlay(t.Context(), vm("web-1"), "root", good)
	if err != nil {
		t.Fatal(err)
	}
	stop := hold(t, "qcow2", path)
	if _, err := store.NewOverlay(t.Context(), vm("web-1"), "root", good); !errors.Is(err, ErrInUse) {
		t.Errorf("NewOverlay() = %v while the guest runs, want ErrInUse", err)
	}
	stop()
	if _, err := store.NewOverlay(t.Context(), vm("web-1"), "root", good); err != nil {
		t.Errorf("NewOverlay() after the guest: %v", err)
	}
}

func TestConcurrentCalls(t *testing.T) {
	store := newStore(t, Options{})
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			if _, err := store.EnsureEmptyDisk(t.Context(), vm(fmt.Sprintf("web-%d", i%4)), "data", 64*mib); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if _, err := store.List(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if disks, err := store.List(t.Context()); err != nil || len(disks) != 4 {
		t.Errorf("%d disks, %v; want 4", len(disks), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	release, err := store.lock(t.Context(), "default/web-1/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.EnsureEmptyDisk(ctx, vm("web-1"), "data", mib); !errors.Is(err, context.Canceled) {
		t.Errorf("EnsureEmptyDisk() = %v, want context.Canceled", err)
	}
	release()
	if len(store.locks) != 0 {
		t.Errorf("%d locks are left", len(store.locks))
	}
}

func TestOwner(t *testing.T) {
	store := newStore(t, Options{Owner: &diskfile.Owner{UID: 64055, GID: 108}})
	empty, err := store.EnsureEmptyDisk(t.Context(), vm("web-1"), "data", mib)
	if err != nil {
		t.Fatal(err)
	}
	host, err := store.EnsureHostDisk(t.Context(), vm("web-1"), "host", HostDisk{Path: filepath.Join(t.TempDir(), "host.img"), Create: true, Capacity: mib})
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := store.NewOverlay(t.Context(), vm("web-1"), "root", Backing{host.Path, diskfile.Raw, mib})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{empty.Path, host.Path, overlay} {
		if got := run(t, "stat", "-c", "%u %g %a", path); got != "64055 108 600\n" {
			t.Errorf("%s: owner and mode %q", path, got)
		}
	}
}

func BenchmarkEnsureEmptyDisk(b *testing.B) {
	store := newStore(b, Options{})
	for i := 0; b.Loop(); i++ {
		if _, err := store.EnsureEmptyDisk(b.Context(), vm(fmt.Sprintf("web-%d", i)), "data", gib); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEnsureEmptyDiskAgain(b *testing.B) {
	store := newStore(b, Options{})
	for b.Loop() {
		if _, err := store.EnsureEmptyDisk(b.Context(), vm("web-1"), "data", gib); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNewOverlay(b *testing.B) {
	store := newStore(b, Options{})
	image := filepath.Join(b.TempDir(), "base.img")
	write(b, image, make([]byte, mib))
	for b.Loop() {
		if _, err := store.NewOverlay(b.Context(), vm("web-1"), "root", Backing{image, diskfile.Raw, mib}); err != nil {
			b.Fatal(err)
		}
	}
}
