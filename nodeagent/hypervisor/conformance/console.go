package conformance

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

func testConsole(s *suite) {
	_, err := s.Hypervisor.OpenConsole(s.ctx, "absent", false)
	s.is(err, hypervisor.ErrNotFound)
	s.define(s.Domain, "dumb")
	_, err = s.Hypervisor.OpenConsole(s.ctx, "dumb", false)
	s.is(err, hypervisor.ErrNotRunning)
	s.need(s.Echo != nil, "run a guest that echoes on its serial console")
	s.power("dumb", hypervisor.PowerOn)
	_, err = s.Hypervisor.OpenConsole(s.ctx, "dumb", true)
	s.is(err, hypervisor.ErrNoConsole)
	s.power("dumb", hypervisor.PowerOff)

	s.define(s.Echo, "a")
	s.power("a", hypervisor.PowerOn)
	first := s.console("a", false)
	first.talk("hello")
	_, err = s.Hypervisor.OpenConsole(s.ctx, "a", false)
	s.is(err, hypervisor.ErrConsoleBusy)
	first.talk("still here")

	second := s.console("a", true)
	if err := first.end(); !errors.Is(err, io.EOF) {
		s.Errorf("the first console ends with %v, want EOF", err)
	}
	second.talk("taken over")
	s.ok(first.console.Close())
	s.ok(first.console.Close())
	second.talk("it is another's end")

	s.ok(second.console.Close())
	if err := second.end(); !errors.Is(err, io.ErrClosedPipe) {
		s.Errorf("a closed console ends with %v", err)
	}
	third := s.console("a", false) // it is free, and the guest goes on
	third.talk("nothing has happened")
	s.power("a", hypervisor.PowerOff)
	if err := third.end(); !errors.Is(err, io.EOF) {
		s.Errorf("the console of a guest that is off ends with %v, want EOF", err)
	}
}

// talker is a console with what was heard on it.
type talker struct {
	*testing.T
	console hypervisor.Console
	heard   chan string
	over    chan error
}

func (s *suite) console(name string, force bool) *talker {
	s.Helper()
	opened, err := s.Hypervisor.OpenConsole(s.ctx, name, force)
	s.ok(err)
	t := &talker{s.T, opened, make(chan string, 1000), make(chan error, 1)}
	go func() {
		buffer := make([]byte, 100)
		for {
			n, err := opened.Read(buffer)
			if err != nil {
				t.over <- err
				return
			}
			t.heard <- string(buffer[:n])
		}
	}()
	s.Cleanup(func() {
		_ = opened.Close()
	})
	return t
}

// talk types, and waits until the guest has said the same.
func (t *talker) talk(text string) {
	t.Helper()
	if _, err := io.WriteString(t.console, text); err != nil {
		t.Fatal(err)
	}
	heard := ""
	for !strings.Contains(heard, text) {
		select {
		case more := <-t.heard:
			heard += more
		case err := <-t.over:
			t.Fatalf("the console ended, heard %q: %v", heard, err)
		}
	}
}

// end waits for the end.
func (t *talker) end() error { return <-t.over }

func testStatistics(s *suite) {
	s.is(second(s.Hypervisor.Statistics(s.ctx, "absent")), hypervisor.ErrNotFound)
	s.define(s.Domain, "a")
	s.is(second(s.Hypervisor.Statistics(s.ctx, "a")), hypervisor.ErrNotRunning)
	s.power("a", hypervisor.PowerOn)
	found, err := s.Hypervisor.Statistics(s.ctx, "a")
	s.ok(err)
	if found.VCPUs == 0 || found.MemoryKiB < 1<<10 || found.CPU < found.User || found.GuestTotalKiB != nil && *found.GuestTotalKiB == 0 {
		s.Errorf("%+v", found)
	}
}
