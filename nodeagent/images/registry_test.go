package images

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// TestDebianRegistry runs against Debian's docker-registry.
func TestDebianRegistry(t *testing.T) {
	host := startDebianRegistry(t)
	disk := rawDisk("debian")
	ref := host + "/vms/test:v1"
	push(t, ref, imageOf(t, []item{{name: "disk/a.img", data: disk}}))
	cache := newCache(t, Options{})
	got, err := cache.Get(t.Context(), ref, GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantFile(t, got.Path, disk)
	push(t, ref, imageOf(t, []item{{name: "disk/a.img", data: rawDisk("moved")}}))
	if got, err = cache.Get(t.Context(), ref, GetOptions{PullPolicy: PullAlways}); err != nil {
		t.Fatal(err)
	}
	wantFile(t, got.Path, rawDisk("moved"))
	if _, err := cache.Get(t.Context(), host+"/vms/nothing:v1", GetOptions{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("Get() = %v, want ErrNotFound", err)
	}
}

func startDebianRegistry(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Fatal("docker-registry is not installed: run `make setup`")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	text := fmt.Sprintf("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %q}\n", dir, host)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "serve", config)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	})
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		connection, err := net.Dial("tcp", host)
		if err == nil {
			_ = connection.Close()
			return host
		}
		if time.Now().After(deadline) {
			t.Fatalf("docker-registry does not answer: %v", err)
		}
	}
}

func TestCredentials(t *testing.T) {
	registry := newRegistry(t)
	ref := registry.push("private/test:v1", imageOf(t, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	registry.handler = func(w http.ResponseWriter, r *http.Request, real http.Handler) {
		if user, password, _ := r.BasicAuth(); user != "git" || password != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		real.ServeHTTP(w, r)
	}
	config := func(server, auth string) string { return fmt.Sprintf(`{"auths":{%q:%s}}`, server, auth) }
	const good, bad = `{"auth":"Z2l0OnMzY3JldA=="}`, `{"username":"git","password":"wrong-s3cret"}`
	tests := []struct {
		reason, config string
		want           error
	}{
		{"the host's", config(registry.host, good), nil},
		{"as docker login writes it", config("https://"+registry.host+"/v1/", good), nil},
		{"of a path", config(registry.host+"/private", good), nil},
		{"the longest path wins", fmt.Sprintf(`{"auths":{%q:%s,%q:%s}}`, registry.host, bad, registry.host+"/private/test", good), nil},
		{"of another path", config(registry.host+"/other", good), ErrUnauthorized},
		{"wrong", config(registry.host, bad), ErrUnauthorized},
		{"none", `{}`, ErrUnauthorized},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			keychain, err := DockerConfig([]byte(test.config))
			if err != nil {
				t.Fatal(err)
			}
			_, err = newCache(t, Options{}).Get(t.Context(), ref, GetOptions{Keychain: keychain})
			if !errors.Is(err, test.want) {
				t.Errorf("Get() = %v, want %v", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows the password: %v", err)
			}
		})
	}
}

func TestDockerConfigForms(t *testing.T) {
	if _, err := DockerConfig([]byte(`{"auths": s3cret`)); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("DockerConfig() = %v", err)
	}
	keychain, err := DockerConfig([]byte(`{"auths":{"https://index.docker.io/v1/":{"username":"u","password":"p"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	repository, err := name.NewRepository("library/debian")
	if err != nil {
		t.Fatal(err)
	}
	got, err := keychain.Resolve(repository)
	if err != nil || got == authn.Anonymous {
		t.Errorf("Docker Hub's credentials were not found (%v)", err)
	}
}

func TestReferences(t *testing.T) {
	tests := []struct {
		reason, ref string
		insecure    []string
		want        error
	}{
		{"Docker Hub", "debian", nil, nil},
		{"a host with a port", "registry.example.com:5000/vm:v1", nil, nil},
		{"loopback needs no TLS", "127.0.0.1:5000/vm", nil, nil},
		{"localhost needs no TLS", "localhost:5000/vm", nil, nil},
		{"IPv6 loopback needs no TLS", "[::1]:5000/vm", nil, nil},
		{"a private address is not trusted by itself", "192.168.1.1:5000/vm", nil, ErrInvalid},
		{"a private address that is listed", "192.168.1.1:5000/vm", []string{"192.168.1.1:5000"}, nil},
		{"an empty reference", "", nil, ErrInvalid},
		{"a space", "a b", nil, ErrInvalid},
		{"an upper-case name", "example.com/VM", nil, ErrInvalid},
		{"a control character", "example.com/vm\n", nil, ErrInvalid},
		{"a digest that is none", "example.com/vm@sha256:123", nil, ErrInvalid},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, err := newCache(t, Options{Insecure: test.insecure}).parse(test.ref, nil)
			if !errors.Is(err, test.want) {
				t.Errorf("parse() = %v, want %v", err, test.want)
			}
		})
	}
}

func BenchmarkGetCached(b *testing.B) {
	registry := newRegistry(b)
	ref := registry.push("test:v1", imageOf(b, []item{{name: "disk/a.img", data: rawDisk("x")}}))
	cache := newCache(b, Options{})
	for b.Loop() {
		if _, err := cache.Get(b.Context(), ref, GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFetch1GiBSparse(b *testing.B) {
	registry := newRegistry(b)
	image := imageOf(b, []item{{name: "disk/a.img", data: make([]byte, 1<<30)}})
	ref := registry.push("test:v1", image)
	for b.Loop() {
		if _, err := newCache(b, Options{}).Get(b.Context(), ref, GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
