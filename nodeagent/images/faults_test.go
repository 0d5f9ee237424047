package images

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func isBlob(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/")
}

func TestRegistryFaults(t *testing.T) {
	tests := []struct {
		reason string
		// handle breaks the nth request, counted from 1.
		handle func(n int32, w http.ResponseWriter, r *http.Request, real http.Handler)
		want   error
		text   string
	}{
		{"no such image", func(_ int32, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusNotFound)
		}, ErrNotFound, "has no such image"},
		{"other credentials are wanted", func(_ int32, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusForbidden)
		}, ErrUnauthorized, "refuses these credentials"},
		{"down for good", func(_ int32, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}, ErrUnavailable, "does not serve now"},
		{"down for a moment is tried again", func(n int32, w http.ResponseWriter, r *http.Request, real http.Handler) {
			if n <= 2 {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			real.ServeHTTP(w, r)
		}, nil, ""},
		{"a registry that does not serve HEAD", func(_ int32, w http.ResponseWriter, r *http.Request, real http.Handler) {
			if r.Method == http.MethodHead {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			real.ServeHTTP(w, r)
		}, nil, ""},
		{"a connection that breaks once in the middle is tried again", breakBlobs(1), nil, ""},
		{"a connection that always breaks in the middle", breakBlobs(1000), ErrUnavailable, "the transfer broke after"},
		{"a lying registry: other bytes of the same length", func(_ int32, w http.ResponseWriter, r *http.Request, real http.Handler) {
			if !isBlob(r) {
				real.ServeHTTP(w, r)
				return
			}
			answer := record(r, real)
			body := answer.Body.Bytes()
			if len(body) > 1000 { // the layer, not the configuration
				body[len(body)-1] ^= 1
			}
			_, _ = w.Write(body)
		}, ErrInvalid, "invalid image"},
		{"a lying registry: another manifest", func(_ int32, w http.ResponseWriter, r *http.Request, real http.Handler) {
			answer := record(r, real)
			for key, values := range answer.Header() {
				w.Header()[key] = values
			}
			body := answer.Body.Bytes()
			if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
				body = bytes.Replace(body, []byte("schemaVersion"), []byte("schemaversion"), 1)
			}
			w.WriteHeader(answer.Code)
			_, _ = w.Write(body)
		}, ErrInvalid, "digest"},
		{"a registry that serves something else", func(_ int32, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			_, _ = io.WriteString(w, "<html>please log in</html>")
		}, ErrInvalid, ""},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			registry := newRegistry(t)
			disk := make([]byte, 1<<20)
			_, _ = rand.Read(disk)
			ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: disk}}))
			var requests atomic.Int32
			registry.handler = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
				test.handle(requests.Add(1), w, r, real)
			}
			cache := newCache(t, Options{})
			got, err := cache.Get(t.Context(), ref, GetOptions{})
			noLeftovers(t, cache)
			if test.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				wantFile(t, got.Path, disk)
				return
			}
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Get() = %v, want %v and %q", err, test.want, test.text)
			}
		})
	}
}

func record(r *http.Request, real http.Handler) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	real.ServeHTTP(recorder, r)
	return recorder
}

// breakBlobs cuts the connection in the middle of the first layers that are asked for.
func breakBlobs(times int32) func(int32, http.ResponseWriter, *http.Request, http.Handler) {
	var broken atomic.Int32
	return func(_ int32, w http.ResponseWriter, r *http.Request, real http.Handler) {
		if !isBlob(r) {
			real.ServeHTTP(w, r)
			return
		}
		body := record(r, real).Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		if len(body) > 1000 && broken.Add(1) <= times {
			_, _ = w.Write(body[:len(body)/2])
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(body)
	}
}

func TestStalledTransfer(t *testing.T) {
	registry := newRegistry(t)
	disk := make([]byte, 1<<20)
	_, _ = rand.Read(disk)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: disk}}))
	registry.handler = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		if !isBlob(r) {
			real.ServeHTTP(w, r)
			return
		}
		body := record(r, real).Body.Bytes()
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:len(body)/2])
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		if len(body) > 1000 {
			<-r.Context().Done()
		}
		_, _ = w.Write(body[len(body)/2:])
	}
	cache := newCache(t, Options{StallTimeout: 200 * time.Millisecond, Attempts: 2})
	_, err := cache.Get(t.Context(), ref, GetOptions{})
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no byte arrived for 200ms") {
		t.Errorf("Get() = %v", err)
	}
	noLeftovers(t, cache)
}

func TestCancelledTransfer(t *testing.T) {
	registry := newRegistry(t)
	disk := make([]byte, 2<<20)
	_, _ = rand.Read(disk)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: disk}}))
	ctx, cancel := context.WithCancel(t.Context())
	cache := newCache(t, Options{})
	_, err := cache.Get(ctx, ref, GetOptions{Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Get() = %v, want context.Canceled", err)
	}
	noLeftovers(t, cache)
}

func TestProgress(t *testing.T) {
	registry := newRegistry(t)
	disk := make([]byte, 2<<20)
	_, _ = rand.Read(disk)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: disk}}))
	var last, total int64
	_, err := newCache(t, Options{}).Get(t.Context(), ref, GetOptions{Progress: func(d, all int64) {
		if d < last {
			t.Errorf("progress went back from %d to %d", last, d)
		}
		last, total = d, all
	}})
	if err != nil || last != total || total < 2<<20 {
		t.Errorf("progress ended at %d of %d (%v)", last, total, err)
	}
}

func TestSizeLimits(t *testing.T) {
	registry := newRegistry(t)
	tests := []struct {
		reason string
		items  []item
		opts   Options
		text   string
	}{
		{"a file that is too large", []item{{name: "disk/a.img", data: rawDisk("x")}}, Options{MaxFileSize: 1<<17 - 1}, "at most 128.0 KiB are allowed"},
		{"a disk that is too large for a guest", []item{{name: "disk/a.qcow2", data: qcow2(t)}}, Options{MaxVirtualSize: 1 << 20}, "at most 1.0 MiB are allowed"},
		{"a layer that unpacks without end", []item{{name: "x", data: make([]byte, 8<<20)}, {name: "disk/a.img", data: rawDisk("x")}}, Options{MaxFileSize: 2 << 20}, "unpacks to more than 4.0 MiB"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			ref := registry.push("test:v1", imageOf(t, test.items))
			cache := newCache(t, test.opts)
			_, err := cache.Get(t.Context(), ref, GetOptions{})
			if !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("Get() = %v, want ErrTooLarge and %q", err, test.text)
			}
			noLeftovers(t, cache)
		})
	}
}

// TestNoSpace fills a real file system.
func TestNoSpace(t *testing.T) {
	mount := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount).CombinedOutput(); err != nil {
		t.Fatalf("mount (as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	registry := newRegistry(t)
	disk := make([]byte, 2<<20)
	_, _ = rand.Read(disk)
	large := registry.push("large:v1", imageOf(t, []item{{name: "disk/a.img", data: disk}}))
	small := registry.push("small:v1", imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	cache := newCacheIn(t, filepath.Join(mount, "cache"), Options{})
	_, err := cache.Get(t.Context(), large, GetOptions{})
	var full *diskfile.NoSpaceError
	if !errors.As(err, &full) || full.Need != 2<<20 {
		t.Errorf("Get() = %v, want a NoSpaceError with figures", err)
	}
	noLeftovers(t, cache)
	if _, err := cache.Get(t.Context(), small, GetOptions{}); err != nil {
		t.Errorf("a sparse disk of the same size fits: %v", err)
	}
}

// TestKilledProcess kills a child in the middle of a fetch: Open sweeps its file, and leaves that of a living one.
func TestKilledProcess(t *testing.T) {
	if dir := os.Getenv("IMAGES_TEST_CACHE"); dir != "" {
		cache, err := Open(dir, Options{})
		if err == nil {
			_, err = cache.newTemporary()
		}
		fmt.Println("ready", err)
		time.Sleep(time.Minute)
		return
	}
	dir := filepath.Join(t.TempDir(), "cache")
	child := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	child.Env = append(os.Environ(), "IMAGES_TEST_CACHE="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAtLeast(out, make([]byte, 64), len("ready")); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		t.Helper()
		newCacheIn(t, dir, Options{})
		entries, err := os.ReadDir(filepath.Join(dir, tmpDir))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if n := count(); n != 1 {
		t.Errorf("%d unfinished files while their writer lives, want 1", n)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	if n := count(); n != 0 {
		t.Errorf("%d unfinished files after their writer was killed, want 0", n)
	}
}

// TestDamagedCache damages what the cache holds; it is fetched again.
func TestDamagedCache(t *testing.T) {
	registry := newRegistry(t)
	ref := registry.push("test:v1", imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	tests := []struct {
		reason string
		damage func(path string) error
	}{
		{"the file is gone", os.Remove},
		{"the file is cut off", func(path string) error { return os.Truncate(path, 4096) }},
		{"the record is gone", func(path string) error { return os.Remove(path + recordExt) }},
		{"the record is cut off", func(path string) error { return os.Truncate(path+recordExt, 5) }},
		{"the file is a link", func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)) }},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			cache := newCache(t, Options{})
			first, err := cache.Get(t.Context(), ref, GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := test.damage(first.Path); err != nil {
				t.Fatal(err)
			}
			again, err := cache.Get(t.Context(), ref, GetOptions{})
			if err != nil || !again.Fetched {
				t.Fatalf("Get() = %+v, %v", again, err)
			}
			wantFile(t, again.Path, rawDisk("x"))
		})
	}
}

func TestDamagedLayout(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layout")
	path, err := layout.Write(dir, emptyIndex())
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendImage(imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}, {name: "pad", data: make([]byte, 4096), kind: tar.TypeReg}})); err != nil {
		t.Fatal(err)
	}
	blobs, err := filepath.Glob(filepath.Join(dir, "blobs", "sha256", "*"))
	if err != nil || len(blobs) != 3 {
		t.Fatal(len(blobs), err)
	}
	for _, blob := range blobs {
		raw, err := os.ReadFile(blob)
		if err != nil {
			t.Fatal(err)
		}
		bad := bytes.Clone(raw)
		bad[len(bad)/2] ^= 1
		if err := os.WriteFile(blob, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		cache := newCache(t, Options{})
		if _, err := cache.Get(t.Context(), "oci:"+dir, GetOptions{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("Get() = %v after a bit flipped in a blob of %d bytes, want ErrInvalid", err, len(raw))
		}
		noLeftovers(t, cache)
		if err := os.Chmod(blob, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(blob, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPrune(t *testing.T) {
	registry := newRegistry(t)
	now := time.Now()
	cache := newCache(t, Options{Now: func() time.Time { return now }, PruneAge: time.Minute})
	digests := map[string]string{}
	for _, tag := range []string{"used", "unused"} {
		got, err := cache.Get(t.Context(), registry.push("test:"+tag, imageOf(t, []item{{name: "disk/a.img", data: rawDisk(tag)}})), GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		digests[tag] = got.Digest
	}
	inUse := map[string]bool{digests["used"]: true}
	if removed, err := cache.Prune(t.Context(), inUse); err != nil || len(removed) != 0 {
		t.Errorf("Prune() = %+v, %v; want nothing, since a machine may be about to start from it", removed, err)
	}
	now = now.Add(time.Hour)
	removed, err := cache.Prune(t.Context(), inUse)
	if err != nil || len(removed) != 1 || removed[0].Digest != digests["unused"] || len(removed[0].Refs) != 1 || removed[0].AllocatedBytes == 0 {
		t.Errorf("Prune() = %+v, %v; want the unused image", removed, err)
	}
	left, err := cache.List()
	if err != nil || len(left) != 1 || left[0].Digest != digests["used"] {
		t.Errorf("List() = %+v, %v", left, err)
	}
}
