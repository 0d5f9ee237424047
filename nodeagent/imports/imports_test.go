package imports

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/images"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = int64(1) << 20

// disk is a raw disk with a hole between two data blocks.
func disk() []byte {
	out := make([]byte, 4*mib)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(out[:64<<10])
	_, _ = random.Read(out[3*mib : 3*mib+64<<10])
	return out
}

// run executes a real program that `make setup` installs.
func run(t testing.TB, input []byte, program string, arguments ...string) []byte {
	t.Helper()
	cmd := exec.Command(program, arguments...)
	cmd.Stdin = bytes.NewReader(input)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", program, strings.Join(arguments, " "), err)
	}
	return out
}

// qcow2 is the same disk as a qcow2 image.
func qcow2(t testing.TB, options ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/raw", disk(), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, options...), dir+"/raw", dir+"/qcow2")...)
	out, err := os.ReadFile(dir + "/qcow2")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	writer := gzip.NewWriter(&out)
	_, err := writer.Write(content)
	if err := errors.Join(err, writer.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, content []byte) []byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return encoder.EncodeAll(content, nil)
}

func newImporter(t testing.TB, images Images, claims Claims) *Importer {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return New(images, claims, Options{
		Client: &http.Client{Transport: transport}, RetryPause: time.Millisecond, StallTimeout: 300 * time.Millisecond, MaxSize: 64 * mib,
	})
}

func get(t testing.TB, importer *Importer, request Request) (content []byte, origin string, err error) {
	t.Helper()
	plan, err := importer.Plan(request)
	if err != nil {
		return nil, "", err
	}
	dir := t.TempDir()
	path, err := plan.Fill(t.Context(), dir)
	if err != nil {
		return nil, plan.Origin, err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%v lie beside the image, %v", entries, err)
	}
	content, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Blocks*512 > mib {
		t.Errorf("the image takes %d bytes, %v; its holes are lost", stat.Blocks*512, err)
	}
	return content, plan.Origin, nil
}

func fromURL(address string) Request {
	return Request{Source: &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: address}}, Namespace: "default", Capacity: 4 * mib}
}

func TestHTTP(t *testing.T) {
	raw := disk()
	files := map[string][]byte{
		"/raw": raw, "/raw.gz": gzipped(t, raw), "/raw.zst": zstandard(t, raw), "/raw.xz": run(t, raw, "xz", "-c", "-0"),
		"/qcow2": qcow2(t), "/compressed": qcow2(t, "-c"), "/qcow2.gz": gzipped(t, qcow2(t)),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if content, ok := files[r.URL.Path]; ok {
			_, _ = w.Write(content)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	for name := range files {
		t.Run(name, func(t *testing.T) {
			content, origin, err := get(t, newImporter(t, nil, nil), fromURL(server.URL+name+"?signature=secret"))
			if err != nil || !bytes.Equal(content, raw) {
				t.Errorf("%d bytes that differ from the %d of the disk, %v", len(content), len(raw), err)
			}
			if origin != server.URL+name {
				t.Errorf("origin %q", origin)
			}
		})
	}
}

// patched overwrites bytes of an image.
func patched(image []byte, offset int, with ...byte) []byte {
	out := bytes.Clone(image)
	copy(out[offset:], with)
	return out
}

func TestHTTPRefuses(t *testing.T) {
	image := qcow2(t)
	tests := []struct {
		reason  string
		content []byte
		is      error
		text    string
	}{
		{"a backing file", patched(image, 8, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 11), diskfile.ErrForeignData, "backing file"},
		{"an external data file", patched(image, 72, 0, 0, 0, 0, 0, 0, 0, 4), diskfile.ErrForeignData, "another file"},
		{"a disk larger than the claim", patched(image, 24, 0, 0, 0, 1), images.ErrTooLarge, "ask for at least"},
		{"a raw disk larger than the claim", make([]byte, 5*mib), images.ErrTooLarge, "the claim 4.0 MiB"},
		{"a small file that unpacks to a large one", run(t, make([]byte, 100*mib), "gzip", "-c", "-1"), images.ErrTooLarge, "does not fit"},
		{"a small xz file that unpacks to a large one", run(t, make([]byte, 100*mib), "xz", "-c", "-0"), images.ErrTooLarge, "does not fit"},
		{"a damaged gzip file", gzipped(t, disk())[:1000], images.ErrInvalid, "cannot be unpacked"},
		{"a damaged xz file", run(t, disk(), "xz", "-c", "-0")[:1000], images.ErrInvalid, "cannot be unpacked"},
		{"a damaged qcow2 image", patched(image, 40, 0, 0, 0, 0, 0, 0, 0, 8), images.ErrInvalid, ""},
		{"a format that is not supported", append([]byte("KDMV"), make([]byte, 4096)...), images.ErrInvalid, "VMDK"},
		{"an archive in an archive", gzipped(t, gzipped(t, disk())), images.ErrInvalid, "gzip-compressed"},
		{"nothing", nil, images.ErrInvalid, "empty"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(test.content) }))
			defer server.Close()
			_, _, err := get(t, newImporter(t, nil, nil), fromURL(server.URL+"/disk?token=proof-of-token"))
			if !errors.Is(err, test.is) || !strings.Contains(fmt.Sprint(err), test.text) || strings.Contains(fmt.Sprint(err), "proof-of") {
				t.Errorf("%v, want %v and %q", err, test.is, test.text)
			}
		})
	}
}

// TestLyingServer covers servers that do not do what they say.
func TestLyingServer(t *testing.T) {
	tests := []struct {
		reason string
		serve  http.HandlerFunc
		is     error
		text   string
	}{
		{"it ends before it said", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4194304")
			_, _ = w.Write(make([]byte, 1000))
		}, images.ErrUnavailable, "transfer failed"},
		{"it stands still", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write(make([]byte, 1000))
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, images.ErrUnavailable, "less than 64.0 KiB arrived"},
		{"it never ends", func(w http.ResponseWriter, _ *http.Request) {
			for block := bytes.Repeat([]byte{1}, int(mib)); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, images.ErrTooLarge, "does not fit"},
		{"it is out of order", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, images.ErrUnavailable, "502"},
		{"it wants other credentials", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, images.ErrUnauthorized, "secretRef"},
		{"it has no such file", http.NotFound, images.ErrNotFound, "404"},
		{"it sends one around in circles", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, images.ErrInvalid, "redirects"},
		{"it sends one to a file", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		}, images.ErrInvalid, "redirects"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			server := httptest.NewServer(test.serve)
			defer server.Close()
			_, _, err := get(t, newImporter(t, nil, nil), fromURL(server.URL+"/disk?token=proof-of-token"))
			if !errors.Is(err, test.is) || !strings.Contains(fmt.Sprint(err), test.text) || strings.Contains(fmt.Sprint(err), "proof-of") {
				t.Errorf("%v, want %v and %q", err, test.is, test.text)
			}
		})
	}
}

func TestBrokenTransferIsBegunAnew(t *testing.T) {
	raw, requests := disk(), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests < 3 {
			w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
			_, _ = w.Write(raw[:requests*100000])
			return
		}
		_, _ = w.Write(raw)
	}))
	defer server.Close()
	content, _, err := get(t, newImporter(t, nil, nil), fromURL(server.URL))
	if err != nil || !bytes.Equal(content, raw) || requests != 3 {
		t.Errorf("%d bytes after %d requests, %v", len(content), requests, err)
	}
}

// TestCredentialsStayWithTheirServer follows a redirect to another host.
func TestCredentialsStayWithTheirServer(t *testing.T) {
	raw := disk()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.Header.Get("X-Token") != "" {
			t.Error("another host was told credentials")
		}
		_, _ = w.Write(raw)
	}))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if user != "me" || password != "proof-of-secret" || r.Header.Get("X-Token") != "proof" {
			t.Error("the server was not told its credentials")
		}
		http.Redirect(w, r, other.URL, http.StatusFound)
	}))
	defer server.Close()
	request := fromURL(server.URL)
	request.Source.HTTP.ExtraHeaders = []string{"X-Token: proof"}
	request.Secret = map[string][]byte{"accessKeyId": []byte("me"), "secretKey": []byte("proof-of-secret")}
	if content, _, err := get(t, newImporter(t, nil, nil), request); err != nil || !bytes.Equal(content, raw) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, "http://"+r.Host+"/disk", http.StatusFound)
			return
		}
		_, _ = w.Write(disk())
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // a refused certificate is what this test is about
	server.StartTLS()
	defer server.Close()
	if _, _, err := get(t, newImporter(t, nil, nil), fromURL(server.URL)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("%v, want an unknown certificate", err)
	}
	trusting := New(nil, nil, Options{Client: server.Client(), Attempts: 1})
	if _, _, err := get(t, trusting, fromURL(server.URL)); err != nil {
		t.Error(err)
	}
	if _, _, err := get(t, trusting, fromURL(server.URL+"/down")); !errors.Is(err, images.ErrInvalid) || !strings.Contains(err.Error(), "from https to http") {
		t.Errorf("%v, want a refused redirect", err)
	}
}

// fakeImages is a cache that holds one image.
type fakeImages struct {
	image images.Image
	ref   string
	opts  images.GetOptions
}

func (f *fakeImages) Get(_ context.Context, ref string, opts images.GetOptions) (images.Image, error) {
	f.ref, f.opts = ref, opts
	return f.image, nil
}

func TestRegistry(t *testing.T) {
	for format, content := range map[diskfile.Format][]byte{diskfile.Raw: disk(), diskfile.QCOW2: qcow2(t)} {
		t.Run(string(format), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk")
			if err := errors.Join(os.WriteFile(path, content, 0o444)); err != nil {
				t.Fatal(err)
			}
			if format == diskfile.Raw { // as the cache keeps it, with holes
				run(t, nil, "fallocate", "--dig-holes", path)
			}
			cache := &fakeImages{image: images.Image{Path: path, Format: format, VirtualSize: 4 * mib}}
			address := "docker://quay.io/containerdisks/debian:12"
			request := Request{Source: &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: &address}}, Capacity: 4 * mib}
			got, origin, err := get(t, newImporter(t, cache, nil), request)
			if err != nil || !bytes.Equal(got, disk()) || origin != address || cache.ref != "quay.io/containerdisks/debian:12" {
				t.Errorf("%d bytes from %q by %q, %v", len(got), origin, cache.ref, err)
			}
			request.Capacity = mib
			if _, _, err := get(t, newImporter(t, cache, nil), request); !errors.Is(err, images.ErrTooLarge) {
				t.Errorf("%v, want ErrTooLarge", err)
			}
		})
	}
}

// fakeClaims has one claim.
type fakeClaims struct{ path string }

func (f fakeClaims) OpenClaim(namespace, name string) (*os.File, func(), error) {
	if namespace != "default" || name != "golden" {
		return nil, nil, os.ErrNotExist
	}
	file, err := os.Open(f.path)
	return file, func() { _ = file.Close() }, err
}

func TestClone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, disk(), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "fallocate", "--dig-holes", path)
	request := Request{Source: &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{Name: "golden"}}, Namespace: "default"}
	content, origin, err := get(t, newImporter(t, nil, fakeClaims{path}), request)
	if err != nil || !bytes.Equal(content, disk()) || origin != "claim default/golden" {
		t.Errorf("%d bytes from %q, %v", len(content), origin, err)
	}
	request.Capacity = mib
	if _, _, err := get(t, newImporter(t, nil, fakeClaims{path}), request); !errors.Is(err, images.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func TestPlan(t *testing.T) {
	text := func(s string) *string { return &s }
	tests := []struct {
		reason string
		source *cdiv1.DataVolumeSource
		want   string
	}{
		{"nothing begins empty", nil, ""},
		{"blank begins empty", &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}}, ""},
		{"no source at all", &cdiv1.DataVolumeSource{}, "names no source"},
		{"s3", &cdiv1.DataVolumeSource{S3: &cdiv1.DataVolumeSourceS3{}}, "source.s3: use http"},
		{"gcs", &cdiv1.DataVolumeSource{GCS: &cdiv1.DataVolumeSourceGCS{}}, "source.gcs: use http"},
		{"upload", &cdiv1.DataVolumeSource{Upload: &cdiv1.DataVolumeSourceUpload{}}, "source.upload"},
		{"imageio", &cdiv1.DataVolumeSource{Imageio: &cdiv1.DataVolumeSourceImageIO{}}, "source.imageio"},
		{"vddk", &cdiv1.DataVolumeSource{VDDK: &cdiv1.DataVolumeSourceVDDK{}}, "source.vddk"},
		{"snapshot", &cdiv1.DataVolumeSource{Snapshot: &cdiv1.DataVolumeSourceSnapshot{}}, "source.snapshot"},
		{"a claim without a name", &cdiv1.DataVolumeSource{PVC: &cdiv1.DataVolumeSourcePVC{}}, "source.pvc.name"},
		{"a registry without an image", &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{}}, "source.registry.url: is missing"},
		{"an image stream", &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{ImageStream: text("x")}}, "imageStream"},
		{"a registry's certificates", &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: text("docker://x"), CertConfigMap: text("x")}}, "certConfigMap"},
		{"another machine's image", &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: text("docker://x"), Platform: &cdiv1.PlatformOptions{Architecture: "s390x"}}}, "architecture"},
		{"a registry by another scheme", &cdiv1.DataVolumeSource{Registry: &cdiv1.DataVolumeSourceRegistry{URL: text("quay.io/x")}}, "docker://"},
		{"a local file", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "file:///etc/passwd"}}, "want http:// or https://"},
		{"no URL", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "http://[proof-of-secret"}}, "want http:// or https://"},
		{"a server's certificates", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://x", CertConfigMap: "x"}}, "certConfigMap"},
		{"secret headers", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://x", SecretExtraHeaders: []string{"x"}}}, "secretExtraHeaders"},
		{"a header that is none", &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: "https://x", ExtraHeaders: []string{"a: b\r\nc: d"}}}, "extraHeaders"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			plan, err := newImporter(t, nil, nil).Plan(Request{Source: test.source})
			if test.want == "" {
				if err != nil || plan.Fill != nil {
					t.Errorf("Plan() = %+v, %v", plan, err)
				}
				return
			}
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "proof-of-secret") {
				t.Errorf("Plan() = %v, want %q", err, test.want)
			}
		})
	}
}

func TestCancelledImport(t *testing.T) {
	began := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(disk())
		_ = http.NewResponseController(w).Flush()
		close(began)
		<-r.Context().Done()
	}))
	defer server.Close()
	plan, err := newImporter(t, nil, nil).Plan(fromURL(server.URL))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := plan.Fill(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("Fill() = %v, want context.Canceled", err)
	}
}

func TestPublicURL(t *testing.T) {
	parsed, err := url.Parse("https://me:secret@example.com:8443/images/a.img?sig=secret#secret")
	if err != nil {
		t.Fatal(err)
	}
	if got := publicURL(parsed); got != "https://example.com:8443/images/a.img" {
		t.Errorf("publicURL() = %q", got)
	}
}
