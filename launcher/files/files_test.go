package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// newPod is a Pod whose file system begins in a folder, with the volumes root (an image), data (a claim) and the kernel's image.
func newPod(t *testing.T) Pod {
	t.Helper()
	p := Pod{Root: t.TempDir()}
	p.Capabilities = filepath.Join(p.Root, "capabilities")
	for _, dir := range []string{"disks", "claims/data", "devices", "images/root/disk", "images/kernel-boot/boot"} {
		if err := os.MkdirAll(filepath.Join(p.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put(t, p, "images/root/disk/disk.img", make([]byte, 1<<20))
	put(t, p, "images/kernel-boot/boot/vmlinuz", []byte("kernel"))
	return p
}

func put(t *testing.T, p Pod, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(p.Root, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, p Pod, request protocol.FileRequest) answer {
	t.Helper()
	out, err := p.carryOut(request, strings.NewReader(""))
	if err != nil {
		t.Fatalf("%+v: %v", request, err)
	}
	return out
}

// imageInfo is what qemu-img says of an image, which it finds nothing wrong with.
func imageInfo(t *testing.T, name string) (info struct {
	VirtualSize   int64  `json:"virtual-size"`
	ActualSize    int64  `json:"actual-size"`
	Format        string `json:"format"`
	Backing       string `json:"backing-filename"`
	BackingFormat string `json:"backing-filename-format"`
},
) {
	t.Helper()
	out, err := exec.Command("qemu-img", "info", "--output=json", "-f", "qcow2", name).CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &info)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if info.Backing == "" { // else it is opened, too
		if out, err := exec.Command("qemu-img", "check", "-f", "qcow2", name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return info
}

// TestImages: the images are such as QEMU makes, takes and fills to their last byte, also after they grew.
func TestImages(t *testing.T) {
	for _, sizes := range [][]int64{{512}, {1 << 20, 3 << 20}, {l1Covers, l1Covers + 512, 10 << 40}, {20 << 40}, {maxCapacity}} {
		p := newPod(t)
		request := protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/a/b.qcow2"}
		name := p.at(request.Path)
		for i, size := range sizes {
			request.Capacity = size
			if out := must(t, p, request); out.Capacity != size || out.Path != request.Path || out.Format != "qcow2" {
				t.Errorf("%+v", out)
			}
			must(t, p, request) // which changes nothing
			if info := imageInfo(t, name); info.VirtualSize != size || info.Backing != "" || info.ActualSize > 1<<20 {
				t.Errorf("%d: %+v", size, info)
			}
			last := "write -P 7 " + itoa(size-512) + " 512"
			read := "read -P 7 " + itoa(sizes[max(i-1, 0)]-512) + " 512"
			if out, err := exec.Command("qemu-io", "-f", "qcow2", "-c", last, "-c", read, name).CombinedOutput(); err != nil || strings.Contains(string(out), "failed") {
				t.Errorf("%d: %v: %s", size, err, out)
			}
		}
		request.Capacity = sizes[0] - 1
		if len(sizes) > 1 {
			if _, err := p.carryOut(request, nil); kindOf(err) != protocol.ProblemShrink {
				t.Errorf("an image shrinks: %v", err)
			}
		}
		imageInfo(t, name)
	}
}

func itoa(n int64) string { return string(json.RawMessage(mustJSON(n))) }

func mustJSON(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return out
}

// TestGrowsNoFurther: an image that has no more room in its table says so, and stays whole.
func TestGrowsNoFurther(t *testing.T) {
	p := newPod(t)
	request := protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/b.qcow2", Capacity: 1 << 20}
	must(t, p, request)
	request.Capacity = 17 << 40
	if _, err := p.carryOut(request, nil); err == nil || !strings.Contains(err.Error(), "at most 16.0 TiB") {
		t.Errorf("%v", err)
	}
	if info := imageInfo(t, p.at(request.Path)); info.VirtualSize != 1<<20 {
		t.Errorf("%+v", info)
	}
}

// TestOverlay: an overlay has its image below it, by its name in the Pod, and nothing of the last run.
func TestOverlay(t *testing.T) {
	p := newPod(t)
	put(t, p, "images/root/disk/disk.img", bytes.Repeat([]byte{5}, 1<<20))
	found := must(t, p, protocol.FileRequest{Do: protocol.FindImage, Volume: "root"})
	if found.Path != "/images/root/disk/disk.img" || found.Format != "raw" || found.Capacity != 1<<20 {
		t.Errorf("%+v", found)
	}
	request := protocol.FileRequest{Do: protocol.NewOverlay, Path: "/disks/root.qcow2", Capacity: found.Capacity, Backing: found.Path, BackingFormat: found.Format}
	for range 2 {
		must(t, p, request)
		info := imageInfo(t, p.at(request.Path))
		if info.VirtualSize != 1<<20 || info.Backing != found.Path || info.BackingFormat != "raw" {
			t.Errorf("%+v", info)
		}
		// QEMU reads the image below, which outside of the Pod has another name.
		overlay := "driver=qcow2,file.driver=file,file.filename=" + p.at(request.Path) + ",backing.driver=raw,backing.file.driver=file,backing.file.filename=" + p.at(found.Path)
		if out, err := exec.Command("qemu-img", "check", "--image-opts", overlay).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := exec.Command("qemu-io", "--image-opts", "-c", "read -P 5 0 4096", "-c", "write -P 7 0 4096", overlay).CombinedOutput()
		if err != nil || strings.Contains(string(out), "failed") {
			t.Fatalf("%v: %s", err, out)
		}
	}
}

// TestClaim: a claim's image is raw whatever is in it, is made once, grows and never shrinks.
func TestClaim(t *testing.T) {
	p := newPod(t)
	request := protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "data", Capacity: 1 << 20}
	path := p.at("/claims/data/disk.img")
	if out := must(t, p, request); out.Path != "/claims/data/disk.img" || out.Format != "raw" || out.Capacity != 1<<20 {
		t.Errorf("%+v", out)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Blocks > 8 {
		t.Errorf("%v: %d blocks", err, stat.Blocks)
	}
	// A guest writes the header of an image that would have QEMU open a file of the Pod.
	if out, err := exec.Command("qemu-img", "create", "-q", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", path+".evil", "1M").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	evil, err := os.ReadFile(path + ".evil")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(path, evil, 0o600), os.Truncate(path, 1<<20)); err != nil {
		t.Fatal(err)
	}
	request.Capacity = 2 << 20
	if out := must(t, p, request); out.Format != "raw" || out.Capacity != 2<<20 {
		t.Errorf("%+v", out)
	}
	request.Capacity = 0 // whatever there is
	if out := must(t, p, request); out.Capacity != 2<<20 {
		t.Errorf("%+v", out)
	}
	request.Capacity = 1 << 20
	if _, err := p.carryOut(request, nil); kindOf(err) != protocol.ProblemShrink {
		t.Errorf("it shrinks: %v", err)
	}
	request.Capacity, request.ReadOnly = 4<<20, true
	if out := must(t, p, request); out.Capacity != 2<<20 {
		t.Errorf("it grows although it is only read: %+v", out)
	}
}

// TestInUse: what a QEMU has open is neither made anew nor grown, unless it is shared.
func TestInUse(t *testing.T) {
	p := newPod(t)
	disk := protocol.FileRequest{Do: protocol.EnsureDisk, Path: "/disks/b.qcow2", Capacity: 1 << 20}
	claim := protocol.FileRequest{Do: protocol.EnsureClaim, Volume: "data", Capacity: 1 << 20}
	overlay := protocol.FileRequest{Do: protocol.NewOverlay, Path: "/disks/b.qcow2", Capacity: 1 << 20, Backing: "/images/root/disk/disk.img", BackingFormat: "raw"}
	must(t, p, disk)
	must(t, p, claim)
	for _, name := range []string{"/disks/b.qcow2", "/claims/data/disk.img"} {
		file, err := os.OpenFile(p.at(name), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() }) // nothing was written
		lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 201, Len: 1}
		if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
			t.Fatal(err)
		}
	}
	for _, request := range []protocol.FileRequest{disk, claim, overlay} {
		if _, err := p.carryOut(request, nil); kindOf(err) != protocol.ProblemInUse {
			t.Errorf("%s: %v", request.Do, err)
		}
	}
	claim.Shared, claim.Capacity = true, 2<<20
	if out := must(t, p, claim); out.Capacity != 1<<20 {
		t.Errorf("it grows while it is open: %+v", out)
	}
}

// TestFiles: files are written whole, found and removed.
func TestFiles(t *testing.T) {
	p := newPod(t)
	write := func(name, content string, size int64) error {
		_, err := p.carryOut(protocol.FileRequest{Do: protocol.WriteFile, Path: name, Size: size}, strings.NewReader(content))
		return err
	}
	for _, name := range []string{"/disks/vm/a.iso", "/disks/vm/a.iso", "/disks/vm/b.iso", "/disks/vm/ab.iso"} {
		if err := write(name, "content", 7); err != nil {
			t.Fatal(err)
		}
	}
	if err := write("/disks/vm/a.iso", "cut", 7); err == nil {
		t.Error("half a file is a file")
	}
	if content, err := os.ReadFile(p.at("/disks/vm/a.iso")); err != nil || string(content) != "content" {
		t.Errorf("%q, %v", content, err)
	}
	must(t, p, protocol.FileRequest{Do: protocol.RemoveFiles, Path: "/disks/vm/a*", Except: "/disks/vm/ab.iso"})
	must(t, p, protocol.FileRequest{Do: protocol.RemoveFiles, Path: "/disks/gone/a*"})
	left, err := filepath.Glob(p.at("/disks/vm/*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left are %v, %v", left, err)
	}
	must(t, p, protocol.FileRequest{Do: protocol.MakeFolder, Path: "/disks/folder/of/a/vm"})
	if found := must(t, p, protocol.FileRequest{Do: protocol.FindFile, Volume: "kernel-boot", Path: "/boot/vmlinuz"}); found.Path != "/images/kernel-boot/boot/vmlinuz" {
		t.Errorf("%+v", found)
	}
}

// TestCapabilities: what libvirt knows of QEMU is handed on, and not written over what it finds itself.
func TestCapabilities(t *testing.T) {
	p := newPod(t)
	const name = "3c76bc41d59c0c7314b1ae8e63f4f765d2cf16abaeea081b3ca1f5d8732f7bb1.xml"
	if _, err := p.readCapabilities(); kindOf(err) != protocol.ProblemMissing {
		t.Errorf("%v", err)
	}
	give := func(name, content string) error {
		_, err := p.carryOut(protocol.FileRequest{Do: protocol.WriteCapabilities, Path: name, Size: int64(len(content))}, strings.NewReader(content))
		return err
	}
	if err := errors.Join(give(name, "<qemuCaps/>"), give(name, "<other/>")); err != nil {
		t.Fatal(err)
	}
	if out, err := p.readCapabilities(); err != nil || out.Path != name || string(out.content) != "<qemuCaps/>" {
		t.Errorf("%+v, %v", out, err)
	}
	for _, bad := range []string{"../../x.xml", "x.xml", name + ".sh", ""} {
		if err := give(bad, "x"); kindOf(err) != protocol.ProblemForbidden {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
