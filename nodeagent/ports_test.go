package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/schemas"
)

// table is a table of redirects in memory.
type table struct {
	mu        sync.Mutex
	redirects map[forwards.Endpoint]uint16
	broken    error
}

func (t *table) List() (map[forwards.Endpoint]uint16, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.redirects), t.broken
}

func (t *table) Set(redirects map[forwards.Endpoint]uint16) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.redirects = maps.Clone(redirects)
	}
	return t.broken
}

func (t *table) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.broken = err
}

// String lists where the redirects lead, such as "127.1.2.3 TCP 80 -> 61440".
func (t *table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var lines []string
	for from, to := range t.redirects {
		lines = append(lines, fmt.Sprintf("%s %s %d -> %d", from.Address, from.Protocol, from.Port, to))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// portRig is a rig whose redirects are in memory.
type portRig struct {
	*rig
	table *table
}

func newPortRig(t *testing.T) *portRig {
	t.Helper()
	r := &portRig{rig: &rig{t: t, dir: t.TempDir(), fake: fake.New(), guests: 1000}, table: &table{}}
	r.again()
	t.Cleanup(func() { r.stop() })
	return r
}

// again starts an agent that knows nothing of one before it.
func (r *portRig) again() {
	r.t.Helper()
	r.start(r.fake, nodeagent.WithRedirects(r.table), nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
}

func masqueraded(name string, ports ...kubevirtv1.Port) vm {
	return vm{name: name, change: func(s *kubevirtv1.VirtualMachineInstanceSpec) {
		s.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
		in := *kubevirtv1.DefaultMasqueradeNetworkInterface()
		in.Ports = ports
		s.Domain.Devices.Interfaces = []kubevirtv1.Interface{in}
	}}
}

func loopback(name string) string {
	return schemas.LoopbackAddress(schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}, "default").String()
}

// comes waits until the forwards of a guest's QEMU and the redirects are what is wanted.
func (r *portRig) comes(what, name string, forwards []string, redirects ...string) {
	r.t.Helper()
	slices.Sort(redirects)
	var have []string
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		have = r.fake.Forwards("default_" + name)
		if slices.Equal(have, forwards) && r.table.String() == strings.Join(redirects, "\n") {
			return
		}
	}
	r.t.Fatalf("%s: forwards are %q, want %q; redirects are\n%s\nwant\n%s\n%s", what, have, forwards, r.table, strings.Join(redirects, "\n"), r.logged.String())
}

// TestPorts follows the ports of a guest through its life, and that of its agent.
func TestPorts(t *testing.T) {
	r := newPortRig(t)
	at := loopback("a")
	shown := func(want ...string) func(*api.Domain) bool {
		return func(d *api.Domain) bool { return slices.Equal(d.GetAddresses(), want) && d.GetPortsProblem() == "" }
	}
	web := kubevirtv1.Port{Name: "web", Port: 80}
	dns := kubevirtv1.Port{Name: "dns", Port: 53, Protocol: "UDP"}
	ssh := kubevirtv1.Port{Name: "ssh", Port: 22}
	r.must(r.request(masqueraded("a", web, dns), ""))
	r.comes("off", "a", nil)
	r.must(r.request(masqueraded("a", web, dns), "on"))
	first := []string{"tcp:" + at + ":61440-:80", "udp:" + at + ":61440-:53"}
	redirects := []string{at + " TCP 80 -> 61440", at + " UDP 53 -> 61440"}
	r.comes("on", "a", first, redirects...)
	r.eventually("a", "reached", shown(at))

	r.stop()
	r.again()
	r.eventually("a", "reached after a restart of the agent", shown(at))
	r.comes("after a restart of the agent", "a", first, redirects...)

	r.must(r.request(masqueraded("a", ssh, dns), "")) // live
	r.comes("changed", "a", []string{"tcp:" + at + ":61440-:22", "udp:" + at + ":61440-:53"}, at+" TCP 22 -> 61440", at+" UDP 53 -> 61440")

	// What somebody closes by hand, and what another firewall throws away, comes back; what is not ours stays.
	ctx := context.Background()
	for _, command := range []string{"hostfwd_remove hostua-default tcp:" + at + ":61440", "hostfwd_add hostua-default tcp:127.0.0.1:2222-:22"} {
		if _, err := r.fake.Monitor(ctx, "default_a", command); err != nil {
			t.Fatal(err)
		}
	}
	r.comes("closed by hand", "a", []string{"tcp:127.0.0.1:2222-:22", "tcp:" + at + ":61440-:22", "udp:" + at + ":61440-:53"},
		at+" TCP 22 -> 61440", at+" UDP 53 -> 61440")
	if err := r.table.Set(nil); err != nil {
		t.Fatal(err)
	}
	r.comes("redirects lost", "a", []string{"tcp:127.0.0.1:2222-:22", "tcp:" + at + ":61440-:22", "udp:" + at + ":61440-:53"},
		at+" TCP 22 -> 61440", at+" UDP 53 -> 61440")

	r.must(r.request(masqueraded("a", ssh), "cycle"))
	r.comes("power cycle", "a", []string{"tcp:" + at + ":61440-:22"}, at+" TCP 22 -> 61440")
	r.fake.Down() // nobody knows anything, and nothing is taken away
	time.Sleep(100 * time.Millisecond)
	r.fake.Up()
	r.comes("the hypervisor is back", "a", []string{"tcp:" + at + ":61440-:22"}, at+" TCP 22 -> 61440")

	// An agent that ended after the ports were taken out of the record, and before they were closed.
	r.fake.Fail(fake.Monitor, func(context.Context, string) error { return errors.New("not now") })
	r.must(r.request(masqueraded("a"), ""))
	r.stop()
	r.fake.Fail(fake.Monitor, nil)
	r.again()
	r.comes("no ports", "a", nil)
	r.eventually("a", "not reached", shown())

	r.must(r.request(masqueraded("a", web), ""))
	r.comes("ports again", "a", []string{"tcp:" + at + ":61440-:80"}, at+" TCP 80 -> 61440")
	r.fake.GuestPowersOff("default_a")
	r.comes("powered off", "a", nil)
	r.eventually("a", "not reached", shown())
}

// TestPortsThatCannotBeOpened are told, tried again, and keep nobody from the others.
func TestPortsThatCannotBeOpened(t *testing.T) {
	r := newPortRig(t)
	at := loopback("a")
	in := masqueraded("a", kubevirtv1.Port{Port: 80}, kubevirtv1.Port{Port: 81})
	r.must(r.request(in, ""))
	r.fake.SetBusyPorts("default_a", "tcp:"+at+":61440", "tcp:"+at+":61442")
	r.must(r.request(in, "on"))
	r.comes("two ports of the host are taken", "a", []string{"tcp:" + at + ":61441-:80", "tcp:" + at + ":61443-:81"}, at+" TCP 80 -> 61441", at+" TCP 81 -> 61443")

	told := func(text string) func(*api.Domain) bool {
		return func(d *api.Domain) bool {
			return strings.Contains(d.GetPortsProblem(), text) && (text != "") == (d.GetPortsProblem() != "")
		}
	}
	r.must(r.request(masqueraded("a"), ""))
	r.comes("none", "a", nil)
	var busy []string
	for port := range 2000 {
		busy = append(busy, fmt.Sprintf("tcp:%s:%d", at, 61000+port))
	}
	r.fake.SetBusyPorts("default_a", busy...)
	udp := kubevirtv1.Port{Port: 53, Protocol: "UDP"}
	r.must(r.request(masqueraded("a", kubevirtv1.Port{Port: 80}, udp), ""))
	r.eventually("a", "told", told("port 80 (TCP): QEMU gets no port of the host for it: Could not set up host forwarding rule"))
	r.comes("the other port", "a", []string{"udp:" + at + ":61440-:53"}, at+" UDP 53 -> 61440")
	// Only one port becomes free: a round that is under way may be past it, and must not end at another.
	r.fake.SetBusyPorts("default_a", slices.DeleteFunc(slices.Clone(busy), func(port string) bool { return strings.HasSuffix(port, ":61440") })...)
	r.eventually("a", "mended", told(""))
	r.comes("mended", "a", []string{"tcp:" + at + ":61440-:80", "udp:" + at + ":61440-:53"}, at+" TCP 80 -> 61440", at+" UDP 53 -> 61440")

	// A QEMU that does not answer for a while loses nothing.
	r.fake.Fail(fake.Monitor, func(context.Context, string) error { return errors.New("the monitor hangs") })
	r.eventually("a", "told", told("the monitor hangs"))
	r.comes("nothing lost", "a", []string{"tcp:" + at + ":61440-:80", "udp:" + at + ":61440-:53"}, at+" TCP 80 -> 61440", at+" UDP 53 -> 61440")
	r.fake.Fail(fake.Monitor, nil)
	r.eventually("a", "mended", told(""))

	r.table.fail(errors.New("no nf_tables here"))
	r.eventually("a", "told", told("no nf_tables here"))
	r.eventually("a", "not reached", func(d *api.Domain) bool { return len(d.GetAddresses()) == 0 })
	r.table.fail(nil)
	r.eventually("a", "mended", told(""))
	r.eventually("a", "reached", func(d *api.Domain) bool { return slices.Equal(d.GetAddresses(), []string{at}) })
}

// TestTwoGuestsWithOneAddress: the first keeps it, the other is told, and gets it when the first is off.
func TestTwoGuestsWithOneAddress(t *testing.T) {
	one, two := twins()
	r := newPortRig(t)
	at := loopback(one)
	r.must(r.request(masqueraded(two, kubevirtv1.Port{Port: 80}), "on"))
	r.comes("first", two, []string{"tcp:" + at + ":61440-:80"}, at+" TCP 80 -> 61440")
	r.must(r.request(masqueraded(one, kubevirtv1.Port{Port: 81}), "on"))
	r.eventually(one, "told", func(d *api.Domain) bool {
		return d.GetPortsProblem() == "its address "+at+" is that of domain default_"+two+" too; rename one of the two machines"
	})
	r.comes("first", two, []string{"tcp:" + at + ":61440-:80"}, at+" TCP 80 -> 61440")
	if forwards := r.fake.Forwards("default_" + one); len(forwards) > 0 {
		t.Errorf("the second has %q", forwards)
	}
	r.fake.GuestPowersOff("default_" + two)
	r.comes("second", one, []string{"tcp:" + at + ":61440-:81"}, at+" TCP 81 -> 61440")
	r.eventually(one, "reached", func(d *api.Domain) bool {
		return slices.Equal(d.GetAddresses(), []string{at}) && d.GetPortsProblem() == ""
	})
}

// twins returns the names of two VMs with the same loopback address, in order.
func twins() (one, two string) {
	seen := map[netip.Addr]string{}
	for i := 0; ; i++ {
		name := fmt.Sprintf("vm-%06d", i)
		address := netip.MustParseAddr(loopback(name))
		if other := seen[address]; other != "" {
			return other, name
		}
		seen[address] = name
	}
}

// TestGuestWithoutPorts is left in peace: nobody speaks to its QEMU.
func TestGuestWithoutPorts(t *testing.T) {
	r := newPortRig(t)
	asked := make(chan string, 1000)
	r.fake.Fail(fake.Monitor, func(_ context.Context, name string) error { asked <- name; return nil })
	r.must(r.request(masqueraded("a"), "on"))
	r.must(r.request(masqueraded("b", kubevirtv1.Port{Port: 80}), "on"))
	r.comes("the other", "b", []string{"tcp:" + loopback("b") + ":61440-:80"}, loopback("b")+" TCP 80 -> 61440")
	time.Sleep(100 * time.Millisecond) // some reviews of the quick clock
	for len(asked) > 0 {
		if name := <-asked; name != "default_b" {
			t.Fatalf("the monitor of %s was asked", name)
		}
	}
	if r.state("a") != hypervisor.StateRunning {
		t.Error("a does not run")
	}
}
