package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// makeImage builds an image of a program on a layer, in a folder of its own and at a time of its own, and returns the archive's path.
func makeImage(t *testing.T, at time.Time) string {
	t.Helper()
	dir := t.TempDir()
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	err := errors.Join(
		archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Size: 4, Mode: 0o644, ModTime: time.Unix(0, 0)}),
		func() error { _, err := archive.Write([]byte("qemu")); return err }(), archive.Close(),
		os.WriteFile(filepath.Join(dir, "base.tar"), layer.Bytes(), 0o600),
		os.WriteFile(filepath.Join(dir, "program"), []byte("\x7fELF"), 0o700),
		os.WriteFile(filepath.Join(dir, "certificates"), []byte("trust"), 0o600),
		os.Chtimes(filepath.Join(dir, "program"), at, at),
	)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "image.tar")
	var said bytes.Buffer
	err = run(t.Context(), []string{
		"-out", out, "-name", "gitvirt.io/program:1", "-base", filepath.Join(dir, "base.tar"), "-user", "107:107",
		"-file", "/usr/bin/program=" + filepath.Join(dir, "program"), "-file", "/etc/ssl/certificates=" + filepath.Join(dir, "certificates"),
	}, &said, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "gitvirt.io/program:1: sha256:") {
		t.Errorf("it says %q", said.String())
	}
	return out
}

func TestEqualInputMakesAnEqualImage(t *testing.T) {
	var first []byte
	for _, at := range []time.Time{time.Unix(1, 0), time.Now()} {
		content, err := os.ReadFile(makeImage(t, at))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = content
		}
		if !bytes.Equal(first, content) {
			t.Error("the archive is another one")
		}
	}
}

func TestImage(t *testing.T) {
	folder := t.TempDir()
	from, err := os.Open(makeImage(t, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close() //nolint:errcheck // it was only read
	for archive := tar.NewReader(from); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var content []byte
		if err == nil {
			content, err = io.ReadAll(archive)
		}
		path := filepath.Join(folder, header.Name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%+v, %v", manifest, err)
	}
	if want := map[string]string{nameAnnotation: "gitvirt.io/program:1", refAnnotation: "1"}; !reflect.DeepEqual(manifest.Manifests[0].Annotations, want) {
		t.Errorf("annotations %v, want %v", manifest.Manifests[0].Annotations, want)
	}
	image, err := index.Image(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{User: "107:107", WorkingDir: "/", Entrypoint: []string{"/usr/bin/program"}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}}
	if !reflect.DeepEqual(config.Config, want) {
		t.Errorf("config %+v, want %+v", config.Config, want)
	}
	wantFiles := map[string]entry{"etc/passwd": {0o644, 0}, "usr/bin/program": {0o755, 0}, "etc/ssl/certificates": {0o644, 0}}
	if files := filesOf(t, image); !reflect.DeepEqual(files, wantFiles) {
		t.Errorf("files %v, want %v", files, wantFiles)
	}
}

// entry is what an image says of a file.
type entry struct {
	mode int64
	uid  int
}

func filesOf(t *testing.T, image v1.Image) map[string]entry {
	t.Helper()
	files := map[string]entry{}
	content := mutate.Extract(image)
	defer content.Close() //nolint:errcheck // it was only read
	for archive := tar.NewReader(content); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag == tar.TypeReg {
			files[header.Name] = entry{header.Mode, header.Uid}
		}
	}
}

// A container disk runs nothing, its files are QEMU's, and what a registry gets of a layout is what is in it.
func TestContainerDisk(t *testing.T) {
	dir := t.TempDir()
	disk, folder := filepath.Join(dir, "disk"), filepath.Join(dir, "disk.oci")
	if err := os.WriteFile(disk, []byte("QFI\xfb"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	name := strings.TrimPrefix(server.URL, "http://") + "/guest:1"
	for _, args := range [][]string{
		{"-layout", folder, "-name", "guest:latest", "-file", "/disk/disk.qcow2=" + disk},
		{"-from", folder, "-name", name, "-push"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	image, err := crane.Pull(name)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]entry{"disk/disk.qcow2": {0o444, qemuUser}}; !reflect.DeepEqual(filesOf(t, image), want) {
		t.Errorf("files %v, want %v", filesOf(t, image), want)
	}
	config, err := image.ConfigFile()
	if err != nil || !reflect.DeepEqual(config.Config, v1.Config{}) {
		t.Errorf("config %+v, %v; want none", config, err)
	}
}

func TestWrongArguments(t *testing.T) {
	for reason, args := range map[string][]string{
		"no name":          {"-out", "x", "-user", "0:0", "-file", "/a=b"},
		"no tag":           {"-out", "x", "-name", "host:5000/a", "-user", "0:0", "-file", "/a=b"},
		"no file":          {"-out", "x", "-name", "a:1", "-user", "0:0"},
		"a file and -from": {"-out", "x", "-name", "a:1", "-from", "x", "-file", "/a=b"},
		"nowhere to go":    {"-name", "a:1", "-file", "/a=b"},
		"no layout":        {"-out", "x", "-name", "a:1", "-from", t.TempDir()},
		"a relative path":  {"-out", "x", "-name", "a:1", "-user", "0:0", "-file", "a=b"},
		"a file not there": {"-out", filepath.Join(t.TempDir(), "x"), "-name", "a:1", "-user", "0:0", "-file", "/a=" + filepath.Join(t.TempDir(), "b")},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%s: no error", reason)
		}
	}
}
