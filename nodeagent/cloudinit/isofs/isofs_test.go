package isofs

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manyFiles fill several directory sectors and one of them several data sectors.
func manyFiles() []File {
	files := []File{
		{Name: "user-data", Data: bytes.Repeat([]byte("0123456789"), 1000)},
		{Name: "meta-data", Data: []byte("{}")},
		{Name: "network-config", Data: nil},
		{Name: strings.Repeat("n", maxNameLength), Data: []byte("the longest name")},
	}
	for i := range 40 {
		files = append(files, File{Name: fmt.Sprintf("Key_%02d.pub", i), Data: fmt.Appendf(nil, "key %d", i)})
	}
	return files
}

func writeImage(t *testing.T, label string, files []File) string {
	t.Helper()
	image, err := Build(label, files)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image.iso")
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLinuxReads mounts the image with the kernel's own reader in each of its views.
func TestLinuxReads(t *testing.T) {
	image := writeImage(t, "cidata", manyFiles())
	tests := []struct {
		reason, options string
		lowered         bool
	}{
		{"what every guest does: Rock Ridge", "", false},
		{"Rock Ridge where Joliet is not built in", ",nojoliet", false},
		{"Joliet, as Windows reads it", ",norock", false},
		{"plain ISO 9660, where Linux lowers the names", ",norock,nojoliet", true},
		{"plain ISO 9660, the names as they are stored", ",norock,nojoliet,map=off", false},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			mount := t.TempDir()
			out, err := exec.Command("mount", "-t", "iso9660", "-o", "loop,ro"+test.options, image, mount).CombinedOutput()
			if err != nil {
				t.Fatalf("mount (as root): %v: %s", err, out)
			}
			t.Cleanup(func() {
				if out, err := exec.Command("umount", mount).CombinedOutput(); err != nil {
					t.Errorf("umount: %v: %s", err, out)
				}
			})
			name := func(f File) string {
				if test.lowered {
					return strings.ToLower(f.Name)
				}
				if strings.Contains(test.options, "map=off") {
					return f.Name + ";1"
				}
				return f.Name
			}
			expectFiles(t, os.DirFS(mount), name)
		})
	}
}

func expectFiles(t *testing.T, got fs.FS, name func(File) string) {
	t.Helper()
	entries, err := fs.ReadDir(got, ".")
	if err != nil {
		t.Fatal(err)
	}
	if want := manyFiles(); len(entries) != len(want) {
		t.Errorf("%d entries, want %d", len(entries), len(want))
	}
	for _, want := range manyFiles() {
		data, err := fs.ReadFile(got, name(want))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(data, want.Data) {
			t.Errorf("%s: %d bytes that differ from the %d that were written", want.Name, len(data), len(want.Data))
		}
	}
}

// TestDiskfsReads reads the image with an implementation that shares nothing with ours or the kernel's.
func TestDiskfsReads(t *testing.T) {
	handle, err := os.Open(writeImage(t, "cidata", manyFiles()))
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		t.Fatal(err)
	}
	volume, err := iso9660.Read(file.New(handle, true), info.Size(), 0, sectorSize)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimRight(volume.Label(), " \x00"); got != "cidata" {
		t.Errorf("label %q", got)
	}
	entries, err := volume.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Name()] = true
	}
	for _, want := range manyFiles() {
		if !names[want.Name] {
			t.Errorf("%s is missing", want.Name)
		}
	}
}

// TestLabel asks what a guest's udev asks: cloud-init finds the volume through /dev/disk/by-label.
func TestLabel(t *testing.T) {
	image := writeImage(t, "cidata", manyFiles())
	out, err := exec.Command("blkid", "-p", "-o", "value", "-s", "LABEL", image).CombinedOutput()
	if err != nil {
		t.Fatalf("blkid: %v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "cidata" {
		t.Errorf("blkid sees the label %q", got)
	}
}

func TestBuildIsDeterministic(t *testing.T) {
	files := manyFiles()
	first, err := Build("cidata", files)
	if err != nil {
		t.Fatal(err)
	}
	reversed := make([]File, 0, len(files))
	for i := len(files) - 1; i >= 0; i-- {
		reversed = append(reversed, files[i])
	}
	second, err := Build("cidata", reversed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the order of the files changed the image")
	}
}

func TestBuildRefuses(t *testing.T) {
	tests := []struct {
		reason, label string
		files         []File
		want          string
	}{
		{"a volume needs a label", "", nil, "volume label"},
		{"Joliet has room for 16 characters", strings.Repeat("x", 17), nil, "volume label"},
		{"a separator would leave the directory", "cidata", []File{{Name: "a/b"}}, "file name"},
		{"dots name directories", "cidata", []File{{Name: ".."}}, "file name"},
		{"a name has to fit its record", "cidata", []File{{Name: strings.Repeat("x", 65)}}, "file name"},
		{"control characters", "cidata", []File{{Name: "a\x00b"}}, "file name"},
		{"one name, two files", "cidata", []File{{Name: "a"}, {Name: "a"}}, "named twice"},
		{"it is built in memory", "cidata", []File{{Name: "a", Data: make([]byte, MaxSize+1)}}, "more than 64 MiB"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			_, err := Build(test.label, test.files)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("Build() = %v, want an error about %q", err, test.want)
			}
		})
	}
}
