package disks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// filledWith makes an image of a text.
func filledWith(content string) func(context.Context, string) (string, error) {
	return func(_ context.Context, dir string) (string, error) {
		path := filepath.Join(dir, "image")
		return path, os.WriteFile(path, []byte(content), 0o644)
	}
}

func data(capacity int64) Claim { return Claim{Namespace: "default", Name: "data", Capacity: capacity} }

func TestClaimIsFilledOnceAndKept(t *testing.T) {
	store := newStore(t, Options{})
	want := data(mib + 1)
	want.Origin, want.Fill = "https://example.com/disk.img", func(ctx context.Context, dir string) (string, error) {
		// Whatever kills the process now, the next one knows that nothing was lost.
		if record, _, err := store.readClaim(data(0)); err != nil || !record.Filling || record.Origin == "" {
			t.Errorf("the record says %+v, %v", record, err)
		}
		return filledWith("first")(ctx, dir)
	}
	made, err := store.EnsureClaim(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	path := store.Dir() + "/claims/default/data/disk.img"
	if diff := cmp.Diff(Ensured{Path: path, Format: diskfile.Raw, CapacityBytes: mib + 512, Created: true}, made); diff != "" {
		t.Error(diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Size() != mib+512 {
		t.Errorf("%v, %v; want mode 0600 and the whole size", info, err)
	}
	put(t, "raw", path, "write -P 7 512 64k")

	want.Fill = func(context.Context, string) (string, error) { return "", errors.New("filled again") }
	want.Capacity = 2 * mib
	grown, err := store.EnsureClaim(t.Context(), want)
	if err != nil || !grown.Grown || grown.CapacityBytes != 2*mib {
		t.Errorf("EnsureClaim() = %+v, %v; want it grown", grown, err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content[:5]) != "first" || content[512] != 7 {
		t.Errorf("the content is lost: %v", err)
	}
	want.Capacity = mib
	if _, err := store.EnsureClaim(t.Context(), want); !errors.Is(err, ErrShrink) || !strings.Contains(err.Error(), "at least 2.0 MiB") {
		t.Errorf("EnsureClaim() = %v, want ErrShrink", err)
	}
	want.Capacity = 0
	if kept, err := store.EnsureClaim(t.Context(), want); err != nil || kept.CapacityBytes != 2*mib {
		t.Errorf("EnsureClaim() = %+v, %v; want the size that there is", kept, err)
	}
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 1 || disks[0].ID != "default/data" || disks[0].Origin != want.Origin || disks[0].Kind != KindClaim || disks[0].Filling {
		t.Errorf("List() = %+v, %v", disks, err)
	}
	if diff := cmp.Diff([]string{"claims/default/data/claim.json", "claims/default/data/disk.img"}, files(t, store.Dir())); diff != "" {
		t.Error(diff)
	}
	if deleted, err := store.Delete(t.Context(), "default/data"); err != nil || len(deleted) != 1 || deleted[0].Kept != "" || deleted[0].Freed == 0 {
		t.Errorf("Delete() = %+v, %v", deleted, err)
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestClaimFaults(t *testing.T) {
	tests := []struct {
		reason string
		want   Claim
		is     error
		text   string
	}{
		{"nothing says its size", data(0), nil, "set spec.resources.requests.storage"},
		{"a name that leads elsewhere", Claim{Namespace: "default", Name: "../x", Capacity: mib}, ErrForbidden, ""},
		{"a namespace that leads elsewhere", Claim{Namespace: "..", Name: "x", Capacity: mib}, ErrForbidden, ""},
		{"its source is larger", Claim{Namespace: "default", Name: "data", Capacity: 512, Fill: filledWith(strings.Repeat("x", 4096))}, ErrShrink, "at least 4.0 KiB"},
		{"its source is empty", Claim{Namespace: "default", Name: "data", Fill: filledWith("")}, nil, "source is empty"},
		{"its source fails", Claim{Namespace: "default", Name: "data", Capacity: mib, Fill: func(context.Context, string) (string, error) { return "", os.ErrDeadlineExceeded }}, os.ErrDeadlineExceeded, ""},
		{"its source makes a link", Claim{Namespace: "default", Name: "data", Capacity: mib, Fill: func(_ context.Context, dir string) (string, error) {
			return filepath.Join(dir, "x"), os.Symlink("/etc/passwd", filepath.Join(dir, "x"))
		}}, nil, "too many levels"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, Options{})
			_, err := store.EnsureClaim(t.Context(), test.want)
			if err == nil || (test.is != nil && !errors.Is(err, test.is)) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("EnsureClaim() = %v, want %v and %q", err, test.is, test.text)
			}
			if left := files(t, store.Dir()); len(left) != 0 {
				t.Errorf("an error left %v", left)
			}
		})
	}
}

// TestClaimAfterCrash leaves what kill -9 leaves at each step of an import.
func TestClaimAfterCrash(t *testing.T) {
	tests := []struct {
		reason string
		leave  func(t *testing.T, store *Store, dir string)
		filled bool // the next call fills it
	}{
		{"while it was filled", func(t *testing.T, _ *Store, dir string) { write(t, dir+"/.filling/image", []byte("half")) }, true},
		{"before the record said so", func(t *testing.T, _ *Store, dir string) {
			if err := errors.Join(os.Remove(dir+"/claim.json"), os.Mkdir(dir+"/.filling", 0o700)); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"before the record was finished", func(t *testing.T, _ *Store, dir string) { write(t, dir+"/disk.img", make([]byte, mib)) }, false},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStore(t, Options{})
			dir := store.Dir() + "/claims/default/data"
			record := store.claimRecord("default", "data", mib)
			record.Filling, record.Origin = true, "somewhere"
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := store.writeClaim(data(mib), record); err != nil {
				t.Fatal(err)
			}
			test.leave(t, store, dir)
			if _, err := store.List(t.Context()); err != nil {
				t.Error(err)
			}
			want := data(mib)
			want.Fill = filledWith("whole")
			made, err := store.EnsureClaim(t.Context(), want)
			if err != nil || made.Created != test.filled {
				t.Fatalf("EnsureClaim() = %+v, %v; want it filled: %v", made, err, test.filled)
			}
			content, err := os.ReadFile(made.Path)
			if err != nil || strings.HasPrefix(string(content), "whole") != test.filled || int64(len(content)) != mib {
				t.Errorf("%d bytes, %v", len(content), err)
			}
			if diff := cmp.Diff([]string{"claim.json", "disk.img"}, files(t, dir)); diff != "" {
				t.Error(diff)
			}
			if record, _, err := store.readClaim(want); err != nil || record.Filling {
				t.Errorf("record %+v, %v", record, err)
			}
		})
	}
}

func TestHalfFilledClaimIsListedAndDeleted(t *testing.T) {
	store := newStore(t, Options{})
	dir := store.Dir() + "/claims/default/data"
	write(t, dir+"/.filling/image", make([]byte, mib))
	record := store.claimRecord("default", "data", mib)
	record.Filling = true
	if err := store.writeClaim(data(mib), record); err != nil {
		t.Fatal(err)
	}
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 1 || !disks[0].Missing || disks[0].AllocatedBytes < mib {
		t.Errorf("List() = %+v, %v", disks, err)
	}
	if deleted, err := store.Delete(t.Context(), "default/data"); err != nil || deleted[0].Freed < mib || deleted[0].Kept != "" {
		t.Errorf("Delete() = %+v, %v", deleted, err)
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestLostClaimIsNotReplaced(t *testing.T) {
	store := newStore(t, Options{})
	made, err := store.EnsureClaim(t.Context(), data(mib))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(made.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := store.EnsureClaim(t.Context(), data(mib)); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "gitvirt disks prune default/data") {
		t.Errorf("EnsureClaim() = %v, want ErrMissing", err)
	}
}

func TestClaimInUse(t *testing.T) {
	store := newStore(t, Options{})
	made, err := store.EnsureClaim(t.Context(), data(mib))
	if err != nil {
		t.Fatal(err)
	}
	stop := hold(t, "raw", made.Path)
	want := data(2 * mib)
	if _, err := store.EnsureClaim(t.Context(), want); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "guest holder") {
		t.Errorf("EnsureClaim() = %v, want ErrInUse", err)
	}
	want.Shared = true
	if shared, err := store.EnsureClaim(t.Context(), want); err != nil || shared.CapacityBytes != mib || shared.Grown {
		t.Errorf("EnsureClaim() = %+v, %v; want it as it is", shared, err)
	}
	if _, _, err := store.OpenClaim("default", "data"); !errors.Is(err, ErrInUse) {
		t.Errorf("OpenClaim() = %v, want ErrInUse", err)
	}
	if _, err := store.Delete(t.Context(), "default/data"); !errors.Is(err, ErrInUse) {
		t.Errorf("Delete() = %v, want ErrInUse", err)
	}
	stop()
	if grown, err := store.EnsureClaim(t.Context(), want); err != nil || !grown.Grown {
		t.Errorf("EnsureClaim() = %+v, %v; want it grown", grown, err)
	}
}

// TestClaimsThatCopyEachOther must not wait for each other.
func TestClaimsThatCopyEachOther(t *testing.T) {
	store := newStore(t, Options{})
	if _, _, err := store.OpenClaim("default", "other"); !errors.Is(err, ErrMissing) {
		t.Errorf("OpenClaim() = %v, want ErrMissing", err)
	}
	want := data(mib)
	want.Fill = func(_ context.Context, _ string) (string, error) {
		_, _, err := store.OpenClaim("default", "data")
		return "", err
	}
	if _, err := store.EnsureClaim(t.Context(), want); !errors.Is(err, ErrBusy) {
		t.Errorf("EnsureClaim() = %v, want ErrBusy", err)
	}
	if _, err := store.EnsureClaim(t.Context(), data(mib)); err != nil {
		t.Error(err)
	}
	file, release, err := store.OpenClaim("default", "data")
	if err != nil || file == nil {
		t.Fatal(err)
	}
	release()
	if _, err := store.EnsureClaim(t.Context(), data(mib)); err != nil {
		t.Error(err)
	}
}

func TestClaimFolder(t *testing.T) {
	store := newStore(t, Options{})
	want := Claim{Namespace: "default", Name: "files", Capacity: mib}
	path, err := store.EnsureClaimFolder(t.Context(), want)
	if err != nil || path != store.Dir()+"/claims/default/files/fs/data" {
		t.Fatalf("EnsureClaimFolder() = %q, %v", path, err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v; want a folder that nobody passes through", info, err)
	}
	write(t, path+"/deep/er/report", bytes.Repeat([]byte{1}, int(64*kib)))
	if err := errors.Join(os.Symlink("/usr", path+"/link"), os.Symlink("..", path+"/up")); err != nil {
		t.Fatal(err)
	}
	if again, err := store.EnsureClaimFolder(t.Context(), want); err != nil || again != path {
		t.Errorf("EnsureClaimFolder() = %q, %v", again, err)
	}
	if _, err := store.EnsureClaim(t.Context(), want); !errors.Is(err, ErrForbidden) {
		t.Errorf("EnsureClaim() = %v, want ErrForbidden: it is a folder", err)
	}
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 1 || disks[0].AllocatedBytes < 64*kib || disks[0].AllocatedBytes > 128*kib || disks[0].Path != path {
		t.Errorf("List() = %+v, %v", disks, err)
	}
	if _, err := store.Delete(t.Context(), "default/files"); err != nil {
		t.Error(err)
	}
	if left := files(t, store.Dir()); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := store.EnsureClaim(t.Context(), data(mib)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.EnsureClaimFolder(t.Context(), data(mib)); !errors.Is(err, ErrForbidden) {
		t.Errorf("EnsureClaimFolder() = %v, want ErrForbidden: it is a disk", err)
	}
}

// TestClaimPath covers PersistentVolumes that name a place on the host.
func TestClaimPath(t *testing.T) {
	root := t.TempDir()
	store := newStore(t, Options{HostDiskRoots: []string{root}})
	image := filepath.Join(root, "by-hand.img")
	write(t, image, append([]byte("QFI\xfb"), make([]byte, mib-4)...))
	dir := filepath.Join(root, "volume")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink("/etc", filepath.Join(root, "link")), os.Symlink(image, filepath.Join(root, "image"))); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason, path, want string
		capacity           int64
		is                 error
	}{
		{"a file is raw whatever it holds", image, image, mib, nil},
		{"a directory holds the image, as in KubeVirt", dir, dir + "/disk.img", 2 * mib, nil},
		{"outside the roots", "/srv/elsewhere.img", "", mib, ErrForbidden},
		{"out of the roots by a link", root + "/link/passwd", "", mib, ErrForbidden},
		{"a link", root + "/image", "", mib, ErrForbidden},
		{"among gitvirt's own files", store.Dir() + "/claims/default/x/disk.img", "", mib, ErrForbidden},
		{"a file that is not there is not made", root + "/missing.img", "", mib, ErrMissing},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			want := data(test.capacity)
			want.Path = test.path
			got, err := store.EnsureClaim(t.Context(), want)
			if !errors.Is(err, test.is) || (err == nil && (got.Path != test.want || got.Format != diskfile.Raw || got.CapacityBytes != test.capacity)) {
				t.Errorf("EnsureClaim() = %+v, %v; want %s, %v", got, err, test.want, test.is)
			}
		})
	}
	want := data(mib)
	want.Path = dir
	if path, err := store.EnsureClaimFolder(t.Context(), want); err != nil || path != dir {
		t.Errorf("EnsureClaimFolder() = %q, %v", path, err)
	}
	if disks, err := store.List(t.Context()); err != nil || len(disks) != 0 {
		t.Errorf("List() = %+v, %v; what is the host's is not listed", disks, err)
	}
}

// TestClaimFolderOfTheHost covers directories of the host that a guest is to see.
func TestClaimFolderOfTheHost(t *testing.T) {
	base := t.TempDir()
	state, linked := filepath.Join(base, "lib", "gitvirt"), filepath.Join(base, "linked")
	if err := errors.Join(os.MkdirAll(filepath.Join(base, "srv"), 0o755), os.MkdirAll(state, 0o755), os.Symlink(state, linked),
		os.Symlink("../lib", filepath.Join(base, "srv", "link"))); err != nil {
		t.Fatal(err)
	}
	all, none := []string{base}, []string(nil)
	tests := []struct {
		reason, store, path string
		roots               []string
		says                string
	}{
		{"below a root", state, "srv", all, ""},
		{"the root itself", state, "srv", []string{filepath.Join(base, "srv")}, ""},
		{"without a root", state, "srv", none, "--host-disk-root " + filepath.Join(base, "srv")},
		{"the whole host", state, "../../../../../../../../..", none, "own files lie below it"},
		{"above gitvirt's files", state, "lib", all, "own files lie below it"},
		{"above them by a link", state, "srv/link", all, "own files lie below it"},
		{"gitvirt's directory", state, "lib/gitvirt", all, "own files lie below it"},
		{"among gitvirt's files", state, "lib/gitvirt/disks", all, "among gitvirt's own files"},
		{"above them by the link's name", linked, "lib", all, "own files lie below it"},
		{"among them past the link", linked, "lib/gitvirt/disks", all, "among gitvirt's own files"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			store := newStoreIn(t, test.store, Options{HostDiskRoots: test.roots})
			want := data(mib)
			want.Path = filepath.Join(base, test.path)
			path, err := store.EnsureClaimFolder(t.Context(), want)
			switch {
			case test.says == "" && (err != nil || path != want.Path):
				t.Errorf("EnsureClaimFolder() = %q, %v", path, err)
			case test.says != "" && (!errors.Is(err, ErrForbidden) || !strings.Contains(err.Error(), test.says)):
				t.Errorf("EnsureClaimFolder() = %q, %v; want %q", path, err, test.says)
			}
		})
	}
}

func TestClaimNoSpace(t *testing.T) {
	dir := filepath.Join(tmpfs(t, "1m"), "state")
	store := newStoreIn(t, dir, Options{})
	want := data(4 * mib)
	want.Fill = func(_ context.Context, dir string) (string, error) {
		path := filepath.Join(dir, "image")
		if err := os.WriteFile(path, make([]byte, 2*mib), 0o600); err != nil {
			return "", diskfile.ExplainNoSpace(fmt.Errorf("filling: %w", err), dir, path, 2*mib)
		}
		return path, nil
	}
	if _, err := store.EnsureClaim(t.Context(), want); !errors.Is(err, ErrNoSpace) {
		t.Errorf("EnsureClaim() = %v, want ErrNoSpace", err)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestPersistentFirmwareIsListed(t *testing.T) {
	store := newStore(t, Options{})
	if err := store.MakeData(vm("web-1")); err != nil {
		t.Fatal(err)
	}
	path := store.Dir() + "/disks/default/web-1/firmware.nvram.fd"
	write(t, path, make([]byte, 64*kib))
	write(t, store.Dir()+"/disks/default/web-1/other.fd", nil)
	disks, err := store.List(t.Context())
	if err != nil || len(disks) != 1 || disks[0].ID != "default/web-1/firmware.nvram" || disks[0].Kind != KindNVRAM || disks[0].CapacityBytes != 64*kib {
		t.Errorf("List() = %+v, %v", disks, err)
	}
	if deleted, err := store.Delete(t.Context(), "default/web-1/firmware.nvram"); err != nil || deleted[0].Kept != "" {
		t.Errorf("Delete() = %+v, %v", deleted, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
