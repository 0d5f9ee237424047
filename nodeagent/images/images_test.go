package images

import (
	"archive/tar"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func TestGetFindsTheDisk(t *testing.T) {
	disk := rawDisk("top")
	dir := item{name: "disk/", kind: tar.TypeDir}
	tests := []struct {
		reason string
		layers [][]item
		path   string
		inner  string
		want   error
		text   string
	}{
		{"the only file in /disk", [][]item{{dir, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"names may start with ./", [][]item{{{name: "./disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"names may be absolute", [][]item{{{name: "/disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"files elsewhere do not count", [][]item{{{name: "etc/passwd", data: disk}, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"files below a directory of /disk do not count", [][]item{{{name: "disk/a/b", data: disk}, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"the upper layer wins", [][]item{{{name: "disk/vm.img", data: rawDisk("low")}}, {{name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"in one layer the later entry wins", [][]item{{{name: "disk/vm.img", data: rawDisk("first")}, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"a whiteout hides the file below", [][]item{{{name: "disk/old.img", data: rawDisk("low")}}, {{name: "disk/.wh.old.img"}, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"an opaque directory hides all below", [][]item{{{name: "disk/old.img", data: rawDisk("low")}}, {{name: "disk/vm.img", data: disk}, {name: "disk/.wh..wh..opq"}}}, "", "/disk/vm.img", nil, ""},
		{"a whiteout of /disk hides all below", [][]item{{{name: "disk/old.img", data: disk}}, {{name: ".wh.disk"}}}, "", "", ErrNotFound, "no file in /disk"},
		{"no file in /disk", [][]item{{{name: "vm.img", data: disk}}}, "", "", ErrNotFound, "no file in /disk"},
		{"several files in /disk need a path", [][]item{{{name: "disk/a.img", data: disk}, {name: "disk/b.img", data: disk}}}, "", "", ErrInvalid, "a.img, b.img"},
		{"several files in several layers need a path", [][]item{{{name: "disk/a.img", data: disk}}, {{name: "disk/b.img", data: disk}}}, "", "", ErrInvalid, "a.img, b.img"},
		{"a link in /disk needs a path", [][]item{{{name: "disk/a.img", kind: tar.TypeSymlink, link: "/etc/passwd"}}}, "", "", ErrInvalid, "is a link"},
		{"a path chooses", [][]item{{{name: "disk/a.img", data: rawDisk("a")}, {name: "disk/b.img", data: disk}}}, "/disk/b.img", "/disk/b.img", nil, ""},
		{"a path in a lower layer", [][]item{{{name: "x/vm.img", data: disk}}, {{name: "y", data: nil}}}, "x/vm.img", "/x/vm.img", nil, ""},
		{"a path that a whiteout hides", [][]item{{{name: "x/vm.img", data: disk}}, {{name: ".wh.x"}}}, "/x/vm.img", "", ErrNotFound, ""},
		{"a path whose directory became a file", [][]item{{{name: "x/vm.img", data: disk}}, {{name: "x", data: disk}}}, "/x/vm.img", "", ErrNotFound, ""},
		{"a path through a symbolic link", [][]item{{{name: "boot", kind: tar.TypeSymlink, link: "usr/boot"}, {name: "usr/boot/vm.img", data: disk}}}, "/boot/vm.img", "/usr/boot/vm.img", nil, ""},
		{"a symbolic link cannot leave the image", [][]item{{{name: "a", kind: tar.TypeSymlink, link: "../../../../etc/passwd"}}}, "/a", "", ErrNotFound, ""},
		{"an absolute link is inside the image", [][]item{{{name: "etc/vm.img", data: disk}, {name: "a", kind: tar.TypeSymlink, link: "/etc/vm.img"}}}, "/a", "/etc/vm.img", nil, ""},
		{"a hard link", [][]item{{{name: "x", data: disk}, {name: "y", kind: tar.TypeLink, link: "x"}}}, "/y", "/x", nil, ""},
		{"links in a circle end", [][]item{{{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "b", kind: tar.TypeSymlink, link: "a"}}}, "/a", "", ErrInvalid, "more than 8 links"},
		{"a device is no disk", [][]item{{{name: "a", kind: tar.TypeBlock}}}, "/a", "", ErrInvalid, "not a regular file"},
		{"an entry that leaves the image is passed over", [][]item{{{name: "disk/../../../../tmp/evil", data: disk}, {name: "disk/vm.img", data: disk}}}, "", "/disk/vm.img", nil, ""},
		{"a path that leaves the image", [][]item{{{name: "a", data: disk}}}, "/x/../../a", "", ErrInvalid, "\"..\" is not allowed"},
	}
	registry := newRegistry(t)
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			ref := registry.push("test:v1", imageOf(t, test.layers...))
			cache := newCache(t, Options{})
			got, err := cache.Get(t.Context(), ref, GetOptions{Path: test.path})
			noLeftovers(t, cache)
			if test.want != nil {
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
					t.Fatalf("Get() = %v, want %v and %q", err, test.want, test.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.InnerPath != test.inner || got.Format != diskfile.Raw || got.VirtualSize != 1<<17 || !got.Fetched {
				t.Errorf("Get() = %+v", got)
			}
			wantFile(t, got.Path, disk)
		})
	}
}

func TestGetChecksTheFormat(t *testing.T) {
	good := qcow2(t)
	backed := qcow2(t, "-u", "-b", "/etc/passwd", "-F", "raw")
	const incompatibleFeatures, virtualSize = 72, 24
	tests := []struct {
		reason, name string
		data         []byte
		want         error
		text         string
	}{
		{"qcow2 under its name", "disk.qcow2", good, nil, ""},
		{"qcow2 under a neutral name, as many container disks have it", "disk.img", good, nil, ""},
		{"the attack: a backing file on the host", "disk.qcow2", backed, diskfile.ErrForeignData, "backing file"},
		{"the attack under a raw disk's name", "disk.raw", backed, diskfile.ErrForeignData, "backing file"},
		{"the attack: an external data file", "disk.qcow2", patched(good, incompatibleFeatures, 4), diskfile.ErrForeignData, "another file"},
		{"features that are not known", "disk.qcow2", patched(good, incompatibleFeatures, 1<<40), ErrInvalid, "unknown features"},
		{"an absurd size", "disk.qcow2", patched(good, virtualSize, 1<<62), ErrTooLarge, "at most 64.0 TiB"},
		{"raw data under a qcow2 name", "disk.qcow2", rawDisk("x"), ErrInvalid, "name says qcow2"},
		{"a qcow2 header that is cut off", "disk.qcow2", good[:80], ErrInvalid, "cut off"},
		{"qcow2 that is cut off", "disk.qcow2", good[:4096], ErrInvalid, "cut off"},
		{"VMDK", "disk.vmdk", append([]byte("KDMV"), rawDisk("x")...), ErrInvalid, "the image is VMDK"},
		{"VHDX", "disk.vhdx", append([]byte("vhdxfile"), rawDisk("x")...), ErrInvalid, "the image is VHDX"},
		{"VHD is known by its end", "disk.img", append(rawDisk("x"), append([]byte("conectix"), make([]byte, 504)...)...), ErrInvalid, "the image is VHD"},
		{"VDI under a neutral name", "disk.img", append(append(make([]byte, 0x40), "\x7f\x10\xda\xbe"...), rawDisk("x")...), ErrInvalid, "the image is VDI"},
		{"a compressed disk", "disk.img.xz", append([]byte("\xfd7zXZ\x00"), rawDisk("x")...), ErrInvalid, "decompress it with unxz"},
		{"an empty disk", "disk.img", nil, ErrInvalid, "empty"},
	}
	registry := newRegistry(t)
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/" + test.name, data: test.data}}))
			cache := newCache(t, Options{})
			got, err := cache.Get(t.Context(), ref, GetOptions{})
			noLeftovers(t, cache)
			if test.want == nil {
				if err != nil || got.Format != diskfile.QCOW2 || got.VirtualSize != 64<<20 {
					t.Fatalf("Get() = %+v, %v", got, err)
				}
				wantFile(t, got.Path, test.data)
				return
			}
			if !errors.Is(err, test.want) || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Get() = %v, want %v and %q", err, test.want, test.text)
			}
		})
	}
}

func TestGetIsReadOnlySparseAndReachable(t *testing.T) {
	registry := newRegistry(t)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	cache := newCache(t, Options{})
	got, err := cache.Get(t.Context(), ref, GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(got.Path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o444 {
		t.Errorf("mode %v, want 0444", info.Mode())
	}
	var stat syscall.Stat_t
	if err := syscall.Stat(got.Path, &stat); err != nil || stat.Blocks*512 > 64<<10 {
		t.Errorf("a disk of zeros takes %d bytes (%v)", stat.Blocks*512, err)
	}
	for dir := filepath.Dir(got.Path); len(dir) >= len(cache.dir); dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o711 {
			t.Errorf("%s: mode %v, %v; want 0711", dir, info.Mode(), err)
		}
	}
}

// TestPullPolicy moves a tag and stops the registry.
func TestPullPolicy(t *testing.T) {
	tests := []struct {
		reason, tag string
		policy      PullPolicy
		moves, down bool
		want        string // the mark in the disk, or empty for an error
		warns       bool
	}{
		{"latest is asked for again", "latest", "", true, false, "new", false},
		{"another tag is not", "v1", "", true, false, "old", false},
		{"unless the policy says so", "v1", PullAlways, true, false, "new", false},
		{"latest may be kept", "latest", PullIfNotPresent, true, false, "old", false},
		{"Never keeps", "latest", PullNever, true, false, "old", false},
		{"a registry that is down: the cache serves, and says so", "latest", "", false, true, "old", true},
		{"a registry that is down does not matter to a fixed tag", "v1", "", false, true, "old", false},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			registry := newRegistry(t)
			ref := registry.push("test:"+test.tag, imageOf(t, []item{{name: "disk/a.img", data: rawDisk("old")}}))
			cache := newCache(t, Options{})
			if _, err := cache.Get(t.Context(), ref, GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if test.moves {
				registry.push("test:"+test.tag, imageOf(t, []item{{name: "disk/a.img", data: rawDisk("new")}}))
			}
			if test.down {
				registry.handler = func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) }
			}
			got, err := cache.Get(t.Context(), ref, GetOptions{PullPolicy: test.policy})
			if err != nil {
				t.Fatal(err)
			}
			if (got.Warning != "") != test.warns {
				t.Errorf("warning %q", got.Warning)
			}
			wantFile(t, got.Path, rawDisk(test.want))
		})
	}
}

func TestDigestReferenceNeedsNoRegistry(t *testing.T) {
	registry := newRegistry(t)
	image := imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}})
	ref := registry.push("test:v1", image)
	digest, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	pinned := strings.TrimSuffix(ref, ":v1") + "@" + digest.String()
	cache := newCache(t, Options{})
	if _, err := cache.Get(t.Context(), pinned, GetOptions{}); err != nil {
		t.Fatal(err)
	}
	registry.handler = func(http.ResponseWriter, *http.Request, http.Handler) { t.Error("the registry was asked") }
	got, err := cache.Get(t.Context(), pinned, GetOptions{PullPolicy: PullAlways})
	if err != nil || got.Digest != digest.String() || got.Warning != "" {
		t.Errorf("Get() = %+v, %v", got, err)
	}
}

func TestNeverWithoutTheImage(t *testing.T) {
	cache := newCache(t, Options{})
	_, err := cache.Get(t.Context(), "localhost:1/test", GetOptions{PullPolicy: PullNever})
	if !errors.Is(err, ErrNotCached) {
		t.Errorf("Get() = %v, want ErrNotCached", err)
	}
}

func TestSingleFlight(t *testing.T) {
	registry := newRegistry(t)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	var blobs atomic.Int32
	registry.handler = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
			blobs.Add(1)
			time.Sleep(20 * time.Millisecond)
		}
		real.ServeHTTP(w, r)
	}
	cache := newCache(t, Options{})
	var group sync.WaitGroup
	var fetched atomic.Int32
	for i := range 20 {
		group.Go(func() {
			ctx := t.Context()
			if i%5 == 0 { // a caller that gives up does not take the others down
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 10*time.Millisecond)
				defer cancel()
			}
			got, err := cache.Get(ctx, ref, GetOptions{})
			switch {
			case err != nil && ctx.Err() == nil:
				t.Error(err)
			case got.Fetched:
				fetched.Add(1)
			}
		})
	}
	group.Wait()
	if fetched.Load() != 1 {
		t.Errorf("%d callers fetched the image, want 1", fetched.Load())
	}
	if n := blobs.Load(); n > 2*3 { // configuration and layer, and those of callers that gave up
		t.Errorf("%d blobs were asked for", n)
	}
	noLeftovers(t, cache)
}

func TestLocalSources(t *testing.T) {
	disk := rawDisk("local")
	image := imageOf(t, []item{{name: "disk/a.img", data: disk}})
	dir := t.TempDir()
	layoutDir := filepath.Join(dir, "layout")
	path, err := layout.Write(layoutDir, emptyIndex())
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{refAnnotation: "v1"})); err != nil {
		t.Fatal(err)
	}
	ociTar := filepath.Join(dir, "oci.tar")
	tarDirectory(t, layoutDir, ociTar)
	dockerTar := filepath.Join(dir, "docker.tar")
	tag, err := name.NewTag("example.com/vm:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(dockerTar, tag, image); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	notTar := filepath.Join(dir, "not.tar")
	if err := os.WriteFile(notTar, disk, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		reason, ref string
		want        error
		text        string
	}{
		{"a layout", "oci:" + layoutDir, nil, ""},
		{"a layout with a tag", "oci:" + layoutDir + ":v1", nil, ""},
		{"a layout without that tag", "oci:" + layoutDir + ":v2", ErrNotFound, "it has: v1"},
		{"an OCI tarball", "oci-archive:" + ociTar, nil, ""},
		{"an OCI tarball with a tag", "oci-archive:" + ociTar + ":v1", nil, ""},
		{"a Docker tarball", "oci-archive:" + dockerTar, nil, ""},
		{"a Docker tarball with a tag", "oci-archive:" + dockerTar + ":v1", nil, ""},
		{"a Docker tarball without that tag", "oci-archive:" + dockerTar + ":v2", ErrNotFound, "none tagged"},
		{"nothing there", "oci:" + dir + "/nothing", ErrNotFound, "does not exist"},
		{"a directory that is no layout", "oci:" + dir, ErrInvalid, "neither index.json"},
		{"a file that is no tarball", "oci-archive:" + notTar, ErrInvalid, "not a tarball"},
		{"a relative path", "oci:layout", ErrInvalid, "absolute path"},
		{"a path with ..", "oci:" + layoutDir + "/../layout", ErrInvalid, "without \"..\""},
		{"a path out of the roots", "oci:/etc", ErrInvalid, "taken from"},
		{"a link out of the roots", "oci:" + link, ErrInvalid, "taken from"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			cache := newCache(t, Options{LocalRoots: []string{dir}})
			got, err := cache.Get(t.Context(), test.ref, GetOptions{})
			noLeftovers(t, cache)
			if test.want != nil {
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("Get() = %v, want %v and %q", err, test.want, test.text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantFile(t, got.Path, disk)
			if again, err := cache.Get(t.Context(), test.ref, GetOptions{}); err != nil || again.Fetched {
				t.Errorf("the second Get() = %+v, %v; want a hit", again, err)
			}
		})
	}
}

func TestLocalSourceThatIsGoneFallsBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, emptyIndex())
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}})); err != nil {
		t.Fatal(err)
	}
	cache := newCache(t, Options{})
	if _, err := cache.Get(t.Context(), "oci:"+dir, GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := cache.Get(t.Context(), "oci:"+dir, GetOptions{}); err != nil || got.Warning == "" {
		t.Errorf("Get() = %+v, %v; want the cached image and a warning", got, err)
	}
}

func TestGetFiles(t *testing.T) {
	registry := newRegistry(t)
	ref := registry.push("kernel:v1", imageOf(t, []item{
		{name: "boot/vmlinuz-6.1", data: []byte("kernel")},
		{name: "boot/vmlinuz", kind: tar.TypeSymlink, link: "vmlinuz-6.1"},
		{name: "boot/initrd", data: []byte("\x1f\x8b\x08 an initrd is compressed, and that is fine")},
	}))
	cache := newCache(t, Options{})
	got, err := cache.GetFiles(t.Context(), ref, GetOptions{}, "/boot/vmlinuz", "/boot/initrd")
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, got.Paths["/boot/vmlinuz"], []byte("kernel"))
	wantFile(t, got.Paths["/boot/initrd"], []byte("\x1f\x8b\x08 an initrd is compressed, and that is fine"))
	if !strings.HasPrefix(got.Digest, "sha256:") {
		t.Errorf("digest %q", got.Digest)
	}
	if _, err := cache.GetFiles(t.Context(), ref, GetOptions{}, "/boot/nothing"); !errors.Is(err, ErrNotFound) {
		t.Errorf("GetFiles() = %v, want ErrNotFound", err)
	}
}

func TestIndexChoosesThisMachine(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, emptyIndex())
	if err != nil {
		t.Fatal(err)
	}
	here := thisPlatform()
	for _, platform := range []v1.Platform{{OS: "linux", Architecture: "s390x"}, here} {
		image := imageOf(t, []item{{name: "disk/a.img", data: rawDisk(platform.Architecture)}})
		if err := path.AppendImage(image, layout.WithPlatform(platform), layout.WithAnnotations(map[string]string{refAnnotation: platform.Architecture})); err != nil {
			t.Fatal(err)
		}
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	outer := filepath.Join(t.TempDir(), "outer")
	outerPath, err := layout.Write(outer, emptyIndex())
	if err != nil {
		t.Fatal(err)
	}
	if err := outerPath.AppendIndex(index); err != nil {
		t.Fatal(err)
	}
	got, err := newCache(t, Options{}).Get(t.Context(), "oci:"+outer, GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, got.Path, rawDisk(here.Architecture))
}
