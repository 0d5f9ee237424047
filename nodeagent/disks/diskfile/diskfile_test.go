package diskfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDetectAgreesWithQemuImg(t *testing.T) {
	tests := []struct {
		reason, format string
		options        []string
		want           Format
		text           string
	}{
		{"raw", "raw", nil, Raw, ""},
		{"qcow2", "qcow2", nil, QCOW2, ""},
		{"qcow2 as old QEMU wrote it", "qcow2", []string{"-o", "compat=0.10"}, QCOW2, ""},
		{"qcow2 with zstd and extended L2 entries", "qcow2", []string{"-o", "compression_type=zstd,extended_l2=on,cluster_size=128k"}, QCOW2, ""},
		{"encrypted qcow2", "qcow2", []string{"--object", "secret,id=s,data=0123456789abcdef", "-o", "encrypt.format=aes,encrypt.key-secret=s"}, "", "encrypted"},
		{"qcow2 with an external data file", "qcow2", []string{"-o", "data_file=DATA"}, "", "in another file"},
		{"qcow 1", "qcow", nil, "", "qcow version 1"},
		{"VMDK", "vmdk", nil, "", "is VMDK"},
		{"VMDK in several files", "vmdk", []string{"-o", "subformat=monolithicFlat"}, "", "is VMDK (descriptor)"},
		{"VHDX", "vhdx", nil, "", "is VHDX"},
		{"VHD", "vpc", nil, "", "is VHD"},
		{"VHD of a fixed size", "vpc", []string{"-o", "subformat=fixed"}, "", "is VHD"},
		{"VDI", "vdi", nil, "", "is VDI"},
		{"QED", "qed", nil, "", "is QED"},
		{"Parallels", "parallels", nil, "", "is Parallels"},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "disk")
			arguments := []string{"create", "-q", "-f", test.format}
			for _, option := range test.options {
				arguments = append(arguments, strings.ReplaceAll(option, "DATA", filepath.Join(dir, "data")))
			}
			if out, err := exec.Command("qemu-img", append(arguments, path, "4M")...).CombinedOutput(); err != nil {
				t.Fatalf("qemu-img (make setup installs it): %v: %s", err, out)
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			info, err := Detect(bytes.NewReader(raw), int64(len(raw)))
			if test.want == "" {
				var unusable *FormatError
				if !errors.As(err, &unusable) || !strings.Contains(err.Error(), test.text) || unusable.Fix == "" {
					t.Errorf("Detect() = %+v, %v; want a FormatError about %q with a fix", info, err, test.text)
				}
				return
			}
			if err != nil || info.Format != test.want || info.VirtualSize != 4<<20 {
				t.Errorf("Detect() = %+v, %v", info, err)
			}
		})
	}
}

func FuzzDetect(f *testing.F) {
	f.Add([]byte("QFI\xfb\x00\x00\x00\x03"))
	f.Add(append([]byte("QFI\xfb\x00\x00\x00\x02"), make([]byte, 100)...))
	f.Add([]byte("KDMV"))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, image []byte) {
		info, err := Detect(bytes.NewReader(image), int64(len(image)))
		if err != nil {
			return
		}
		if info.VirtualSize <= 0 || info.VirtualSize%sectorSize != 0 {
			t.Errorf("virtual size %d", info.VirtualSize)
		}
		if info.Format == Raw && bytes.HasPrefix(image, []byte(qcow2Magic)) {
			t.Error("qcow2 was taken for raw")
		}
	})
}

func TestWrite(t *testing.T) {
	broken := errors.New("broken")
	tests := []struct {
		reason string
		before string
		fill   func(*os.File) error
		want   string
		fails  bool
	}{
		{"a new file", "", func(f *os.File) error { _, err := f.WriteString("new"); return err }, "new", false},
		{"a file that is replaced", "old", func(f *os.File) error { _, err := f.WriteString("new"); return err }, "new", false},
		{"a failure leaves the old file", "old", func(f *os.File) error { _, _ = f.WriteString("ne"); return broken }, "old", true},
		{"a failure leaves no new file", "", func(*os.File) error { return broken }, "", true},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if test.before != "" {
				if err := os.WriteFile(path, []byte(test.before), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(TemporaryName(path), []byte("left by a killed process"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := Write(path, WriteOptions{Mode: 0o640}, test.fill)
			if (err != nil) != test.fails || (test.fails && !errors.Is(err, broken)) {
				t.Errorf("Write() = %v", err)
			}
			got, err := os.ReadFile(path)
			if test.want == "" {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("a file was left: %q, %v", got, err)
				}
			} else if err != nil || string(got) != test.want {
				t.Errorf("the file holds %q, %v; want %q", got, err, test.want)
			}
			if _, err := os.Lstat(TemporaryName(path)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an unfinished file is left: %v", err)
			}
			if info, err := os.Stat(path); err == nil && !test.fails && info.Mode() != 0o640 {
				t.Errorf("mode %v", info.Mode())
			}
		})
	}
}

func TestCheckUnusedSeesOurOwnProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // nothing is written
	if err := CheckUnused(path); err != nil {
		t.Errorf("a file that is open, and not as a disk: %v", err)
	}
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 201, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if err := CheckUnused(path); !errors.Is(err, ErrInUse) {
		t.Errorf("CheckUnused() = %v, want ErrInUse", err)
	}
	if err := CheckUnused(path + ".x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CheckUnused() = %v, want fs.ErrNotExist", err)
	}
}

func TestFormatBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 5 << 40: "5.0 TiB", 1<<63 - 1: "8.0 EiB",
	} {
		if got := FormatBytes(n); got != want {
			t.Errorf("FormatBytes(%d) = %q, want %q", n, got, want)
		}
	}
}
