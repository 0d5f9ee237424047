package networks_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/networks"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestNobodyElseEnters: the namespace of a Pod is entered by single system calls. It is not parallel, so that no other test has
// threads of its own in namespaces.
func TestNobodyElseEnters(t *testing.T) {
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4+addresses6)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, masquerade))
	stop := serve(t, opened, wanted)
	guest := plug(t, pod, "tap0", wanted.Interfaces[0].MAC, 1450)
	guest.lease()
	var elsewhere []string
	node.await("every thread's return", func() bool {
		here, err := os.Readlink("/proc/self/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		elsewhere = nil
		threads, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			if there, err := os.Readlink(thread); err == nil && there != here {
				elsewhere = append(elsewhere, thread)
			}
		}
		return len(elsewhere) == 0
	})
	stop()
}

func TestOpenRefuses(t *testing.T) {
	if _, err := networks.Open("/proc/self/ns/net", t.TempDir()); !errors.Is(err, networks.ErrHostNetwork) {
		t.Errorf("the node's own network: %v", err)
	}
	for _, path := range []string{"/etc/hostname", "/nowhere", "/proc/self/ns/uts"} {
		if pod, err := networks.Open(path, t.TempDir()); err == nil {
			t.Errorf("%s is opened", path)
			_ = pod.Close()
		}
	}
}

// TestClosed: a namespace that was closed is not mistaken for the node's own.
func TestClosed(t *testing.T) {
	t.Parallel()
	pod := attach(t, newNode(t), podMAC, addresses4)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, masquerade))
	for range 2 {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := opened.Read(t.Context())
	for what, err := range map[string]error{
		"Read": err, "Ensure": opened.Ensure(t.Context(), wanted), "Remove": opened.Remove(t.Context()), "Serve": opened.Serve(t.Context(), wanted),
	} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	again := open(t, pod, t.TempDir())
	if err := again.Ensure(t.Context(), wanted); err != nil {
		t.Error(err)
	}
}

// TestAdvertisementsStayOff: a Pod that listens to routers goes on when it forwards, one that must not does not begin to.
func TestAdvertisementsStayOff(t *testing.T) {
	t.Parallel()
	for before, after := range map[string]string{"0": "0", "1": "2", "2": "2"} {
		pod := attach(t, newNode(t), podMAC, addresses6)
		pod.run("sh", "-c", "echo "+before+" >/proc/sys/net/ipv6/conf/eth0/accept_ra")
		ensure(t, pod, t.TempDir(), machine(t, masquerade))
		if got := strings.TrimSpace(pod.run("cat", "/proc/sys/net/ipv6/conf/eth0/accept_ra")); got != after {
			t.Errorf("accept_ra %s becomes %s, want %s", before, got, after)
		}
	}
}

// TestState: what is noted belongs to one namespace, and without it nobody guesses.
func TestState(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	stateDir := t.TempDir()
	first := attach(t, node, podMAC, addresses4)
	ensure(t, first, stateDir, machine(t, bridge))

	// The Pod's sandbox was made anew, with another address.
	second := attach(t, node, "0a:58:0a:09:00:06", "addr add 10.9.0.6/24 dev eth0\nroute add default via 10.9.0.1")
	_, wanted := ensure(t, second, stateDir, machine(t, bridge))
	if in := wanted.Interfaces[0]; in.MAC != "0a:58:0a:09:00:06" || in.Guest.IPv4.String() != "10.9.0.6/24" {
		t.Errorf("the new Pod's guest has %s, %s", in.MAC, in.Guest.IPv4)
	}

	for _, damage := range []func() error{
		func() error { return os.WriteFile(filepath.Join(stateDir, "networks.json"), []byte(`{"names`), 0o600) },
		func() error { return os.Remove(filepath.Join(stateDir, "networks.json")) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if _, err := open(t, second, stateDir).Read(t.Context()); err == nil || !strings.Contains(err.Error(), "networks.json") {
			t.Errorf("without the state: %v", err)
		}
	}
}

// TestTakenAway: serving ends when the device does.
func TestTakenAway(t *testing.T) {
	t.Parallel()
	pod := attach(t, newNode(t), podMAC, addresses4)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, masquerade))
	served := make(chan error, 1)
	go func() { served <- opened.Serve(t.Context(), wanted) }()
	guest := plug(t, pod, "tap0", wanted.Interfaces[0].MAC, 1450)
	guest.lease() // somebody serves
	if err := opened.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-served:
		if err == nil || !strings.Contains(err.Error(), "interface default (eth0): device tap0 was taken away") {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("serving goes on without a device")
	}
}

// TestSeveral: networks of three kinds side by side, and none leads into another.
func TestSeveral(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4)
	lan, wire := newSpace(t), newSpace(t)
	pod.ip("link add net1 type veth peer name peer1\nlink add net2 type veth peer name peer2")
	for name, other := range map[string]*space{"peer1": lan, "peer2": wire} {
		link, err := pod.link.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := pod.link.LinkSetNsFd(link, int(other.file.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	pod.ip("addr add 10.8.0.5/24 dev net1\nlink set net1 up\nlink set net2 up\nroute add 10.77.0.0/16 via 10.8.0.1")
	lan.ip("addr add 10.8.0.1/24 dev peer1\naddr add 10.77.0.1/32 dev lo\nlink set peer1 up\nroute add default via 10.8.0.5")
	wire.ip("addr add 192.168.9.1/24 dev peer2\nlink set peer2 up")
	lan.listen("10.77.0.1:80")
	wire.listen("192.168.9.1:80")
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, `{domain: {devices: {interfaces: [{name: default, masquerade: {}}, {name: lan, bridge: {}}, {name: wire, bridge: {}, macAddress: 02-AA-BB-CC-DD-0E}]}},
		networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}, {name: wire, multus: {networkName: wire}}]}`))
	serve(t, opened, wanted)
	taps := wanted.Taps()

	first := plug(t, pod, taps[0].Device, taps[0].MAC, 1450)
	first.lease()
	if got := first.ask("10.77.0.1:80"); got != "silence" {
		t.Errorf("the pod network leads into another: %s", got)
	}
	second := plug(t, pod, taps[1].Device, taps[1].MAC, 1500)
	told(t, second.lease(), map[string]string{"ip": "10.8.0.5", "mask": "24", "router": "", "dns": "", "staticroutes": "10.77.0.0/16 10.8.0.1"})
	second.eventually("10.77.0.1:80", "10.8.0.5")
	third := plug(t, pod, taps[2].Device, taps[2].MAC, 1500)
	if taps[2].MAC != "02:aa:bb:cc:dd:0e" || wanted.Interfaces[2].Guest != nil {
		t.Errorf("the wire is %+v", wanted.Interfaces[2])
	}
	third.ip("addr add 192.168.9.2/24 dev eth0")
	third.eventually("192.168.9.1:80", "192.168.9.2")
}

// TestFlood: a guest that asks without end gets its address all the same, once it stops.
func TestFlood(t *testing.T) {
	t.Parallel()
	pod := attach(t, newNode(t), podMAC, addresses4)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, bridge))
	serve(t, opened, wanted)
	guest := plug(t, pod, "tap0", podMAC, 1450)
	hardware, err := net.ParseMAC(podMAC)
	if err != nil {
		t.Fatal(err)
	}
	discover, err := dhcpv4.NewDiscovery(hardware)
	if err != nil {
		t.Fatal(err)
	}
	var socket net.PacketConn
	if err := guest.do(func() (err error) { socket, err = net.ListenPacket("udp4", "0.0.0.0:68"); return err }); err != nil {
		t.Fatal(err)
	}
	raw, err := socket.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.BindToDevice(int(fd), "eth0"))
	}); err != nil {
		t.Fatal(err)
	}
	guest.ip("addr add 10.9.0.250/24 dev eth0")
	for range 5000 {
		_, err := socket.WriteTo(discover.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
	}
	_ = socket.Close()
	guest.ip("addr flush dev eth0")
	told(t, guest.lease("-t", "20"), map[string]string{"ip": "10.9.0.5"})
}

func TestPlanRefuses(t *testing.T) {
	facts := networks.Facts{Links: []networks.Link{{Name: "eth0", MAC: podMAC, MTU: 1500, Addresses: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24")}}}}
	for _, row := range []struct{ spec, want string }{
		{strings.ReplaceAll(masquerade, "pod: {}", "multus: {networkName: lan}"), "interface default: the Pod has no interface net1"},
		{strings.ReplaceAll(masquerade, "pod: {}", "pod: {vmNetworkCIDR: 10.0.2.0/31}"), `network "10.0.2.0/31" is too small`},
		{strings.ReplaceAll(masquerade, "pod: {}", "pod: {vmNetworkCIDR: 'fd00::/64'}"), `network "fd00::/64": want an address`},
		{strings.ReplaceAll(masquerade, "masquerade: {}", "masquerade: {}, macAddress: nonsense"), "reading its MAC address"},
		{strings.ReplaceAll(masquerade, "masquerade: {}", "slirp: {}"), "two kinds, masquerade and bridge"},
		{strings.ReplaceAll(masquerade, "networks: [{name: default", "networks: [{name: other"), "it has no network"},
	} {
		m := machine(t, row.spec)
		if _, err := networks.Plan(m, facts); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", row.spec, err, row.want)
		}
	}
	facts.Links = append(facts.Links, networks.Link{Name: "net1", MAC: podMAC, MTU: 1500})
	if _, err := networks.Plan(machine(t, strings.ReplaceAll(masquerade, "pod: {}", "multus: {networkName: lan}")), facts); err == nil || !strings.Contains(err.Error(), "masquerade is for the pod network") {
		t.Error(err)
	}
	twice := machine(t, `{domain: {devices: {interfaces: [{name: default, masquerade: {}}, {name: lan, bridge: {}}]}}, networks: [{name: default, pod: {}}, {name: lan, multus: {networkName: lan}}]}`)
	twice.Links = map[string]string{"lan": "eth0"}
	if _, err := networks.Plan(twice, facts); err == nil || !strings.Contains(err.Error(), "interface lan: the Pod's interface eth0 is that of default already") {
		t.Error(err)
	}
	m := machine(t, masquerade)
	wanted, err := networks.Plan(m, facts)
	if err != nil || wanted.Interfaces[0].MAC != schemas.MACAddress(m.Address, "default") {
		t.Errorf("%+v, %v", wanted, err)
	}
}

func TestAttachedLinks(t *testing.T) {
	m := machine(t, `{networks: [{name: default, pod: {}}, {name: one, multus: {networkName: lan}}, {name: two, multus: {networkName: other/lan}}, {name: three, multus: {networkName: lan}}]}`)
	const status = `[{"name": "cbr0", "interface": "eth0", "default": true, "ips": ["10.9.0.5"]}, {"name": "ns/lan", "interface": "net1"}, {"name": "other/lan", "interface": "pod7"}, {"name": "ns/lan", "interface": "net3"}]`
	got, err := networks.AttachedLinks(m.Spec, "ns", status)
	if diff := cmp.Diff(map[string]string{"default": "eth0", "one": "net1", "two": "pod7", "three": "net3"}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if got, err := networks.AttachedLinks(m.Spec, "ns", ""); err != nil || len(got) > 0 {
		t.Error(got, err)
	}
	if _, err := networks.AttachedLinks(m.Spec, "ns", "{"); err == nil {
		t.Error("half an annotation is read")
	}
}

func TestParseResolvConf(t *testing.T) {
	got := networks.ParseResolvConf("# kubelet's\nsearch a.example b.example\nnameserver 10.96.0.10\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver nonsense\noptions ndots:5\n")
	want := networks.DNS{Servers: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fe80::1")}, Search: []string{"a.example", "b.example"}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// BenchmarkEnsure is what a guest's network adds to the start of its Pod, and to each start of the agent.
func BenchmarkEnsure(b *testing.B) {
	for name, spec := range map[string]string{"masquerade": masquerade, "bridge": bridge} {
		node := newNode(b)
		pod := attach(b, node, podMAC, addresses4+addresses6)
		opened, wanted := ensure(b, pod, b.TempDir(), machine(b, spec))
		b.Run(name+"/made", func(b *testing.B) {
			for b.Loop() {
				if err := opened.Ensure(b.Context(), wanted); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/new", func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				if err := opened.Remove(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if err := opened.Ensure(b.Context(), wanted); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
