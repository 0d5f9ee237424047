package images

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// item is one entry of a layer: a file with data, or with a type of its own.
type item struct {
	name string
	data []byte
	kind byte
	link string
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, one := range items {
		header := &tar.Header{Name: one.name, Typeflag: one.kind, Linkname: one.link, Mode: 0o644, Size: int64(len(one.data))}
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(one.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// imageOf returns an image whose layers hold the items, the lowest layer first.
func imageOf(t testing.TB, layers ...[]item) v1.Image {
	t.Helper()
	image := empty.Image
	for _, items := range layers {
		raw := tarOf(t, items...)
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }, tarball.WithCompressedCaching)
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	return image
}

// rawDisk is a disk of 128 KiB with something at both ends and nothing in between.
func rawDisk(mark string) []byte {
	disk := make([]byte, 1<<17)
	copy(disk, mark)
	copy(disk[len(disk)-len(mark):], mark)
	return disk
}

// qcow2 makes an image with the real qemu-img.
func qcow2(t testing.TB, arguments ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.qcow2")
	out, err := exec.Command("qemu-img", append([]string{"create", "-q", "-f", "qcow2"}, append(arguments, path, "64M")...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img (make setup installs it): %v: %s", err, out)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// patched returns the qcow2 image with one big-endian 64-bit field of its header changed.
func patched(image []byte, offset int, value uint64) []byte {
	image = bytes.Clone(image)
	binary.BigEndian.PutUint64(image[offset:], value)
	return image
}

// fastTransport dies with the test, so that goleak sees no idle connections.
func fastTransport(t testing.TB) *http.Transport {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

func newCache(t testing.TB, opts Options) *Cache {
	t.Helper()
	return newCacheIn(t, filepath.Join(t.TempDir(), "cache"), opts)
}

func newCacheIn(t testing.TB, dir string, opts Options) *Cache {
	t.Helper()
	if opts.Transport == nil {
		opts.Transport = fastTransport(t)
	}
	if opts.RetryPause == 0 {
		opts.RetryPause = time.Millisecond
	}
	cache, err := Open(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

// fakeRegistry is go-containerregistry's registry behind a handler that a test may break.
type fakeRegistry struct {
	host    string
	handler func(http.ResponseWriter, *http.Request, http.Handler)
	t       testing.TB
}

func newRegistry(t testing.TB) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{t: t}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.handler != nil {
			f.handler(w, r, real)
			return
		}
		real.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.host = strings.TrimPrefix(server.URL, "http://")
	return f
}

func (f *fakeRegistry) push(path string, image v1.Image) string {
	f.t.Helper()
	ref := f.host + "/" + path
	push(f.t, ref, image)
	return ref
}

func push(t testing.TB, ref string, image v1.Image) {
	t.Helper()
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(parsed, image, remote.WithTransport(fastTransport(t))); err != nil {
		t.Fatal(err)
	}
}

// noLeftovers checks that no unfinished file remains.
func noLeftovers(t testing.TB, cache *Cache) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(cache.dir, tmpDir))
	if err != nil || len(entries) != 0 {
		t.Errorf("%d unfinished files left (%v)", len(entries), err)
	}
}

func wantFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that are not the %d expected", path, len(got), len(want))
	}
}

func emptyIndex() v1.ImageIndex { return empty.Index }

// tarDirectory packs a layout the way skopeo does.
func tarDirectory(t testing.TB, dir, path string) {
	t.Helper()
	if out, err := exec.Command("tar", "-C", dir, "-cf", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
}
