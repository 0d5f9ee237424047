package libvirttest

import (
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// PushGuest serves the image of the guest that `make guest` builds from a registry, as long as the test runs, and returns
// its reference. It is a container disk, and has /boot/vmlinuz and /boot/initramfs.img for a kernel boot.
func PushGuest(t testing.TB) string {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(guestDir(t), "guest.oci"))
	if err != nil {
		t.Fatalf("the guest is missing (%v): run `make guest`", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) == 0 {
		t.Fatalf("the guest's layout: %v", err)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return push(t, image)
}

// PushFiles serves an image with files from a registry, as long as the test runs, and returns its reference.
func PushFiles(t testing.TB, files map[string][]byte) string {
	t.Helper()
	image, err := crane.Image(files)
	if err != nil {
		t.Fatal(err)
	}
	return push(t, image)
}

func push(t testing.TB, image v1.Image) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	reference := strings.TrimPrefix(server.URL, "http://") + "/gitvirt/image:1"
	if err := crane.Push(image, reference, crane.Insecure); err != nil {
		t.Fatal(err)
	}
	return reference
}

// GuestKernel returns the kernel and the initramfs of the guest that `make guest` builds, as files for <os><kernel> and <initrd>.
func GuestKernel(t testing.TB) (kernel, initramfs string) {
	t.Helper()
	dir := guestDir(t)
	return filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initramfs.img")
}
