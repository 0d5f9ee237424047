package files

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// TestDevice: a claim of volumeMode Block is measured, and is a guest's alone unless it is shared.
func TestDevice(t *testing.T) {
	p := newPod(t)
	backing := filepath.Join(t.TempDir(), "device.img")
	if err := os.WriteFile(backing, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", "--sector-size", "4096", backing).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		t.Fatal(err)
	}
	// As a container runtime makes it: a node of the Pod's own.
	if err := unix.Mknod(p.at("/devices/data"), unix.S_IFBLK|0o600, int(stat.Rdev)); err != nil {
		t.Fatal(err)
	}
	request := protocol.FileRequest{Do: protocol.FindDevice, Volume: "data"}
	if found := must(t, p, request); found.Path != "/devices/data" || found.Format != "raw" || found.Capacity != 4<<20 || found.LogicalBlock != 4096 || found.PhysicalBlock != 4096 {
		t.Errorf("%+v", found)
	}
	file, err := os.OpenFile(p.at("/devices/data"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // nothing was written
	lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 201, Len: 1}
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	if _, err := p.carryOut(request, nil); kindOf(err) != protocol.ProblemInUse {
		t.Errorf("it is in use: %v", err)
	}
	request.Shared = true
	must(t, p, request)
}
