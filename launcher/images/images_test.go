package images_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/launcher/images"
)

// TestShareAndTake: whoever takes an image has a link to it that other programs can follow too, however often its container is started anew, and
// although the container that shared it is gone.
func TestShareAndTake(t *testing.T) {
	image, dir := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(image, "disk"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, "disk", "disk.img"), []byte("a disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, link := filepath.Join(dir, "root.socket"), filepath.Join(dir, "root")
	taken := make(chan error, 1)
	go func() { taken <- images.Take(t.Context(), socket, link) }() // before anybody shares it
	for range 2 {
		sharing, stop := context.WithCancel(t.Context())
		shared := make(chan error, 1)
		go func() { shared <- images.Share(sharing, image, socket) }()
		if err := <-taken; err != nil {
			t.Fatal(err)
		}
		taken <- images.Take(t.Context(), socket, link) // a launcher that was started anew
		stop()
		if err := <-shared; err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	content, err := exec.Command("cat", filepath.Join(link, "disk", "disk.img")).Output()
	if err != nil || string(content) != "a disk" {
		t.Errorf("%q, %v", content, err)
	}
	root, err := os.OpenRoot(link)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close() //nolint:errcheck // it is only read
	if content, err := root.ReadFile("disk/disk.img"); err != nil || string(content) != "a disk" {
		t.Errorf("%q, %v", content, err)
	}
}

// TestTakeInVain: an image that nobody shares is waited for only so long, and what is no folder is not taken.
func TestTakeInVain(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "root")
	limited, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := images.Take(limited, filepath.Join(dir, "nobody"), link); err == nil || !strings.Contains(err.Error(), "taking the image root: its container does not share it") {
		t.Error(err)
	}
	file, socket := filepath.Join(dir, "file"), filepath.Join(dir, "socket")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	sharing, stop := context.WithCancel(t.Context())
	shared := make(chan error, 1)
	go func() { shared <- images.Share(sharing, file, socket) }()
	if err := images.Take(t.Context(), socket, link); err == nil || !strings.Contains(err.Error(), "is no folder") {
		t.Error(err)
	}
	stop()
	if err := <-shared; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(link); !os.IsNotExist(err) {
		t.Error("there is a link")
	}
}

// TestInstall: the program is copied whole, for everybody to run.
func TestInstall(t *testing.T) {
	name := filepath.Join(t.TempDir(), "program")
	for range 2 {
		if err := images.Install(name); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o555 {
		t.Error(info, err)
	}
}
