package networks_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/nodeagent/networks"
)

// TestRealGuest boots a Linux in a Pod's namespace, on a libvirt that runs there too: what was planned is what the domain is rendered
// with, what libvirt opens, and what the guest says it has.
func TestRealGuest(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4+addresses6)
	m := machine(t, `{domain: {memory: {guest: 128Mi}, cpu: {cores: 2}, devices: {networkInterfaceMultiqueue: true, autoattachGraphicsDevice: false,
		interfaces: [{name: default, masquerade: {}}]}}, networks: [{name: default, pod: {}}]}`)
	opened, wanted := ensure(t, pod, t.TempDir(), m)
	serve(t, opened, wanted)
	if err := opened.Ensure(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	daemon := startIn(t, pod)
	kernel, initramfs := libvirttest.LinuxGuest(t)
	m.Spec.Domain.Firmware = &kubevirtv1.Firmware{KernelBoot: &kubevirtv1.KernelBoot{
		KernelArgs: libvirttest.GuestArguments, Container: &kubevirtv1.KernelBootContainer{Image: "guest", KernelPath: "/vmlinuz", InitrdPath: "/initramfs.img"},
	}}
	dir := t.TempDir()
	console := filepath.Join(dir, "console.log")
	document, err := domainxml.Render(domainxml.Machine{
		Address: m.Address, Spec: m.Spec, Volumes: []domainxml.Volume{{Name: domainxml.KernelBootVolume, Path: kernel, Initrd: initramfs}},
		Host: domainxml.Host{DomainType: "qemu", ConsoleLog: console, Dir: dir, Assignment: domainxml.Assignment{Taps: wanted.Taps()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "domain.xml")
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon.Virsh("define", "--validate", path)
	daemon.Virsh("start", domainxml.DomainName(m.Address))
	running := daemon.Virsh("dumpxml", domainxml.DomainName(m.Address))
	if differences, err := domainxml.CompareRunning(document, running); err != nil || len(differences) > 0 {
		t.Errorf("the running guest differs: %v, %v", differences, err)
	}
	if !strings.Contains(running, "queues='2'") {
		t.Errorf("the card does not have two queues:\n%s", running)
	}
	said := ""
	for until := time.Now().Add(2 * time.Minute); !strings.Contains(said, "gitvirt-guest: ready"); {
		content, err := os.ReadFile(console)
		if err != nil && !os.IsNotExist(err) || time.Now().After(until) {
			t.Fatalf("the guest says %q, %v", content, err)
		}
		said = string(content)
		<-time.After(50 * time.Millisecond)
	}
	for _, line := range []string{"gitvirt-guest: address eth0 10.0.2.2/24", "gitvirt-guest: nic eth0 mac=" + wanted.Interfaces[0].MAC} {
		if !strings.Contains(said, line) {
			t.Errorf("the guest does not say %q:\n%s", line, said)
		}
	}
	node.run("busybox", "ping", "-c", "1", "-W", "10", "10.9.0.5")
	if got := node.ask("10.9.0.5:80"); got != "refused" {
		t.Errorf("port 80 of the guest, where nobody listens: %s", got)
	}
	if again, err := domainxml.CompareRunning(document, daemon.Virsh("dumpxml", domainxml.DomainName(m.Address))); err != nil || len(again) > 0 {
		t.Errorf("the guest that has booted differs: %v, %v", again, err)
	}
}

// startIn starts a libvirtd in a namespace.
func startIn(t *testing.T, in *space) *libvirttest.Daemon {
	t.Helper()
	runtime.LockOSThread()
	back, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Setns(int(in.file.Fd()), unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setns(int(back.Fd()), unix.CLONE_NEWNET); err == nil {
			runtime.UnlockOSThread()
		}
		_ = back.Close()
	}()
	return libvirttest.Start(t)
}

// TestTapIsQEMUs: the user that QEMU runs as opens a tap device without any privilege, as often as it has queues; nobody else does.
func TestTapIsQEMUs(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4)
	spec := strings.Replace(masquerade, "{domain: {devices: {", "{domain: {cpu: {cores: 3}, devices: {networkInterfaceMultiqueue: true, ", 1)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, spec))
	if got := wanted.Taps()[0].Queues; got != 3 {
		t.Errorf("%d queues", got)
	}
	attachAs := func(user int, flags uint16, times int) (err error) {
		return pod.do(func() error { // the thread ends with its goroutine, and its user with it
			var files []int
			for range times {
				fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				files = append(files, fd)
			}
			defer func() {
				for _, fd := range files {
					_ = unix.Close(fd)
				}
			}()
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
				return errno
			}
			for _, fd := range files {
				request, err := unix.NewIfreq("tap0")
				if err != nil {
					return err
				}
				request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
				if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, row := range []struct {
		reason string
		user   int
		flags  uint16
		times  int
		want   error
	}{
		{"QEMU, all queues", networks.TapOwner, unix.IFF_MULTI_QUEUE, 3, nil},
		{"somebody else", networks.TapOwner + 1, unix.IFF_MULTI_QUEUE, 1, unix.EPERM},
		{"as another kind of device", networks.TapOwner, 0, 1, unix.EINVAL},
	} {
		if err := attachAs(row.user, row.flags, row.times); err != row.want { //nolint:errorlint // an errno as it came
			t.Errorf("%s: %v, want %v", row.reason, err, row.want)
		}
	}
	// A VM that asks for one queue now gets another device: the old one cannot be opened so.
	single, err := networks.Plan(machine(t, masquerade), networks.Facts{Links: []networks.Link{{Name: "eth0", MAC: podMAC, MTU: 1450, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Ensure(t.Context(), single); err != nil {
		t.Fatal(err)
	}
	if err := attachAs(networks.TapOwner, 0, 1); err != nil {
		t.Errorf("one queue: %v", err)
	}
}
