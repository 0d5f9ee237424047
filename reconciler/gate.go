package reconciler

import (
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// The gate's patience.
const (
	// settleTime is how long the gate waits until the host shows what a step has done.
	settleTime = 2 * time.Second
	// stallRetry is how long a stalled step waits.
	stallRetry = 10 * time.Minute
	// freeRestarts is how often a guest that goes down is started at once: twice is bad luck, or somebody who tries
	// things out with virsh. After that it waits between restartMin and restartMax, the kubelet's times.
	freeRestarts = 3
	restartMin   = 10 * time.Second
	restartMax   = 5 * time.Minute
	// restartForget is how long a guest has to run until its restarts are forgotten.
	restartForget = 5 * time.Minute
)

// key names the machine that a step is about, whatever its kind: a VirtualMachine and a VirtualMachineInstance of one
// name are one domain.
type key struct{ namespace, name string }

func keyFor(a schemas.Address) key { return key{a.Namespace, a.Name} }

// verdict is the gate's answer for a step.
type verdict struct {
	// admit lets the step through.
	admit bool
	// until is when the answer may become another by itself; zero when only a change of git or the host helps, or
	// the end of the step that is being carried out.
	until time.Time
}

// gate remembers what was tried and how it went, and says which steps may be carried out now. It belongs to the loop.
// Losing it loses nothing but patience: a new process tries everything once.
//
//   - While a step of a machine is being carried out, no other of it is.
//   - After a step, the next waits until the host shows what changed, so that a plan made from an old picture is not
//     carried out.
//   - A step that failed waits, longer each time, until git wants something else of the machine. One that succeeded
//     and is needed again at once is treated like it: it does not converge.
//   - A stalled one (apply.ErrStalled) waits until git wants something else or the domain has changed, and is tried
//     again after a long while in case somebody has mended the host.
//   - A guest that was running and is down is started at once, three times; if it keeps going down, after 10 s, 20 s ... 5 min.
type gate struct {
	states map[key]*attempts
	rand   func() float64
}

// attempts is what the gate remembers of one machine.
type attempts struct {
	// hash is what git wanted when everything below happened; "" is the wish to have it gone.
	hash string
	busy *active

	failure backoff.Backoff
	retryAt time.Time
	problem string
	// stalled is set when the last failure was an apply.ErrStalled at this fingerprint.
	stalled     bool
	stalledAt   time.Time
	fingerprint string
	// settling waits for the domain to differ from this fingerprint.
	settling      bool
	settledFrom   string
	settleBy      time.Time
	stale         backoff.Backoff
	done          plan.Action // the last success that the plan has not confirmed
	restarts      int
	startedAt     time.Time // when it was last started or first seen running
	downAt        time.Time // when it was first seen down after that
	waitsToReboot bool      // the last verdict was to wait until rebootAt because of the restarts
	rebootAt      time.Time
	told          time.Time // the wait that was told last
}

// active is a step that is being carried out.
type active struct {
	step    plan.Step
	restart bool
	since   time.Time
}

func newGate(random func() float64) *gate { return &gate{states: map[key]*attempts{}, rand: random} }

func (g *gate) state(k key) *attempts {
	s, ok := g.states[k]
	if !ok {
		s = &attempts{
			failure: backoff.Backoff{Min: time.Second, Max: 5 * time.Minute, Jitter: 0.2, Rand: g.rand},
			stale:   backoff.Backoff{Min: 50 * time.Millisecond, Max: 10 * time.Second, Rand: g.rand},
		}
		g.states[k] = s
	}
	return s
}

// busy reports whether a step of a machine is being carried out.
func (g *gate) busy(k key) bool {
	s, ok := g.states[k]
	return ok && s.busy != nil
}

func wantedHash(step *plan.Step) string {
	if step.VM == nil {
		return ""
	}
	return step.VM.Hash
}

// ask says whether a step may be carried out now. have is the domain as the plan saw it, nil when there is none.
func (g *gate) ask(step *plan.Step, have *plan.Domain, now time.Time) verdict {
	s := g.state(keyFor(step.Address))
	if s.busy != nil {
		return verdict{}
	}
	if hash := wantedHash(step); hash != s.hash {
		s.hash, s.problem, s.stalled, s.done, s.restarts = hash, "", false, "", 0
		s.retryAt = time.Time{}
		s.failure.Reset()
	}
	s.waitsToReboot = false
	if s.settling {
		if s.settledFrom == step.Precondition && now.Before(s.settleBy) {
			return verdict{until: s.settleBy}
		}
		s.settling = false
	}
	if s.stalled {
		if again := s.stalledAt.Add(stallRetry); s.fingerprint == step.Precondition && now.Before(again) {
			return verdict{until: again}
		}
		s.stalled, s.problem = false, ""
	}
	if now.Before(s.retryAt) {
		return verdict{until: s.retryAt}
	}
	if restarts(step, have) {
		if at := s.restartAt(now); now.Before(at) {
			s.waitsToReboot, s.rebootAt = true, at
			return verdict{until: at}
		}
	}
	return verdict{admit: true}
}

// restarts reports whether a step starts a guest that has been running before and that nobody asked to stop.
func restarts(step *plan.Step, have *plan.Domain) bool {
	return step.Power == plan.PowerOn && have != nil && have.Ran && have.State == plan.StateStopped
}

// restartAt returns when a guest that is down may be started again.
func (s *attempts) restartAt(now time.Time) time.Time {
	if s.downAt.IsZero() {
		s.downAt = now
		if !s.startedAt.IsZero() && now.Sub(s.startedAt) >= restartForget {
			s.restarts = 0
		}
	}
	if s.restarts < freeRestarts {
		return s.downAt
	}
	wait := restartMin
	for i := freeRestarts; i < s.restarts && wait < restartMax; i++ {
		wait *= 2
	}
	return s.downAt.Add(min(wait, restartMax))
}

// begin notes that a step is being carried out.
func (g *gate) begin(step plan.Step, have *plan.Domain, now time.Time) {
	s := g.state(keyFor(step.Address))
	s.busy = &active{step: step, restart: restarts(&step, have), since: now}
}

// end notes how a step went.
func (g *gate) end(step *plan.Step, err error, now time.Time) {
	s := g.state(keyFor(step.Address))
	restart := s.busy != nil && s.busy.restart
	s.busy = nil
	switch {
	case err == nil:
		s.succeeded(step, restart, now)
	case errors.Is(err, apply.ErrStale):
		s.settle(step, now.Add(s.stale.Next()))
	case errors.Is(err, apply.ErrStalled):
		s.problem, s.stalled, s.stalledAt, s.fingerprint = problemOf(err), true, now, step.Precondition
	default:
		s.problem = problemOf(err)
		s.retryAt = now.Add(s.failure.Next())
	}
}

// problemOf is an error as it is shown: bounded, because an agent may quote a whole log.
func problemOf(err error) string {
	text := err.Error()
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	return text
}

func (s *attempts) settle(step *plan.Step, by time.Time) {
	s.settling, s.settledFrom, s.settleBy = true, step.Precondition, by
}

func (s *attempts) succeeded(step *plan.Step, restart bool, now time.Time) {
	s.settle(step, now.Add(settleTime))
	s.stale.Reset()
	if s.done == step.Action && !restart {
		s.problem = "carried out, and needed again: the host does not become what was asked for"
		s.retryAt = now.Add(s.failure.Next())
	} else {
		s.problem, s.retryAt = "", time.Time{}
		s.failure.Reset()
	}
	s.done = step.Action
	switch step.Power {
	case plan.PowerOn, plan.PowerCycle:
		if restart {
			s.restarts++
		}
		s.startedAt, s.downAt = now, time.Time{}
	case plan.PowerOff, plan.PowerKeep:
	}
}

// running notes that a guest is seen running, whoever started it.
func (g *gate) running(k key, now time.Time) {
	s := g.state(k)
	if s.startedAt.IsZero() || !s.downAt.IsZero() {
		s.startedAt = now
	}
	s.downAt = time.Time{}
}

// confirm notes that the plan asks nothing of a machine any more.
func (g *gate) confirm(s *attempts) {
	if s.busy != nil {
		return
	}
	s.problem, s.stalled, s.settling, s.done, s.waitsToReboot = "", false, false, "", false
	s.retryAt = time.Time{}
	s.failure.Reset()
	s.stale.Reset()
}

// attempt is what the gate tells about a machine.
func (s *attempts) attempt() status.Attempt {
	a := status.Attempt{Error: s.problem, Stalled: s.stalled, Restarts: s.restarts, CrashLoop: s.waitsToReboot}
	switch {
	case s.stalled:
		a.RetryAt = s.stalledAt.Add(stallRetry)
	case s.problem != "":
		a.RetryAt = s.retryAt
	case s.waitsToReboot:
		a.RetryAt = s.rebootAt
	}
	if s.busy != nil {
		a.Action, a.Step = s.busy.step.Action, &s.busy.step
	}
	return a
}

// forgettable reports whether there is nothing left to remember of a machine that needs nothing.
func (s *attempts) forgettable(now time.Time) bool {
	return s.busy == nil && (s.startedAt.IsZero() || now.Sub(s.startedAt) >= restartForget)
}
