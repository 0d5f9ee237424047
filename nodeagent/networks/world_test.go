package networks_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	runtime.LockOSThread() // the first thread is nobody else's: it cannot end with a goroutine, and /proc/self is what it sees
	goleak.VerifyTestMain(m)
}

// space is a network namespace of a test's own, with no name anywhere.
type space struct {
	t    testing.TB
	file *os.File
	link *netlink.Handle
}

func newSpace(t testing.TB) *space {
	t.Helper()
	type result struct {
		file *os.File
		err  error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{err: err}
			return
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		made <- result{file, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatalf("making a network namespace takes root: %v", r.err)
	}
	link, err := netlink.NewHandleAt(netns.NsHandle(int(r.file.Fd())), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	s := &space{t: t, file: r.file, link: link}
	t.Cleanup(func() {
		link.Close()
		_ = r.file.Close()
	})
	s.run("ip", "link", "set", "lo", "up")
	return s
}

func (s *space) path() string { return fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()) }

// do runs f on a thread in the namespace.
func (s *space) do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		if err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// run runs a program in the namespace and returns what it prints.
func (s *space) run(program string, arguments ...string) string {
	s.t.Helper()
	var out []byte
	err := s.do(func() (err error) {
		out, err = exec.Command(program, arguments...).CombinedOutput()
		return err
	})
	if err != nil {
		s.t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// ip runs several commands of ip, one a line.
func (s *space) ip(commands string) {
	s.t.Helper()
	for line := range strings.Lines(commands) {
		if fields := strings.Fields(line); len(fields) > 0 {
			s.run("ip", fields...)
		}
	}
}

// listen answers each TCP connection to an address with the address that it came from.
func (s *space) listen(address string) {
	s.t.Helper()
	var listener net.Listener
	if err := s.do(func() (err error) { listener, err = net.Listen("tcp", address); return err }); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			from := netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr()
			_, _ = fmt.Fprintln(conn, from.Unmap())
			_ = conn.Close()
		}
	}()
	s.t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
}

// ask connects to an address and returns what is answered, "refused" or "silence".
func (s *space) ask(address string) string {
	s.t.Helper()
	var conn net.Conn
	err := s.do(func() (err error) { conn, err = net.DialTimeout("tcp", address, 700*time.Millisecond); return err })
	if err != nil {
		if netError := net.Error(nil); errors.As(err, &netError) && netError.Timeout() || errors.Is(err, unix.EHOSTUNREACH) {
			return "silence"
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			return "refused"
		}
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	word, _, err := bufio.NewReader(conn).ReadLine()
	if err != nil {
		return err.Error()
	}
	return string(word)
}

// from asks an address in the name of one of the namespace's own.
func (s *space) from(own, address string) string {
	s.t.Helper()
	dialer := net.Dialer{Timeout: 700 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(own)}}
	var conn net.Conn
	err := s.do(func() (err error) { conn, err = dialer.Dial("tcp", address); return err })
	if netError := net.Error(nil); errors.As(err, &netError) && netError.Timeout() {
		return "silence"
	}
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint("connected ", conn.Close())
}

// eventually waits until ask gets an answer: neighbours are found out about meanwhile.
func (s *space) eventually(address, want string) {
	s.t.Helper()
	var got string
	for range 20 {
		if got = s.ask(address); got == want {
			return
		}
	}
	s.t.Errorf("%s answers %q, want %q", address, got, want)
}

func openTap(name string, flags uint16) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// guest is a machine: a namespace whose network card eth0 is connected with a tap device in a Pod as QEMU would connect it.
type guest struct {
	*space
	dir    string
	unplug func()
}

// plug makes a guest with a card of this address.
func plug(t *testing.T, pod *space, tap, mac string, mtu int) *guest {
	t.Helper()
	g := &guest{space: newSpace(t), dir: t.TempDir()}
	var ends [2]*os.File
	if err := g.do(func() (err error) { ends[0], err = openTap("eth0", 0); return err }); err != nil {
		t.Fatal(err)
	}
	if err := pod.do(func() (err error) { ends[1], err = openTap(tap, 0); return err }); err != nil {
		t.Fatalf("opening %s as QEMU does: %v", tap, err)
	}
	done := make(chan struct{}, 2)
	for i := range ends {
		go func() {
			defer func() { done <- struct{}{} }()
			buffer := make([]byte, 65536)
			for {
				n, err := ends[i].Read(buffer)
				if err != nil {
					return
				}
				if _, err := ends[1-i].Write(buffer[:n]); err != nil && !errors.Is(err, unix.EIO) {
					return
				}
			}
		}()
	}
	plugged := true
	g.unplug = func() {
		if !plugged {
			return
		}
		plugged = false
		_, _ = ends[0].Close(), ends[1].Close()
		<-done
		<-done
	}
	t.Cleanup(g.unplug)
	g.run("sh", "-c", "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad") // nobody else has its addresses
	g.ip("link set eth0 address " + mac + " mtu " + fmt.Sprint(mtu) + "\nlink set eth0 up")
	return g
}

// lease asks for an address over DHCP with busybox's client, configures the card as a guest would, and returns what the client was told, "name=value".
func (g *guest) lease(arguments ...string) map[string]string {
	g.t.Helper()
	script, out := filepath.Join(g.dir, "script"), filepath.Join(g.dir, "lease")
	content := `#!/bin/sh
[ "$1" = bound ] || exit 0
busybox env > ` + out + `
ip addr replace "$ip/$mask" dev "$interface"
if [ -n "$staticroutes" ]; then
	set -- $staticroutes
	while [ -n "$1" ]; do
		if [ "$2" = 0.0.0.0 ]; then ip route replace "$1" dev "$interface"; else ip route replace "$1" via "$2" dev "$interface"; fi
		shift 2
	done
else
	for address in $router; do ip route replace default via "$address" dev "$interface"; done
fi
`
	if err := os.WriteFile(script, []byte(content), 0o700); err != nil {
		g.t.Fatal(err)
	}
	arguments = append([]string{"udhcpc", "-f", "-q", "-n", "-t", "5", "-T", "1", "-i", "eth0", "-s", script, "-O", "staticroutes", "-O", "mtu", "-O", "search", "-O", "hostname", "-O", "ntpsrv", "-O", "bootfile"}, arguments...)
	g.run("busybox", arguments...)
	env, err := os.ReadFile(out)
	if err != nil {
		g.t.Fatal(err)
	}
	told := map[string]string{}
	for line := range strings.Lines(string(env)) {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok && strings.ToLower(name) == name {
			told[name] = value
		}
	}
	return told
}

// node is the other side of a Pod's wire: a router with a bridge cni0, as CNI's bridge plugin makes it.
func newNode(t testing.TB) *space {
	t.Helper()
	node := newSpace(t)
	node.ip(`link add cni0 type bridge
		addr add 10.9.0.1/24 dev cni0
		-6 addr add fd00:9::1/64 dev cni0 nodad
		link set cni0 up
		addr add 192.0.2.1/32 dev lo
		-6 addr add 2001:db8::1/128 dev lo nodad`)
	return node
}

// attach makes a Pod on a node's bridge. Commands of ip give its eth0 addresses and routes.
func attach(t testing.TB, node *space, mac, commands string) *space {
	t.Helper()
	pod := newSpace(t)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth" + strings.ReplaceAll(mac, ":", "")[6:], MTU: 1450}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod.file.Fd())), PeerMTU: 1450}
	if err := node.link.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	node.ip("link set " + veth.Name + " master cni0\nlink set " + veth.Name + " type bridge_slave hairpin on\nlink set " + veth.Name + " up") // as the plugin does, so that Pods reach themselves through a Service
	pod.ip("link set eth0 address " + mac + "\nlink set eth0 up\n" + commands)
	return pod
}

// lease6 asks for addresses over DHCPv6, configures the card with them as a guest would, and returns the answer.
func (g *guest) lease6(mac string) *dhcpv6.Message {
	g.t.Helper()
	hardware, err := net.ParseMAC(mac)
	if err != nil {
		g.t.Fatal(err)
	}
	var reply *dhcpv6.Message
	var client *nclient6.Client
	err = g.do(func() (err error) {
		client, err = nclient6.New("eth0", nclient6.WithTimeout(time.Second), nclient6.WithRetry(10))
		return err
	})
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	advertised, err := client.Solicit(g.t.Context())
	if err == nil {
		reply, err = client.Request(g.t.Context(), advertised)
	}
	if err != nil {
		g.t.Fatalf("DHCPv6 from %s: %v", hardware, err)
	}
	for _, address := range reply.Options.OneIANA().Options.Addresses() {
		g.ip("-6 addr replace " + address.IPv6Addr.String() + "/128 dev eth0 nodad")
	}
	return reply
}

// linked waits until the guest has a link-local address that it may use.
func (g *guest) linked() {
	g.t.Helper()
	g.await("a link-local address", func() bool {
		out := g.run("ip", "-6", "addr", "show", "dev", "eth0", "scope", "link")
		return strings.Contains(out, "fe80") && !strings.Contains(out, "tentative")
	})
}

// await asks until something is so.
func (s *space) await(what string, so func() bool) {
	s.t.Helper()
	for range 500 {
		if so() {
			return
		}
		select {
		case <-s.t.Context().Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.t.Fatalf("%s did not come", what)
}
