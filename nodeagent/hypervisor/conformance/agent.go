package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const ping = `{"execute":"guest-ping"}`

func testPowerOnPaused(s *suite) {
	s.define(s.Harness.Domain, "a")
	for range 2 {
		s.power("a", hypervisor.PowerOnPaused)
	}
	if a := s.domain("a"); a.State != hypervisor.StatePaused || a.Live == "" {
		s.Errorf("the guest is %s, want it paused", a.State)
	}
	s.power("a", hypervisor.PowerOn) // on is what it is
	if state := s.domain("a").State; state != hypervisor.StatePaused {
		s.Errorf("the guest is %s, want it paused still", state)
	}
	s.power("a", hypervisor.PowerResume)
	s.power("a", hypervisor.PowerOnPaused) // on is what it is
	if state := s.domain("a").State; state != hypervisor.StateRunning {
		s.Errorf("the guest is %s, want it to run", state)
	}
}

func testGuestAgent(s *suite) {
	s.need(s.Agent != nil, "run a guest with an agent")
	s.define(s.Agent, "a")
	s.is(second(s.Hypervisor.GuestAgent(s.ctx, "a", ping)), hypervisor.ErrNoAgent)
	s.power("a", hypervisor.PowerOn)
	s.eventually(func() bool {
		// What is asked while the agent opens its port may be lost, so nobody waits long for the answer.
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		defer cancel()
		reply, err := s.Hypervisor.GuestAgent(ctx, "a", ping)
		if err == nil && reply != `{"return":{}}` {
			s.Errorf("the reply to a ping is %q", reply)
		}
		if err != nil && !errors.Is(err, hypervisor.ErrNoAgent) && ctx.Err() == nil {
			s.Fatal(err)
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
		}
		return err == nil
	}, "the guest agent of %q answers", "a")
	reply, err := s.Hypervisor.GuestAgent(s.ctx, "a", `{"execute":"guest-info"}`)
	s.ok(err)
	var info struct{ Return struct{ Version string } }
	if err := json.Unmarshal([]byte(reply), &info); err != nil || info.Return.Version == "" {
		s.Errorf("the reply to guest-info is %q, %v", reply, err)
	}
	_, err = s.Hypervisor.GuestAgent(s.ctx, "a", `{"execute":"guest-no-such-command"}`)
	if err == nil || errors.Is(err, hypervisor.ErrNoAgent) {
		s.Errorf("a command that the agent does not know: %v", err)
	}
	s.power("a", hypervisor.PowerOff)
	s.is(second(s.Hypervisor.GuestAgent(s.ctx, "a", ping)), hypervisor.ErrNoAgent)
}

func testNoGuestAgent(s *suite) {
	s.need(s.Agent != nil, "run a guest with an agent")
	s.is(second(s.Hypervisor.GuestAgent(s.ctx, "absent", ping)), hypervisor.ErrNotFound)
	s.define(s.Harness.Domain, "a")
	s.power("a", hypervisor.PowerOn)
	s.is(second(s.Hypervisor.GuestAgent(s.ctx, "a", ping)), hypervisor.ErrNoAgent)
}
