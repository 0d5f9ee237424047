package isofs

import (
	"bytes"
	"fmt"
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
	for i := range 30 {
		files = append(files, File{Name: fmt.Sprintf("openstack/latest/file-%02d.json", i), Data: fmt.Appendf(nil, "file %d", i)})
	}
	files = append(files, File{Name: "openstack/content/0000", Data: []byte("deep")}, File{Name: "zone/a", Data: []byte("last")})
	return files
}

// rootEntries counts the names in the root.
func rootEntries(files []File) int {
	names := map[string]bool{}
	for _, file := range files {
		name, _, _ := strings.Cut(file.Name, "/")
		names[name] = true
	}
	return len(names)
}

// deepFiles lie in a directory each.
func deepFiles(n int) []File {
	var files []File
	for i := range n {
		files = append(files, File{Name: fmt.Sprintf("%s-%d/file", strings.Repeat("d", 40), i)})
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

// TestDiskfsReads reads the image with an implementation that shares nothing with ours or the kernel's.
func TestDiskfsReads(t *testing.T) {
	handle, err := os.Open(writeImage(t, "cidata", manyFiles()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = handle.Close() }() // only read
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
	if want := manyFiles(); len(entries) != rootEntries(want) {
		t.Errorf("%d entries, want %d", len(entries), rootEntries(want))
	}
	for _, want := range manyFiles() {
		got, err := volume.ReadFile(want.Name)
		if err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("%s: %d bytes that differ from the %d that were written (%v)", want.Name, len(got), len(want.Data), err)
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
		{"a label has room for 32 characters", strings.Repeat("x", 33), nil, "volume label"},
		{"an absolute path", "cidata", []File{{Name: "/a"}}, "file name"},
		{"a way out of the image", "cidata", []File{{Name: "a/../../b"}}, "file name"},
		{"dots name directories", "cidata", []File{{Name: ".."}}, "file name"},
		{"a file is no directory", "cidata", []File{{Name: "a"}, {Name: "a/b"}}, "named twice"},
		{"a path table has one sector", "cidata", deepFiles(60), "too many"},
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
