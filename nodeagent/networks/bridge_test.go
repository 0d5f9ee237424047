package networks_test

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/networks"
)

const bridge = `{domain: {devices: {interfaces: [{name: default, bridge: {}}]}}, networks: [{name: default, pod: {}}]}`

// equateNets compares addresses by their value.
func equateNets() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}) }

// TestBridge: the guest is where the Pod was.
func TestBridge(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	node.listen("192.0.2.1:80")
	node.listen("[2001:db8::1]:80")
	stateDir := t.TempDir()
	pod := attach(t, node, podMAC, addresses4+addresses6+"route add 198.51.100.0/24 via 10.9.0.77")
	before, err := open(t, pod, t.TempDir()).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opened, wanted := ensure(t, pod, stateDir, machine(t, bridge))
	stop := serve(t, opened, wanted)
	tap := wanted.Taps()[0]
	if tap.MAC != podMAC || tap.MTU != 1450 {
		t.Errorf("the tap is %+v", tap)
	}
	guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
	servers := map[string]net.PacketConn{"udp4": nil, "udp6": nil}
	for family, port := range map[string]string{"udp4": ":67", "udp6": ":547"} {
		if err := node.do(func() (err error) { servers[family], err = net.ListenPacket(family, port); return err }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = servers[family].Close() })
	}
	node.run("sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/cni0/forwarding") // so that it hears what routers hear
	told(t, guest.lease(), map[string]string{
		"ip": "10.9.0.5", "mask": "24", "router": "10.9.0.1", "dns": "10.96.0.10", "mtu": "1450", "hostname": "db",
		"staticroutes": "0.0.0.0/0 10.9.0.1 198.51.100.0/24 10.9.0.77",
	})
	guest.listen(":80")
	guest.eventually("192.0.2.1:80", "10.9.0.5")
	node.eventually("10.9.0.5:80", "10.9.0.1")
	guest.linked()
	guest.lease6(tap.MAC)
	guest.await("an IPv6 route", func() bool { return strings.Contains(guest.run("ip", "-6", "route"), "default via fe80::1") })
	guest.eventually("[2001:db8::1]:80", "fd00:9::5")
	node.eventually("[fd00:9::5]:80", "fd00:9::1")

	// Nothing of what was asked has left the Pod: it would have come before the connections.
	for family, server := range servers {
		raw, err := server.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Read(func(fd uintptr) bool {
			if n, _, err := unix.Recvfrom(int(fd), make([]byte, 1500), unix.MSG_DONTWAIT); err == nil {
				t.Errorf("the network hears %d bytes of DHCP over %s", n, family)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	// Another agent finds it all.
	stop()
	again, _ := ensure(t, pod, stateDir, machine(t, bridge))
	facts, err := again.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	noGateways := cmpopts.IgnoreFields(networks.Link{}, "Neighbours") // those were asked for
	if diff := cmp.Diff(before, facts, equateNets(), noGateways); diff != "" {
		t.Errorf("what the Pod was given (-before +after)\n%s", diff)
	}
	guest.eventually("[2001:db8::1]:80", "fd00:9::5")
	stop = serve(t, again, wanted)

	// The node's bridge gets another MAC address, as one does whose last Pod but this has gone.
	node.ip("link set cni0 address 02:11:22:33:44:55")
	guest.eventually("192.0.2.1:80", "10.9.0.5")
	guest.eventually("[2001:db8::1]:80", "fd00:9::5")

	stop()
	if err := again.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, pod, t.TempDir()).Read(t.Context()); err != nil || cmp.Diff(before, got, equateNets(), noGateways) != "" {
		t.Errorf("after Remove: %v\n%s", err, cmp.Diff(before, got, equateNets(), noGateways))
	}
	if _, err := os.Stat(filepath.Join(stateDir, "networks.json")); !os.IsNotExist(err) {
		t.Errorf("the state is still there: %v", err)
	}
	pod.eventually("192.0.2.1:80", "10.9.0.5")
	pod.eventually("[2001:db8::1]:80", "fd00:9::5")
}

// TestGatewayOutside: a Pod with an address of its own and nothing else, as Calico and AWS make it.
func TestGatewayOutside(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, node, pod string
	}{
		{"nobody answers for the gateway", "", "neigh add 169.254.1.1 lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent\n"},
		{"the node answers for everybody", "echo 1 >/proc/sys/net/ipv4/conf/cali0/proxy_arp; echo 0 >/proc/sys/net/ipv4/neigh/cali0/proxy_delay; ip route add default dev lo", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			node, pod := newSpace(t), newSpace(t)
			veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cali0", MTU: 1450}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod.file.Fd())), PeerMTU: 1450}
			if err := node.link.LinkAdd(veth); err != nil {
				t.Fatal(err)
			}
			node.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/cali0/accept_dad; echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
			node.ip(`link set cali0 address ee:ee:ee:ee:ee:ee
				link set cali0 up
				addr add 192.0.2.1/32 dev lo
				-6 addr add 2001:db8::1/128 dev lo nodad
				route add 10.1.2.3/32 dev cali0 src 192.0.2.1
				-6 route add fd00:1::3/128 dev cali0 src 2001:db8::1`)
			if row.node != "" {
				node.run("sh", "-c", row.node)
			}
			pod.ip(`link set eth0 up
				addr add 10.1.2.3/32 dev eth0
				route add 169.254.1.1 dev eth0 scope link
				route add default via 169.254.1.1
				-6 addr add fd00:1::3/128 dev eth0 nodad
				-6 route add default via fe80::ecee:eeff:feee:eeee dev eth0
				` + row.pod)
			node.listen("192.0.2.1:80")
			node.listen("[2001:db8::1]:80")
			opened, wanted := ensure(t, pod, t.TempDir(), machine(t, bridge))
			stop := serve(t, opened, wanted)
			tap := wanted.Taps()[0]
			guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
			told(t, guest.lease(), map[string]string{
				"ip": "10.1.2.3", "mask": "32", "router": "169.254.1.1", "staticroutes": "169.254.1.1/32 0.0.0.0 0.0.0.0/0 169.254.1.1",
			})
			guest.listen(":80")
			guest.eventually("192.0.2.1:80", "10.1.2.3")
			node.eventually("10.1.2.3:80", "192.0.2.1")
			guest.linked()
			guest.lease6(tap.MAC)
			guest.await("an IPv6 route", func() bool {
				return strings.Contains(guest.run("ip", "-6", "route"), "default via fe80::ecee:eeff:feee:eeee dev eth0 proto ra")
			})
			guest.eventually("[2001:db8::1]:80", "fd00:1::3")
			node.eventually("[fd00:1::3]:80", "2001:db8::1")
			before := wanted.Interfaces[0].Link
			stop()
			if err := opened.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			pod.eventually("192.0.2.1:80", "10.1.2.3")
			after, err := open(t, pod, t.TempDir()).Read(t.Context())
			if diff := cmp.Diff(before, after.Links[0], equateNets(), cmpopts.IgnoreFields(networks.Link{}, "Neighbours")); err != nil || diff != "" {
				t.Errorf("after Remove: %v, (-before +after)\n%s", err, diff)
			}
		})
	}
}
