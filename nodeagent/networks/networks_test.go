package networks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/networks"
	"github.com/gitvirt/gitvirt/schemas"
)

const podMAC = "0a:58:0a:09:00:05"

// addresses are what CNI's bridge plugin gives a Pod.
const (
	addresses4 = `addr add 10.9.0.5/24 dev eth0
		route add default via 10.9.0.1
		`
	addresses6 = `-6 addr add fd00:9::5/64 dev eth0 nodad
		-6 route add default via fd00:9::1
		`
)

func machine(t testing.TB, spec string) networks.Machine {
	t.Helper()
	out := networks.Machine{
		Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "db"}, Spec: &kubevirtv1.VirtualMachineInstanceSpec{},
		DNS: networks.ParseResolvConf("search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\nnameserver fd00:96::a\noptions ndots:5\n"),
	}
	if err := yaml.UnmarshalStrict([]byte(spec), out.Spec); err != nil {
		t.Fatal(err)
	}
	return out
}

const masquerade = `{domain: {devices: {interfaces: [{name: default, masquerade: {}}]}}, networks: [{name: default, pod: {}}]}`

func open(t testing.TB, pod *space, stateDir string) *networks.Pod {
	t.Helper()
	out, err := networks.Open(pod.path(), stateDir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	return out
}

// ensure plans and makes the network of a machine in a Pod, as an agent does that was just started.
func ensure(t testing.TB, pod *space, stateDir string, m networks.Machine) (*networks.Pod, networks.Wanted) {
	t.Helper()
	opened := open(t, pod, stateDir)
	facts, err := opened.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wanted, err := networks.Plan(m, facts)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Ensure(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	return opened, wanted
}

// serve answers a guest until the test or stop ends it.
func serve(t *testing.T, pod *networks.Pod, wanted networks.Wanted) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- pod.Serve(ctx, wanted) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// told compares what a DHCP client was told.
func told(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, value := range want {
		if got[name] != value {
			t.Errorf("the guest is told %s=%q, want %q", name, got[name], value)
		}
	}
}

func TestMasquerade(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4+addresses6)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, masquerade))
	serve(t, opened, wanted)
	tap := wanted.Taps()[0]
	guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
	told(t, guest.lease(), map[string]string{
		"ip": "10.0.2.2", "mask": "24", "router": "10.0.2.1", "staticroutes": "", "dns": "10.96.0.10", "mtu": "1450", "hostname": "db",
		"search": "default.svc.cluster.local svc.cluster.local cluster.local", "domain": "default.svc.cluster.local", "serverid": "10.0.2.1", "lease": "4294967295",
	})
	node.listen("192.0.2.1:80")
	node.listen("[2001:db8::1]:80")
	pod.listen("10.0.2.1:8080")
	pod.listen("127.0.0.1:8081")
	pod.listen("[::]:8082")
	guest.listen(":80")

	guest.eventually("192.0.2.1:80", "10.9.0.5")
	node.eventually("10.9.0.5:80", "10.9.0.1")
	pod.eventually("127.0.0.1:80", "10.0.2.1")
	pod.eventually("192.0.2.1:80", "10.9.0.5") // the launcher's own traffic

	guest.linked()
	lease6 := guest.lease6(tap.MAC)
	if got := lease6.Options.OneIANA().Options.OneAddress().IPv6Addr.String(); got != "fd10:0:2::2" {
		t.Errorf("the guest has %s", got)
	}
	if dns, search := fmt.Sprint(lease6.Options.DNS()), fmt.Sprint(lease6.Options.DomainSearchList().Labels); dns != "[fd00:96::a]" || search != "[default.svc.cluster.local svc.cluster.local cluster.local]" {
		t.Errorf("the guest is told the name servers %s and the domains %s", dns, search)
	}
	guest.await("a default route of IPv6", func() bool {
		return strings.Contains(guest.run("ip", "-6", "route"), "default via fe80::1 dev eth0 proto ra")
	})
	if routes := guest.run("ip", "-6", "route"); !strings.Contains(routes, "fd10:0:2::/120 dev eth0 proto kernel") {
		t.Errorf("routes of the guest:\n%s", routes)
	}
	guest.eventually("[2001:db8::1]:80", "fd00:9::5")
	node.eventually("[fd00:9::5]:80", "fd00:9::1")

	// What the guest does not reach: the Pod, and its loopback least of all.
	guest.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet")
	node.ip("route add 10.0.2.0/24 via 10.9.0.5")
	guest.ip(`addr add 10.0.2.77/24 dev eth0
		route del local 127.0.0.1 dev lo table local
		route del local 127.0.0.0/8 dev lo table local
		route add 127.0.0.0/8 via 10.0.2.1`)
	var asked sync.WaitGroup
	for _, question := range [][2]string{
		{"10.0.2.2", "10.0.2.1:8080"},
		{"10.0.2.2", "10.0.2.1:8082"},
		{"10.0.2.2", "10.9.0.5:8082"},
		{"fd10:0:2::2", "[fd10:0:2::1]:8082"},
		{"10.0.2.2", "127.0.0.1:8081"},
		{"10.0.2.77", "192.0.2.1:80"}, // in another's name
	} {
		asked.Go(func() {
			if got := guest.from(question[0], question[1]); got != "silence" {
				t.Errorf("%s answers %s in the guest: %s", question[1], question[0], got)
			}
		})
	}
	asked.Wait()
}

// TestMasqueradePorts: with ports, only these are the guest's.
func TestMasqueradePorts(t *testing.T) {
	t.Parallel()
	node := newNode(t)
	pod := attach(t, node, podMAC, addresses4+addresses6)
	spec := strings.Replace(masquerade, "masquerade: {}", "masquerade: {}, ports: [{port: 80}, {port: 81}, {port: 7, protocol: UDP}]", 1)
	opened, wanted := ensure(t, pod, t.TempDir(), machine(t, spec))
	serve(t, opened, wanted)
	tap := wanted.Taps()[0]
	guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
	guest.lease()
	guest.linked()
	guest.lease6(tap.MAC)
	guest.await("an IPv6 route", func() bool { return strings.Contains(guest.run("ip", "-6", "route"), "default via fe80::1") })
	guest.listen(":80")
	guest.listen(":81")
	guest.listen(":82")
	pod.listen(":83")
	for _, address := range []string{"10.9.0.5", "[fd00:9::5]"} {
		from := map[string]string{"10.9.0.5": "10.9.0.1", "[fd00:9::5]": "fd00:9::1"}[address]
		node.eventually(address+":80", from)
		node.eventually(address+":81", from)
		node.eventually(address+":83", from)
		if got := node.ask(address + ":82"); got != "refused" {
			t.Errorf("port 82 of %s: %s", address, got)
		}
	}
	pod.eventually("127.0.0.1:81", "10.0.2.1")
	pod.eventually("127.0.0.1:83", "127.0.0.1")
}

// TestMasqueradeFamilies: a guest has the families that its Pod has, in the ranges that its manifest names.
func TestMasqueradeFamilies(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, addresses, spec string
		want4, want6          string
	}{
		{"IPv4", addresses4, masquerade, "10.0.2.2/24", ""},
		{"IPv6", addresses6, masquerade, "", "fd10:0:2::2/120"},
		{"both, elsewhere", addresses4 + addresses6, strings.Replace(masquerade, "pod: {}", "pod: {vmNetworkCIDR: 172.20.4.0/30, vmIPv6NetworkCIDR: 'fd77::/64'}", 1), "172.20.4.2/30", "fd77::2/64"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			pod := attach(t, node, podMAC, row.addresses)
			node.listen("192.0.2.1:80")
			node.listen("[2001:db8::1]:80")
			opened, wanted := ensure(t, pod, t.TempDir(), machine(t, row.spec))
			serve(t, opened, wanted)
			tap := wanted.Taps()[0]
			guest := plug(t, pod, tap.Device, tap.MAC, tap.MTU)
			if row.want4 != "" {
				told := guest.lease()
				if got := told["ip"] + "/" + told["mask"]; got != row.want4 {
					t.Errorf("the guest has %s, want %s", got, row.want4)
				}
				guest.eventually("192.0.2.1:80", "10.9.0.5")
			} else {
				guest.ip("addr add 10.0.2.2/24 dev eth0\nroute add default via 10.0.2.1")
				if got := guest.ask("192.0.2.1:80"); got != "silence" {
					t.Errorf("a Pod without IPv4 leads to it: %s", got)
				}
			}
			if row.want6 != "" {
				guest.linked()
				guest.lease6(tap.MAC)
				guest.await("an IPv6 route", func() bool { return strings.Contains(guest.run("ip", "-6", "route"), "default via fe80::1") })
				guest.eventually("[2001:db8::1]:80", "fd00:9::5")
				if got := wanted.Interfaces[0].Guest.IPv6[0].String(); got != row.want6 {
					t.Errorf("the guest has %s, want %s", got, row.want6)
				}
			} else if routes := guest.run("ip", "-6", "route"); strings.Contains(routes, "default") {
				t.Errorf("a Pod without IPv6 is the guest's router:\n%s", routes)
			}
		})
	}
}
