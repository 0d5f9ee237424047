package libvirtrpc_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/launcher/libvirtrpc"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

func dial(t *testing.T, socket string) *libvirtrpc.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := libvirtrpc.Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// libvirt itself is the peer.
func TestConversation(t *testing.T) {
	d := libvirttest.Start(t)
	socket := filepath.Join(d.Dir, "sock", "libvirt-sock")
	client, listener := dial(t, socket), dial(t, socket)
	if err := listener.Subscribe(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "domain.xml")
	if err := os.WriteFile(path, []byte(libvirttest.DomainXML("guest", "", libvirttest.GuestIdle.Kernel(t))), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Virsh("define", path)

	var said *libvirtrpc.Error
	if err := client.PressPowerButton("guest"); !errors.As(err, &said) || !strings.Contains(err.Error(), "not running") {
		t.Errorf("the button of a domain that is off: %v", err)
	}
	if _, err := client.State("nobody"); !errors.As(err, &said) || said.Code != noDomain {
		t.Errorf("the state of no domain: %v", err)
	}
	expect := func(want ...string) {
		t.Helper()
		if names, err := client.Active(); err != nil || !slices.Equal(names, want) {
			t.Errorf("active: %q, %v; want %q", names, err, want)
		}
	}
	expect()
	d.Virsh("start", "guest")
	expect("guest")
	if state, err := client.State("guest"); err != nil || !state.Active() {
		t.Errorf("state %+v, %v", state, err)
	}
	if err := client.PressPowerButton("guest"); err != nil {
		t.Error(err)
	}
	d.Virsh("destroy", "guest")
	if state, err := client.State("guest"); err != nil || state != (libvirtrpc.State{State: libvirtrpc.Shutoff, Reason: libvirtrpc.ShutoffDestroyed}) {
		t.Errorf("state %+v, %v", state, err)
	}
	var events []libvirtrpc.Event
	for len(events) < 2 {
		event, err := listener.NextEvent()
		if err != nil {
			t.Fatal(err)
		}
		if event.Kind == libvirtrpc.EventStarted || event.Kind == libvirtrpc.EventStopped {
			events = append(events, event)
		}
	}
	want := []libvirtrpc.Event{
		{Domain: "guest", Kind: libvirtrpc.EventStarted},
		{Domain: "guest", Kind: libvirtrpc.EventStopped, Detail: libvirtrpc.StoppedDestroyed},
	}
	if !slices.Equal(events, want) {
		t.Errorf("events %+v, want %+v", events, want)
	}
	if err := client.Leave(); err != nil {
		t.Errorf("leaving: %v", err)
	}
}

// noDomain is libvirt's number for a domain that is not there (VIR_ERR_NO_DOMAIN).
const noDomain = 42

// A daemon that hangs accepts connections and never answers.
func TestDialEndsWithItsContext(t *testing.T) {
	d := libvirttest.Start(t)
	d.Signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if client, err := libvirtrpc.Dial(ctx, filepath.Join(d.Dir, "sock", "libvirt-sock")); err == nil {
		t.Errorf("a daemon that hangs has answered: %v", client)
	}
}

// FuzzPeer answers a client with anything at all. It must end with an error or an answer, and neither panic nor take memory that
// was only promised.
func FuzzPeer(f *testing.F) {
	ok := []byte("\x00\x00\x00\x1c\x20\x00\x80\x86\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00")
	f.Add([]byte{})
	f.Add(ok)
	list := []byte("\x00\x00\x00\x48\x20\x00\x80\x86\x00\x00\x00\x01\x00\x00\x01\x11\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00" +
		"\x00\x00\x00\x01\x00\x00\x00\x02vm\x00\x00" + "0123456789abcdef" + "\x00\x00\x00\x01\x00\x00\x00\x01")
	f.Add(append(append([]byte(nil), ok...), list...))
	f.Add(append(append([]byte(nil), ok...), "\x00\x00\x00\x20\x20\x00\x80\x86\x00\x00\x00\x01\x00\x00\x01\x11\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00\x00\xff\xff\xff\xff"...))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		path := filepath.Join(t.TempDir(), "s")
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() //nolint:errcheck // nothing was promised
		go func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(answer)
			_ = conn.(*net.UnixConn).CloseWrite()
			buffer := make([]byte, 1024)
			for err == nil {
				_, err = conn.Read(buffer)
			}
			_ = conn.Close()
		}()
		client, err := libvirtrpc.Dial(context.Background(), path)
		if err != nil {
			return
		}
		defer client.Close() //nolint:errcheck // nothing was promised
		_, _ = client.Active()
		_, _ = client.State("vm")
		_ = client.PressPowerButton("vm")
		_ = client.Subscribe()
		_, _ = client.NextEvent()
	})
}
