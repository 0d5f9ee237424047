package isofs

import (
	"bytes"
	"context"
	"crypto/md5" // busybox's md5sum compares files; nothing depends on its strength
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// views are the mount options under which Linux reads the image in each of its ways.
func views() map[string]string {
	return map[string]string{
		"ro":                         "what every guest does: Rock Ridge",
		"ro,nojoliet":                "Rock Ridge where Joliet is not built in",
		"ro,norock":                  "Joliet, as Windows reads it",
		"ro,norock,nojoliet":         "plain ISO 9660, where Linux lowers the names",
		"ro,norock,nojoliet,map=off": "plain ISO 9660, the names as they are stored",
	}
}

// TestLinuxReads boots the test guest and has its kernel mount the image: a test machine's own kernel may lack iso9660.
func TestLinuxReads(t *testing.T) {
	image := writeImage(t, "cidata", manyFiles())
	console := bootGuest(t, image)
	for options, reason := range views() {
		t.Run(reason, func(t *testing.T) {
			seen := map[string]string{}
			_, section, _ := strings.Cut(console, "VIEW "+options+"\n")
			section, _, complete := strings.Cut(section, "END\n")
			if !complete {
				t.Fatalf("the guest did not mount the image:\n%s", console)
			}
			for line := range strings.Lines(section) {
				if sum, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
					seen[name] = sum
				}
			}
			for _, want := range manyFiles() {
				name := want.Name
				switch {
				case strings.Contains(options, "map=off"):
					name += ";1"
				case strings.Contains(options, "norock,nojoliet"):
					name = strings.ToLower(name)
				}
				sum := md5.Sum(want.Data)
				if seen[name] != hex.EncodeToString(sum[:]) {
					t.Errorf("%s has the sum %q", name, seen[name])
				}
			}
			if len(seen) != len(manyFiles()) {
				t.Errorf("%d files, want %d", len(seen), len(manyFiles()))
			}
		})
	}
}

// bootGuest runs the kernel and the userland of hack/guest with an init of our own, and returns its console.
func bootGuest(t *testing.T, image string) string {
	t.Helper()
	guest := guestDir(t)
	userland, err := os.ReadFile(filepath.Join(guest, "initramfs.img"))
	if err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nPATH=/bin\nmount -t proc proc /proc\nmount -t devtmpfs dev /dev\nmodprobe -a virtio_pci virtio_blk isofs\nexec </dev/null >/dev/console 2>&1\n"
	for options := range views() {
		script += fmt.Sprintf("echo VIEW %s\nmount -t iso9660 -o %s /dev/vda /mnt && (cd /mnt && find . -type f -exec md5sum {} + | sed 's:  ./:  :'; echo END)\numount /mnt\n", options, options)
	}
	script += "busybox poweroff -f\n"
	initramfs := filepath.Join(t.TempDir(), "initramfs.img")
	// The kernel unpacks one archive after the other, compressed or not, each starting at a multiple of 4 bytes.
	userland = append(userland, make([]byte, (4-len(userland)%4)%4)...)
	if err := os.WriteFile(initramfs, append(userland, cpio("isotest", script)...), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	console, err := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg", "-machine", "q35", "-m", "256M", "-nodefaults",
		"-no-reboot", "-display", "none", "-serial", "stdio", "-kernel", filepath.Join(guest, "vmlinuz"), "-initrd", initramfs,
		"-append", "console=ttyS0 quiet no_timer_check rdinit=/isotest panic=-1",
		"-drive", "if=virtio,format=raw,readonly=on,file="+image).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-system-x86_64: %v: %s", err, console)
	}
	return string(bytes.ReplaceAll(console, []byte("\r"), nil))
}

// guestDir is where `make guest` puts the test guest.
func guestDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("GITVIRT_GUEST")
	if dir == "" {
		out, err := exec.Command("../../../hack/guest/path.sh").Output()
		if err != nil {
			t.Fatalf("hack/guest/path.sh: %v", err)
		}
		dir = strings.TrimSpace(string(out))
	}
	if _, err := os.Stat(filepath.Join(dir, "complete")); err != nil {
		t.Fatalf("there is no test guest in %s: run `make guest`", dir)
	}
	return dir
}

// cpio returns an archive with one executable file, in the "newc" format of the kernel's initramfs (Documentation/driver-api/early-userspace/buffer-format.rst).
func cpio(name, content string) []byte {
	var out bytes.Buffer
	entry := func(name string, mode int, content string) {
		fmt.Fprintf(&out, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0)
		out.WriteString(name)
		out.WriteByte(0)
		out.Write(make([]byte, (4-out.Len()%4)%4))
		out.WriteString(content)
		out.Write(make([]byte, (4-out.Len()%4)%4))
	}
	entry(name, 0o100755, content)
	entry("TRAILER!!!", 0, "")
	return out.Bytes()
}
