package cloudinit

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func sample() Data {
	return Data{
		InstanceID:    InstanceID("web-1", "default"),
		LocalHostname: "web-1",
		UserData:      []byte("#cloud-config\npassword: hunter2\n"),
		NetworkData:   []byte("version: 2\n"),
		PublicKeys:    []string{"ssh-ed25519 AAAA"},
	}
}

// contents returns the files of an image, as go-diskfs reads them. (Package isofs has a guest's Linux read what it builds.)
func contents(t *testing.T, image string) map[string]string {
	t.Helper()
	handle, err := os.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = handle.Close() }() // only read
	info, err := handle.Stat()
	if err != nil {
		t.Fatal(err)
	}
	volume, err := iso9660.Read(file.New(handle, true), info.Size(), 0, 2048)
	if err != nil {
		t.Fatal(err)
	}
	if label := strings.TrimSpace(volume.Label()); label != "cidata" {
		t.Errorf("label %q", label)
	}
	entries, err := volume.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		data, err := volume.ReadFile(entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		files[entry.Name()] = string(data)
	}
	return files
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloudinit.iso")
	if changed, err := WriteFile(path, sample(), nil); err != nil || !changed {
		t.Fatalf("WriteFile() = %v, %v", changed, err)
	}
	want := map[string]string{
		"user-data":      "#cloud-config\npassword: hunter2\n",
		"meta-data":      `{"instance-id":"web-1.default","local-hostname":"web-1","public-keys":{"0":"ssh-ed25519 AAAA"}}`,
		"network-config": "version: 2\n",
	}
	got := contents(t, path)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !json.Valid([]byte(got["meta-data"])) {
		t.Error("the meta-data is not JSON")
	}
}

func TestBuild(t *testing.T) {
	tests := []struct {
		reason string
		change func(*Data)
		want   string // part of the error, or empty
	}{
		{"no user data is fine", func(d *Data) { d.UserData = nil }, ""},
		{"no hostname is fine", func(d *Data) { d.LocalHostname = "" }, ""},
		{"cloud-init needs an instance-id", func(d *Data) { d.InstanceID = "" }, "instance-id is empty"},
		{"meta-data does not override the fields", func(d *Data) { d.MetaData = map[string]any{"instance-id": "x"} }, "set by its own field"},
		{"what is not JSON cannot be passed on", func(d *Data) { d.MetaData = map[string]any{"f": func() {}} }, "encoding the meta-data"},
		{"oversized user data", func(d *Data) { d.UserData = make([]byte, MaxSize) }, "at most 8.0 MiB are allowed"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			data := sample()
			test.change(&data)
			_, err := Build(data)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("Build() = %v, want an error about %q", err, test.want)
			case err != nil && strings.Contains(err.Error(), "hunter2"):
				t.Errorf("the error shows the user data: %v", err)
			}
		})
	}
}

func TestNetworkConfigIsLeftOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloudinit.iso")
	data := sample()
	data.NetworkData = nil
	if _, err := WriteFile(path, data, nil); err != nil {
		t.Fatal(err)
	}
	if _, present := contents(t, path)["network-config"]; present {
		t.Error("an empty network-config would switch off cloud-init's DHCP fallback")
	}
}

func TestWriteFileRewritesOnlyWhatChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloudinit.iso")
	other := sample()
	other.UserData = []byte("#cloud-config\npassword: hunter3\n")
	steps := []struct {
		reason  string
		before  func() error
		data    Data
		changed bool
	}{
		{"the first time", nil, sample(), true},
		{"the same again", nil, sample(), false},
		{"other user data", nil, other, true},
		{"a file that others may read is replaced", func() error { return os.Chmod(path, 0o644) }, other, true},
		{"a file that was cut off is replaced", func() error { return os.Truncate(path, 4096) }, other, true},
		{"what a killed process left is swept", func() error {
			return os.WriteFile(diskfile.TemporaryName(path), []byte("half"), 0o600)
		}, sample(), true},
		{"a symbolic link is replaced, not followed", func() error {
			return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path))
		}, sample(), true},
	}
	for _, step := range steps {
		if step.before != nil {
			if err := step.before(); err != nil {
				t.Fatal(err)
			}
		}
		changed, err := WriteFile(path, step.data, nil)
		if err != nil || changed != step.changed {
			t.Errorf("%s: WriteFile() = %v, %v; want %v", step.reason, changed, err, step.changed)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: mode %v, %v; want a private regular file", step.reason, info.Mode(), err)
		}
		want, err := Build(step.data)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the file does not hold the image (%v)", step.reason, err)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files left, want 1 (%v)", len(entries), err)
	}
}

func TestWriteFileNoSpace(t *testing.T) {
	mount := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", mount).CombinedOutput(); err != nil {
		t.Fatalf("mount (as root): %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	_, err := WriteFile(filepath.Join(mount, "cloudinit.iso"), sample(), nil)
	if !errors.Is(err, diskfile.ErrNoSpace) {
		t.Errorf("WriteFile() = %v, want ErrNoSpace", err)
	}
	entries, err := os.ReadDir(mount)
	if err != nil || len(entries) != 0 {
		t.Errorf("%d files left on the full disk, want none (%v)", len(entries), err)
	}
}

func TestWriteFileOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloudinit.iso")
	if _, err := WriteFile(path, sample(), &diskfile.Owner{UID: 64055, GID: 108}); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("stat", "-c", "%u %g %a", path).Output()
	if err != nil || strings.TrimSpace(string(out)) != "64055 108 600" {
		t.Errorf("owner and mode %q, %v", out, err)
	}
}

func BenchmarkBuild(b *testing.B) {
	for b.Loop() {
		if _, err := Build(sample()); err != nil {
			b.Fatal(err)
		}
	}
}
