package libvirttest_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// await waits until a domain's state is what virsh calls it.
func await(t *testing.T, d *libvirttest.Daemon, domain, want string) {
	t.Helper()
	var got string
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = strings.TrimSpace(d.Virsh("domstate", "--reason", domain)); got == want {
			return
		}
	}
	t.Fatalf("domain %s is %s, want %s", domain, got, want)
}

func define(t *testing.T, d *libvirttest.Daemon, name string, guest libvirttest.Guest) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "domain.xml")
	if err := os.WriteFile(path, []byte(libvirttest.DomainXML(name, "", guest.Kernel(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Virsh("define", path)
}

func TestGuests(t *testing.T) {
	d := libvirttest.Start(t)
	define(t, d, "idle", libvirttest.GuestIdle)
	define(t, d, "obedient", libvirttest.GuestObedient)
	define(t, d, "self", libvirttest.GuestPowersOff)
	for _, name := range []string{"idle", "obedient", "self"} {
		d.Virsh("start", name)
	}
	await(t, d, "self", "shut off (shutdown)")
	press(t, func() error {
		return exec.Command("virsh", "-c", d.URI, "shutdown", "obedient", "--mode", "acpi").Run()
	}, func() bool { return strings.HasPrefix(d.Virsh("domstate", "obedient"), "shut off") })
	await(t, d, "obedient", "shut off (shutdown)")
	await(t, d, "idle", "running (booted)")
	d.CrashQEMU("idle")
	await(t, d, "idle", "shut off (crashed)")
}

// press presses the power button until the guest has heard it, which it does only once its kernel runs.
func press(t *testing.T, button func() error, heard func() bool) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if heard() {
			return
		}
		err = button() // fails when the guest goes off at this moment
	}
	t.Fatalf("the guest has not heard the power button; last error: %v", err)
}

// TestStopsWhileDown records what libvirt says about domains that stopped while it was away, which package hypervisor's
// StopReason promises.
func TestStopsWhileDown(t *testing.T) {
	d := libvirttest.Start(t)
	for _, name := range []string{"crashes", "stays", "destroyed"} {
		define(t, d, name, libvirttest.GuestIdle)
		d.Virsh("start", name)
	}
	monitor := filepath.Join(d.Dir, "monitor")
	xml := strings.Replace(libvirttest.DomainXML("ends", "", libvirttest.GuestObedient.Kernel(t)), "<domain type='qemu'>",
		"<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:commandline>"+
			"<qemu:arg value='-monitor'/><qemu:arg value='unix:"+monitor+",server=on,wait=off'/></qemu:commandline>", 1)
	path := filepath.Join(t.TempDir(), "ends.xml")
	if err := os.WriteFile(path, []byte(xml), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Virsh("define", path)
	d.Virsh("start", "ends")
	d.Virsh("destroy", "destroyed")

	d.Kill()
	d.CrashQEMU("crashes")
	conn, err := net.Dial("unix", monitor)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // nothing was promised
	said := bufio.NewReader(conn)
	press(t, func() error {
		_, err := io.WriteString(conn, "system_powerdown\ninfo status\n")
		return err
	}, func() bool {
		if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return false
		}
		for {
			line, err := said.ReadString('\n')
			if strings.Contains(line, "VM status: paused (shutdown)") {
				return true // libvirt has QEMU wait like this until it knows
			}
			if err != nil {
				return false
			}
		}
	})
	d.Start()

	await(t, d, "crashes", "shut off (crashed)")
	await(t, d, "ends", "shut off (shutdown)")
	await(t, d, "destroyed", "shut off (unknown)") // it was off before: the reason is forgotten
	await(t, d, "stays", "running (booted)")
}

func TestTwoDaemonsAreStrangers(t *testing.T) {
	a, b := libvirttest.Start(t), libvirttest.Start(t)
	define(t, a, "twin", libvirttest.GuestIdle)
	a.Virsh("start", "twin")
	if list := strings.TrimSpace(b.Virsh("list", "--all", "--name")); list != "" {
		t.Errorf("the second daemon sees the first one's domains: %q", list)
	}
	define(t, b, "twin", libvirttest.GuestIdle)
	b.Virsh("start", "twin")
	if a.QEMU("twin") == b.QEMU("twin") {
		t.Error("both daemons have the same QEMU")
	}
}
