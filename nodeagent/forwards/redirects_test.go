package forwards_test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table returns a table of the kernel's for a test.
func table(t *testing.T) forwards.Redirects {
	t.Helper()
	r := forwards.Redirects{Table: fmt.Sprintf("gitvirt-test-%d-%s", os.Getpid(), t.Name())}
	t.Cleanup(func() {
		if err := r.Set(nil); err != nil {
			t.Errorf("removing the table: %v", err)
		}
	})
	return r
}

func endpoint(address, protocol string, port uint16) forwards.Endpoint {
	return forwards.Endpoint{Address: netip.MustParseAddr(address), ForwardedPort: schemas.ForwardedPort{Protocol: protocol, Port: port}}
}

// listen listens on any port of an address and answers each connection with a word.
func listen(t *testing.T, address, word string) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintln(conn, word)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return netip.MustParseAddrPort(listener.Addr().String()).Port()
}

// ask returns the word of whoever answers at an address and port.
func ask(to forwards.Endpoint) string {
	conn, err := net.Dial("tcp4", netip.AddrPortFrom(to.Address, to.Port).String())
	if err != nil {
		return "refused"
	}
	defer func() { _ = conn.Close() }()
	word, _, _ := bufio.NewReader(conn).ReadLine()
	return string(word)
}

// TestRedirects: connections arrive at the port that QEMU would listen on, although somebody listens on all addresses.
func TestRedirects(t *testing.T) {
	r := table(t)
	const first, second = "127.214.9.1", "127.214.9.2"
	everywhere := listen(t, "0.0.0.0:0", "the host")
	one, two := listen(t, first+":0", "one"), listen(t, second+":0", "two")
	a, b := endpoint(first, "TCP", everywhere), endpoint(second, "TCP", everywhere)
	low := endpoint(first, "TCP", 7)
	udp := endpoint(first, "UDP", 53)
	for _, step := range []struct {
		reason       string
		want         map[forwards.Endpoint]uint16
		a, b, lowest string
	}{
		{"nothing", nil, "the host", "the host", "refused"},
		{"one guest", map[forwards.Endpoint]uint16{a: one}, "one", "the host", "refused"},
		{"two guests", map[forwards.Endpoint]uint16{a: one, b: two, low: one, udp: 61440}, "one", "two", "one"},
		{"the same again", map[forwards.Endpoint]uint16{a: one, b: two, low: one, udp: 61440}, "one", "two", "one"},
		{"another port, and one less", map[forwards.Endpoint]uint16{a: one, b: two, low: one + 0, endpoint(first, "TCP", 9): one}, "one", "two", "one"},
		{"a port that is led elsewhere", map[forwards.Endpoint]uint16{a: one, low: one, b: two + 1}, "one", "refused", "one"},
		{"the other only", map[forwards.Endpoint]uint16{b: two}, "the host", "two", "refused"},
		{"nothing again", nil, "the host", "the host", "refused"},
	} {
		if err := r.Set(step.want); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		have, err := r.List()
		if diff := cmp.Diff(step.want, have, cmpopts.EquateEmpty(), cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" || err != nil {
			t.Errorf("%s: %v, (-want +got)\n%s", step.reason, err, diff)
		}
		if got := [3]string{ask(a), ask(b), ask(low)}; got != [3]string{step.a, step.b, step.lowest} {
			t.Errorf("%s: answers %q", step.reason, got)
		}
	}
}

// TestManyRedirects are more than one message of netlink holds.
func TestManyRedirects(t *testing.T) {
	r := table(t)
	want := map[forwards.Endpoint]uint16{}
	for guest := range 40 {
		for port := range uint16(256) {
			want[endpoint(fmt.Sprintf("127.214.10.%d", guest+1), "TCP", port+1)] = 61440 + port
		}
	}
	if err := r.Set(want); err != nil {
		t.Fatal(err)
	}
	have, err := r.List()
	if err != nil || len(have) != len(want) {
		t.Errorf("%d redirects, want %d: %v", len(have), len(want), err)
	}
}
