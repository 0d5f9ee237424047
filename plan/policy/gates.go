package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// gateName is a gate's name in the Fleet with its value.
type gateName struct {
	name string
	gate schemas.Gate
}

// gatesOf returns the gates that a step has to pass: that of its action or its consequence, that of power when it also starts
// or stops the guest, and that of data when it destroys any. What the action says of the power already is not asked twice: a
// VM is made to run, and a restart or the end of one has its own gate.
func (p *Policy) gatesOf(step *plan.Step) []gateName {
	apply := &p.spec.Apply
	var out []gateName
	add := func(name string, gate schemas.Gate) { out = append(out, gateName{name, gate}) }
	switch step.Action {
	case plan.ActionCreate:
		add("create", apply.Create)
	case plan.ActionStart, plan.ActionStop:
		add("power", apply.Power)
		if step.Define {
			add("live", apply.Live)
		}
	case plan.ActionRestart:
		add("restart", apply.Restart)
	case plan.ActionReplace:
		add("replace", apply.Replace)
		if step.Power == plan.PowerOn || step.Power == plan.PowerOff {
			add("power", apply.Power)
		}
	case plan.ActionRetire:
		add("destroy", apply.Destroy)
	default:
		switch step.Consequence {
		case plan.ConsequenceNextBoot:
			add("next-boot", apply.NextBoot)
		case plan.ConsequenceMigrate:
			add("migrate", apply.Migrate)
		case plan.ConsequenceRestart:
			add("restart", apply.Restart)
		case plan.ConsequenceReplace:
			add("replace", apply.Replace)
		case plan.ConsequenceDestroy:
			add("destroy", apply.Destroy)
		case plan.ConsequenceData: // below
		default:
			add("live", apply.Live)
		}
		if step.Power != plan.PowerKeep && step.Action != plan.ActionDestroy {
			add("power", apply.Power)
		}
	}
	if step.Consequence == plan.ConsequenceData {
		add("data", apply.Data)
	}
	return out
}

// gate makes a step wait for what its gates want. Where there are several, the strictest decides.
func (p *Policy) gate(s *subject) {
	strictness := map[schemas.Gate]int{schemas.GateAutomatic: 0, schemas.GateWindow: 1, schemas.GateApproval: 2, schemas.GateNever: 3}
	var strictest gateName
	for _, gate := range p.gatesOf(s.step) {
		if _, known := strictness[gate.gate]; !known {
			gate.gate = schemas.GateApproval // a word that could not be read
		}
		if strictest.name == "" || strictness[gate.gate] > strictness[strictest.gate] {
			strictest = gate
		}
	}
	switch {
	case strictest.gate == schemas.GateNever:
		s.block(fmt.Sprintf("it is only shown (the Fleet's apply.%s is never)", strictest.name))
	case p.cleared(s):
	case p.spec.Doubt != "":
		s.wait(plan.WaitApproval, time.Time{}, fmt.Sprintf("nothing is carried out by itself, because %s; mend that, or gitvirt approve", p.spec.Doubt))
	case strictest.gate == schemas.GateApproval:
		s.wait(plan.WaitApproval, time.Time{}, fmt.Sprintf("waits for gitvirt approve (apply.%s is approval)", strictest.name))
	case strictest.gate == schemas.GateWindow:
		p.awaitWindow(s, strictest.name)
	}
}

// awaitWindow makes a step wait for the next window of its machine, unless one is open.
func (p *Policy) awaitWindow(s *subject, gate string) {
	var next *window
	var until time.Time
	for i := range p.windows {
		w := &p.windows[i]
		if w.Action == schemas.WindowDeny || !s.permitted(&w.Selector) {
			continue
		}
		if w.open {
			return
		}
		if !w.next.IsZero() && (next == nil || w.next.Before(until)) {
			next, until = w, w.next
		}
	}
	if next == nil {
		s.wait(plan.WaitApproval, time.Time{}, fmt.Sprintf("waits for gitvirt approve (apply.%s is window, and the Fleet has no window for the machine)", gate))
		return
	}
	s.wait(plan.WaitWindow, until, fmt.Sprintf("waits for the window %s, which opens %s; or gitvirt approve", next.Name, moment(until, next.times.Zone())))
}

// deny makes a step wait while a deny window is open for its machine. A guest that only has to be started again is started all
// the same: that changes nothing.
func (p *Policy) deny(s *subject) {
	if s.step.Action == plan.ActionStart && !s.step.Define {
		return
	}
	var names []string
	var until time.Time
	var zone *time.Location
	for i := range p.windows {
		w := &p.windows[i]
		if w.Action != schemas.WindowDeny || !w.open || !s.restricted(&w.Selector) {
			continue
		}
		names = append(names, w.Name)
		if w.change.After(until) {
			until, zone = w.change, w.times.Zone()
		}
	}
	if len(names) > 0 {
		s.wait(plan.WaitWindow, until, fmt.Sprintf("nothing is changed while %s is open, which it is until %s", strings.Join(names, " or "), moment(until, zone)))
	}
}

// grace ends the wait of a retired domain when it was kept long enough.
func (p *Policy) grace(s *subject) {
	var waits []plan.Wait
	for _, wait := range s.step.Waits {
		if wait.For != plan.WaitGrace || wait.Until.After(p.options.Now) {
			waits = append(waits, wait)
		}
	}
	s.step.Waits = waits
}

// moment writes a time for people, in the zone of what it is about.
func moment(at time.Time, zone *time.Location) string {
	return at.In(zone).Format("Mon 2 Jan 2006 15:04 ") + zone.String()
}
