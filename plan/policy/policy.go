// Package policy says which steps of a plan a Fleet's policy lets happen, and what the others wait for. It looks at steps,
// one idea per file, and never at what differs; the time, the approvals and what was done already are given to it. It is
// pure like package plan.
//
// A step is carried out when nothing blocks it and it waits for nothing. What is asked of it, in this order:
//
//   - gates: the consequence is carried out by itself, in a window, with an approval, or never;
//   - windows: no deny window is open for the machine;
//   - rules: each of the team's own rules is true of it;
//   - grace: a removed machine was kept as long as it is to be kept;
//   - budgets: not too many others are interrupted or destroyed by this revision.
//
// An approval ends the wait for a window, for an approval and for a budget of the revision. It does not open a deny window,
// nor make a rule true that blocks. Protection (gitvirt.io/protect) is no policy and holds without one.
package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/rules"
	"github.com/gitvirt/gitvirt/schemas/windows"
)

// Options are what a policy's verdicts depend on besides the Fleet.
type Options struct {
	// Now is the time that windows, schedules and grace periods are seen at.
	Now time.Time
	// Approvals are all that were given.
	Approvals []Approval
	// Attended says that a person watches and has seen the plan, which approves of what waits for a window or an approval.
	Attended bool
	// History is what was done at this revision already.
	History History
}

// Policy is the policy of a Fleet at one time. It is a plan.Policy.
type Policy struct {
	spec    schemas.Policy
	options Options
	hash    string

	windows   []window
	schedules []schedule
	rules     []rule
}

var _ plan.Policy = (*Policy)(nil)

type window struct {
	*schemas.Window
	times *windows.Window
	open  bool
	// next is when it opens next, change when it opens or closes.
	next, change time.Time
}

type schedule struct {
	*schemas.PowerSchedule
	times windows.Daily
	on    bool
}

type rule struct {
	*schemas.Rule
	compiled *rules.Rule
}

// New returns the policy of a Fleet. What of it cannot be used was told when the Fleet was read, and is why the policy is in
// doubt.
func New(fleet *schemas.Fleet, options Options) *Policy {
	p := &Policy{spec: fleet.Spec.Policy, options: options}
	p.hash = hashOf(&p.spec)
	for i := range p.spec.Windows {
		w := &p.spec.Windows[i]
		opens, err := windows.ParseSchedule(w.Schedule, w.TimeZone)
		if err != nil {
			p.doubt("its window " + w.Name + " cannot be read")
			continue
		}
		times, err := windows.New(opens, time.Duration(w.Duration))
		if err != nil {
			p.doubt("its window " + w.Name + " cannot be read")
			continue
		}
		now := options.Now
		p.windows = append(p.windows, window{Window: w, times: times, open: times.Open(now), next: times.Next(now), change: times.Change(now)})
	}
	for i := range p.spec.PowerSchedules {
		s := &p.spec.PowerSchedules[i]
		start, err := windows.ParseSchedule(s.Start, s.TimeZone)
		if err != nil {
			p.doubt("its power schedule " + s.Name + " cannot be read")
			continue
		}
		stop, err := windows.ParseSchedule(s.Stop, s.TimeZone)
		if err != nil {
			p.doubt("its power schedule " + s.Name + " cannot be read")
			continue
		}
		one := schedule{PowerSchedule: s, times: windows.Daily{Start: start, Stop: stop}}
		one.on, _ = one.times.On(options.Now)
		p.schedules = append(p.schedules, one)
	}
	for i := range p.spec.Rules {
		r := &p.spec.Rules[i]
		compiled, problem := rules.Compile(r.Expression)
		if problem != nil {
			p.doubt("its rule " + r.Name + " cannot be read")
			continue
		}
		p.rules = append(p.rules, rule{Rule: r, compiled: compiled})
	}
	return p
}

// doubt makes the policy one that nobody can rely on.
func (p *Policy) doubt(why string) {
	if p.spec.Doubt == "" {
		p.spec.Doubt = why
	}
}

// hashOf is a hash of what a team wrote.
func hashOf(spec *schemas.Policy) string {
	content, err := json.Marshal(struct {
		*schemas.Policy
		Doubt string `json:"doubt"`
	}{spec, spec.Doubt})
	if err != nil {
		content = []byte(err.Error()) // plain data, which can always be written
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:16])
}

// Hash changes with the policy of the Fleet. Approvals, the time and what was done have no part in it, because a plan that
// is approved stays the same plan.
func (p *Policy) Hash() string { return p.hash }

// Next returns when a verdict on the plan may change by itself: a window opens or closes, a power schedule switches, a grace
// period is over. It is the zero time when none does.
func (p *Policy) Next(of *plan.Plan) time.Time {
	var next time.Time
	add := func(at time.Time) {
		if at.After(p.options.Now) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for i := range p.windows {
		add(p.windows[i].change)
	}
	for i := range p.schedules {
		add(p.schedules[i].times.Change(p.options.Now))
	}
	for i := range of.Steps {
		for _, wait := range of.Steps[i].Waits {
			add(wait.Until)
		}
	}
	return next
}

// Analyse gives the steps their Waits, Blocked and Warnings. What blocks a step already is left.
func (p *Policy) Analyse(of *plan.Plan, want *schemas.Desired, have plan.Observed) {
	s := p.subjects(of, want, have)
	findings := p.evaluate(s.of)
	for i := range s.of {
		one := &s.of[i]
		if one.step.Blocked != "" {
			continue
		}
		p.gate(one)
		p.deny(one)
		p.grace(one)
		p.judge(one, findings[i])
	}
	p.budget(s)
	p.turns(s)
	for i := range s.of {
		if step := s.of[i].step; step.Blocked != "" {
			step.Waits = nil // it waits for nothing that would help
		}
	}
}

// wait makes a step wait.
func (s *subject) wait(what plan.WaitFor, until time.Time, reason string) {
	s.step.Waits = append(s.step.Waits, plan.Wait{For: what, Until: until, Reason: reason})
}

// block blocks a step; the first reason stays.
func (s *subject) block(reason string) {
	if s.step.Blocked == "" {
		s.step.Blocked = reason
	}
}
