package libvirt

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// TestDownAtStart: a daemon that is not there yet fails calls and, once there, is found without help.
func TestDownAtStart(t *testing.T) {
	daemon := libvirttest.Start(t)
	daemon.Kill()
	h := connect(t, daemon.URI)
	ctx, cancel := context.WithCancel(t.Context())
	connected := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Events(ctx, func(event hypervisor.Event) {
			if event.Kind != hypervisor.EventConnected {
				t.Errorf("event %v before the daemon was there", event)
			}
			close(connected)
			cancel()
		})
	}()
	for range 100 {
		if _, err := h.Names(ctx); !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Fatalf("Domains: %v, want %v", err, hypervisor.ErrUnavailable)
		}
	}
	daemon.Start()
	<-connected
	<-ended
	if _, err := h.Names(t.Context()); err != nil {
		t.Errorf("Domains when the daemon is there: %v", err)
	}
}

// TestNoDaemonAnywhere: no socket, no such driver.
func TestNoDaemonAnywhere(t *testing.T) {
	for _, uri := range []string{
		"qemu+unix:///system?socket=" + filepath.Join(t.TempDir(), "absent"), "nonsense:///", "test:///absent/node.xml",
	} {
		if _, err := connect(t, uri).Names(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Errorf("%s: error is %v, want %v", uri, err, hypervisor.ErrUnavailable)
		}
	}
}

// TestHangingDaemon: calls into a daemon that accepts and never answers end with their contexts, new connections are given
// up, and all is well when it wakes.
func TestHangingDaemon(t *testing.T) {
	daemon := libvirttest.Start(t)
	h := connect(t, daemon.URI)
	if err := h.Define(t.Context(), libvirttest.DomainXML("a", "", "")); err != nil {
		t.Fatal(err)
	}
	daemon.Signal(syscall.SIGSTOP)

	var calls sync.WaitGroup
	for range maxCalls + 10 {
		calls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if _, err := h.Domain(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Domain: %v, want %v", err, context.DeadlineExceeded)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	h.Events(ctx, func(hypervisor.Event) {}) // returns, although it cannot tell the daemon
	calls.Wait()
	if n := len(h.tokens); n > maxCalls {
		t.Errorf("%d calls were abandoned, at most %d may be", n, maxCalls)
	}

	stranger := connect(t, daemon.URI)
	if _, err := stranger.Names(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("first connection: %v, want %v", err, hypervisor.ErrUnavailable)
	}

	daemon.Signal(syscall.SIGCONT)
	for _, h := range []*Hypervisor{h, stranger} {
		settle(t, h)
	}
}

// settle waits until the hypervisor is available and returns domain a.
func settle(t *testing.T, h *Hypervisor) hypervisor.Domain {
	t.Helper()
	for {
		a, err := h.Domain(t.Context(), "a")
		if err == nil {
			return a
		}
		if !errors.Is(err, hypervisor.ErrUnavailable) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestRestartUnderLoad: whatever a restart interrupts says that the daemon is unavailable, and nothing else.
func TestRestartUnderLoad(t *testing.T) {
	daemon := libvirttest.Start(t)
	h := connect(t, daemon.URI)
	kernel := libvirttest.GuestIdle.Kernel(t)
	if err := h.Define(t.Context(), libvirttest.DomainXML("a", "", kernel)); err != nil {
		t.Fatal(err)
	}
	if err := h.SetPower(t.Context(), "a", hypervisor.PowerOn); err != nil {
		t.Fatal(err)
	}
	qemu := daemon.QEMU("a")

	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			for ctx.Err() == nil {
				_, err := h.Domain(ctx, "a")
				if err != nil && ctx.Err() == nil && !errors.Is(err, hypervisor.ErrUnavailable) {
					t.Errorf("Domain during a restart: %v, want %v", err, hypervisor.ErrUnavailable)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range 5 {
		time.Sleep(100 * time.Millisecond)
		daemon.Kill()
		time.Sleep(100 * time.Millisecond)
		daemon.Start()
	}
	cancel()
	callers.Wait()
	if a := settle(t, h); a.State != hypervisor.StateRunning || daemon.QEMU("a") != qemu {
		t.Errorf("domain %+v, want it untouched", a)
	}
}

// TestClose: afterwards everything says so, and Events ends.
func TestClose(t *testing.T) {
	h := testDriver(t)
	ended := make(chan struct{})
	connected := make(chan struct{})
	go func() {
		defer close(ended)
		h.Events(context.Background(), func(hypervisor.Event) { close(connected) })
	}()
	<-connected
	for range 2 {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	<-ended
	if _, err := h.Names(t.Context()); !errors.Is(err, hypervisor.ErrUnavailable) {
		t.Errorf("Domains: %v, want %v", err, hypervisor.ErrUnavailable)
	}
}

// TestHost reads what the agent tells about its node.
func TestHost(t *testing.T) {
	daemon := libvirttest.Start(t)
	h, ctx := connect(t, daemon.URI), t.Context()
	libvirtVersion, qemuVersion, err := h.Version(ctx)
	if err != nil || strings.Count(libvirtVersion, ".") != 2 || strings.Count(qemuVersion, ".") != 2 {
		t.Errorf("Version: %q, %q, %v", libvirtVersion, qemuVersion, err)
	}
	if xml, err := h.Capabilities(ctx); err != nil || !strings.Contains(xml, "<capabilities>") {
		t.Errorf("Capabilities: %.100q, %v", xml, err)
	}
	if xml, err := h.DomainCapabilities(ctx, "", "x86_64", "q35", "qemu"); err != nil || !strings.Contains(xml, "q35") {
		t.Errorf("DomainCapabilities: %.100q, %v", xml, err)
	}
	if _, err := h.DomainCapabilities(ctx, "", "x86_64", "abacus", "qemu"); err == nil {
		t.Error("DomainCapabilities of an unknown machine: no error")
	}
	if info, err := h.NodeInfo(ctx); err != nil || info.CPUs == 0 || info.MemoryKiB == 0 {
		t.Errorf("NodeInfo: %+v, %v", info, err)
	}
	if networks, err := h.Networks(ctx); err != nil || len(networks) != 0 {
		t.Errorf("Networks: %q, %v, want none", networks, err)
	}
}

// TestNetworks uses the test driver's own node, which has a network.
func TestNetworks(t *testing.T) {
	h := connect(t, "test:///default")
	networks, err := h.Networks(t.Context())
	if err != nil || !slices.Equal(networks, []string{"default"}) {
		t.Errorf("Networks: %q, %v, want default", networks, err)
	}
	// Its one domain has an interface, for which the driver makes up a lease (testDomainInterfaceAddresses).
	if addresses, err := h.Addresses(t.Context(), "test"); err != nil {
		t.Errorf("Addresses: %q, %v", addresses, err)
	}
}

// TestStartThatCannotWork: what this host cannot run is refused for good.
func TestStartThatCannotWork(t *testing.T) {
	daemon := libvirttest.Start(t)
	h := connect(t, daemon.URI)
	xml := libvirttest.DomainXML("a", "", filepath.Join(t.TempDir(), "absent"))
	if err := h.Define(t.Context(), xml); err != nil {
		t.Fatal(err)
	}
	err := h.SetPower(t.Context(), "a", hypervisor.PowerOn)
	if err == nil {
		t.Fatal("a domain without its kernel has started")
	}
	t.Log(err)
	a, err := h.Domain(t.Context(), "a")
	if err != nil || a.State != hypervisor.StateShutoff || a.StopReason != hypervisor.StopFailed {
		t.Errorf("domain %+v, %v, want it failed", a, err)
	}
}

// TestNothingLeaks: connections, their sockets and their callbacks are gone after Close, and after a restart.
func TestNothingLeaks(t *testing.T) {
	daemon := libvirttest.Start(t)
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round := func() {
		h := New(daemon.URI)
		ctx, cancel := context.WithCancel(t.Context())
		connected := make(chan struct{}, 10)
		var watching sync.WaitGroup
		for range 2 {
			watching.Go(func() {
				h.Events(ctx, func(event hypervisor.Event) {
					if event.Kind == hypervisor.EventConnected {
						connected <- struct{}{}
					}
				})
			})
			<-connected
		}
		if err := h.Undefine(ctx, "absent"); err != nil {
			t.Error(err)
		}
		cancel()
		watching.Wait()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	round()
	before := files()
	for range 20 {
		round()
	}
	if after := files(); after > before+2 {
		t.Errorf("%d files open after 20 more connections, %d before", after, before)
	}
	if users := processLoop.users; users != 0 {
		t.Errorf("the event loop has %d users left", users)
	}
}

// TestLimitsHurtNobody: a disk of a running guest is limited, of which libvirt sends an event that the binding cannot read.
func TestLimitsHurtNobody(t *testing.T) {
	daemon := libvirttest.Start(t)
	h, ctx := connect(t, daemon.URI), t.Context()
	if err := h.Define(ctx, libvirttest.Plugged(libvirttest.DomainXML("a", "", libvirttest.GuestIdle.Kernel(t)))); err != nil {
		t.Fatal(err)
	}
	disk := proofDisk("sdb", "scsi", libvirttest.Image(t, "limited", 1<<20))
	if err := errors.Join(h.SetPower(ctx, "a", hypervisor.PowerOn), h.AttachDevice(ctx, "a", disk)); err != nil {
		t.Fatal(err)
	}
	events := make(chan hypervisor.Event, 10)
	ended := make(chan struct{})
	watching, cancel := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		h.Events(watching, func(event hypervisor.Event) { events <- event })
	}()
	if event := <-events; event.Kind != hypervisor.EventConnected {
		t.Fatalf("event %+v, want the connection", event)
	}
	daemon.Virsh("blkdeviotune", "a", "sdb", "--total-iops-sec", "100", "--group-name", "slow", "--live")
	if err := h.SetMetadata(ctx, "a", "test", "https://gitvirt.io/test", "<after/>"); err != nil {
		t.Fatal(err)
	}
	if event := <-events; event != (hypervisor.Event{Kind: hypervisor.EventChanged, Name: "a"}) {
		t.Errorf("event %+v, want that a has changed", event)
	}
	cancel()
	<-ended
	if a, err := h.Domain(ctx, "a"); err != nil || !strings.Contains(a.Live, "<total_iops_sec>100<") {
		t.Errorf("domain %+v, %v, want the limit", a, err)
	}
}
