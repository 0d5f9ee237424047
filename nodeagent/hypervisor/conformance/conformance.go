// Package conformance is the suite that every hypervisor.Hypervisor passes: the fake, libvirt's test driver, and a real
// libvirtd with QEMU. It says what the interface means where its comments are too short; what only one implementation does
// is tested there.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// patience bounds every wait. It is no expectation: many tests may share few cores.
const patience = 4 * time.Minute

// Harness is a hypervisor without domains and the means to disturb it. Where a means is nil, the hypervisor cannot be
// disturbed like that, and what it would show is skipped.
type Harness struct {
	Hypervisor hypervisor.Hypervisor

	// Domain returns the definition of a guest that the hypervisor can run and that goes on until it is stopped. An empty
	// uuid means none in the definition.
	Domain func(name, uuid string) string
	// Obedient is a Domain that powers off when asked to. It may take a while before it listens.
	Obedient func(name, uuid string) string
	// Stubborn is a Domain that ignores a request to power off.
	Stubborn func(name, uuid string) string

	// Agent is a Domain whose guest agent answers guest-ping and guest-info some time after its start.
	Agent func(name, uuid string) string
	// User is a Domain with an interface of type user whose alias is ua-default.
	User func(name, uuid string) string
	// Echo is a Domain with a serial console on which the guest says what is typed.
	Echo func(name, uuid string) string
	// PowersOff is a Domain that powers itself off soon after its start.
	PowersOff func(name, uuid string) string
	// Unfit are definitions, by what is wrong with them, that fit the schema and are refused by the drivers.
	Unfit func(name, uuid string) map[string]string
	// CPUs is a Domain with one of three vCPUs, and a balloon if there is such a thing.
	CPUs func(name, uuid string) string
	// Plug is a Domain to which devices can be attached, as libvirttest.Plugged has it.
	Plug func(name, uuid string) string
	// Holding is a Plug that lets go of nothing, no vCPU and no PCI device.
	Holding func(name, uuid string) string
	// NoBalloon is a Domain without a balloon.
	NoBalloon func(name, uuid string) string
	// Image makes a disk image that starts with a mark and returns its path. It is needed with Plug.
	Image func(mark string, size int64) string
	// Secret returns the persistent definition of a domain with its passwords.
	Secret func(name string) string
	// Crash kills the guest of a running Domain.
	Crash func(name string)
	// Pause pauses the guest of a running Domain behind the Hypervisor's back.
	Pause func(name string)
	// Down makes the hypervisor unavailable and Up available again. Guests go on.
	Down, Up func()
}

// Run runs the suite. newHarness makes a harness for one test; it frees it with t.Cleanup.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, test := range []struct {
		name string
		run  func(s *suite)
	}{
		{"an empty hypervisor has no domains", testEmpty},
		{"an absent domain is not found", testAbsent},
		{"a definition can be read", testDefine},
		{"a definition is replaced", testRedefine},
		{"passwords are kept and not told", testPasswords},
		{"a domain is replaced", testReplace},
		{"passwords survive a replacement", testReplacePasswords},
		{"a domain that cannot be replaced stays", testReplaceRefused},
		{"a broken definition is refused", testInvalid},
		{"a name or UUID belongs to one domain", testConflict},
		{"a domain is started and powered off, twice", testPower},
		{"an obedient guest shuts down", testShutdown},
		{"a stubborn guest is powered off", testStubborn},
		{"a guest powers itself off", testPowersOff},
		{"a guest crashes", testCrash},
		{"a paused guest is resumed", testResume},
		{"a guest is started paused", testPowerOnPaused},
		{"a guest agent answers", testGuestAgent},
		{"a guest without agent is told so", testNoGuestAgent},
		{"ports of the host lead to a guest", testMonitor},
		{"a console has one at a time", testConsole},
		{"a running guest has statistics", testStatistics},
		{"a running guest keeps its definition", testRedefineRunning},
		{"an undefined domain is gone", testUndefine},
		{"an undefined domain runs until it is off", testUndefineRunning},
		{"metadata is set on a domain that is off", testMetadataOff},
		{"metadata is set on a running domain", testMetadataRunning},
		{"metadata keeps every character", testMetadataCharacters},
		{"a domain that is off has no addresses", testAddresses},
		{"a definition is validated without a trace", testValidate},
		{"it is known what can be done for guests", testLiveChanges},
		{"only a running guest can be changed", testLiveWithoutGuest},
		{"a broken device is refused", testBrokenDevice},
		{"vCPUs are plugged in", testSetVCPUs},
		{"a guest keeps its vCPUs", testTakeVCPUs},
		{"the balloon is set", testSetMemory},
		{"there is no balloon to set", testNoBalloon},
		{"a disk is attached, grown and detached", testPlugDisk},
		{"a medium is inserted and ejected", testMedium},
		{"an interface is attached and loses its link", testPlugInterface},
		{"a guest holds on to a device", testHolds},
		{"a guest has so many PCI slots", testSlots},
		{"memory is plugged in", testPlugMemory},
		{"a guest has no room for memory", testNoRoomForMemory},
		{"events tell a domain's life", testEvents},
		{"events end with their context", testEventsEnd},
		{"a handler of events may use the hypervisor", testEventsReentrant},
		{"an ended context ends every call", testContext},
		{"it goes down and comes back", testDown},
		{"twenty domains at a time", testConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			test.run(&suite{T: t, Harness: newHarness(t), ctx: ctx})
		})
	}
}

// suite is a harness in a test.
type suite struct {
	*testing.T
	Harness
	ctx context.Context //nolint:containedctx // of the test that owns it
}

// need skips a test when the hypervisor cannot be disturbed like that.
func (s *suite) need(means bool, what string) {
	s.Helper()
	if !means {
		s.Skipf("this hypervisor has no way to %s", what)
	}
}

// ok fails the test on an error.
func (s *suite) ok(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// is fails the test when an error is not of the kind.
func (s *suite) is(err, kind error) {
	s.Helper()
	if !errors.Is(err, kind) {
		s.Errorf("error is %v, want %v", err, kind)
	}
}

// define defines a domain and returns its UUID.
func (s *suite) define(make func(name, uuid string) string, name string) string {
	s.Helper()
	id := uuid.NewString()
	s.ok(s.Hypervisor.Define(s.ctx, make(name, id)))
	return id
}

func (s *suite) power(name string, power hypervisor.Power) {
	s.Helper()
	s.ok(s.Hypervisor.SetPower(s.ctx, name, power))
}

func (s *suite) domain(name string) hypervisor.Domain {
	s.Helper()
	domain, err := s.Hypervisor.Domain(s.ctx, name)
	s.ok(err)
	return domain
}

// names returns the names of all domains, in the order in which they come.
func (s *suite) names() []string {
	s.Helper()
	names, err := s.Hypervisor.Names(s.ctx)
	s.ok(err)
	return names
}

// awaitOff waits until a domain is off and returns why.
func (s *suite) awaitOff(name string) hypervisor.StopReason {
	s.Helper()
	var last hypervisor.Domain
	s.eventually(func() bool {
		last = s.domain(name)
		return !last.State.Active()
	}, "domain %q is off", name)
	return last.StopReason
}

// eventually waits for a condition.
func (s *suite) eventually(condition func() bool, format string, arguments ...any) {
	s.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.Fatalf("waited in vain until "+format, arguments...)
		}
	}
}

// recorder keeps the events that arrive.
type recorder struct {
	s      *suite
	cancel context.CancelFunc
	ended  chan struct{}

	mu     sync.Mutex
	events []hypervisor.Event
}

// record begins to record and returns once the events have begun. It ends with the test.
func (s *suite) record() *recorder {
	s.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	r := &recorder{s: s, cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		s.Hypervisor.Events(ctx, func(event hypervisor.Event) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, event)
		})
	}()
	s.Cleanup(r.stop)
	r.await(hypervisor.Event{Kind: hypervisor.EventConnected})
	return r
}

// stop ends the recording and waits for that.
func (r *recorder) stop() {
	r.s.Helper()
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(patience):
		r.s.Errorf("Events has not returned %s after its context ended", patience)
	}
}

// await waits for an event and removes it and those before it.
func (r *recorder) await(want hypervisor.Event) {
	r.s.Helper()
	r.s.eventually(func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := slices.Index(r.events, want)
		if at >= 0 {
			r.events = r.events[at+1:]
		}
		return at >= 0
	}, "event %+v arrives; those that did: %v", want, printed{r})
}

// only waits for an event and fails the test when others came before it since the last one that was awaited.
func (r *recorder) only(want hypervisor.Event) {
	r.s.Helper()
	r.s.eventually(func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		at := slices.Index(r.events, want)
		if at > 0 {
			r.s.Fatalf("events %+v, want only the last", r.events[:at+1])
		}
		if at == 0 {
			r.events = r.events[1:]
		}
		return at == 0
	}, "event %+v arrives; those that did: %v", want, printed{r})
}

// printed formats what a recorder has when that is asked for.
type printed struct{ r *recorder }

func (p printed) String() string {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return fmt.Sprintf("%+v", p.r.events)
}
