package reconciler

import (
	"context"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

// checkPause is the shortest time between two questions what the platform thinks of the steps that wait, whatever becomes of the plan
// meanwhile.
const checkPause = 2 * time.Second

// checks has the platform look at the steps that wait: what people approve, and what a window lets begin, is what can be
// done. What need not wait is looked at when it is carried out. It belongs to the loop.
type checks struct {
	l       *loop
	checker apply.Checker // nil for a platform that cannot say it
	found   apply.Inspection
	// waiting is what is asked about: the steps that wait, before anything was said of them.
	waiting []plan.Step
	// about is the ID of the plan that was asked about last, at is when.
	about  string
	at     time.Time
	asking bool
	// answers are inspections that are over.
	answers chan apply.Inspection
}

func newChecks(l *loop) *checks {
	checker, _ := l.r.platform.(apply.Checker)
	return &checks{l: l, checker: checker, answers: make(chan apply.Inspection)}
}

func waits(step *plan.Step) bool { return len(step.Waits) > 0 }

// into makes a plan say what was found of its steps. again makes it anew for a host on which guests cannot be changed live.
func (c *checks) into(p *plan.Plan, again func(have plan.Observed) (*plan.Plan, error)) (*plan.Plan, error) {
	c.waiting = nil
	c.wait(p)
	if refused := c.found.NotLive(p); len(refused) > 0 {
		var err error
		if p, err = again(plan.RefusedLive(c.l.observed, p.Steps, refused)); err != nil {
			return nil, err
		}
		c.wait(p)
	}
	c.found.Mark(p, waits)
	p.Notes = append(p.Notes, c.found.Notes()...)
	return p, nil
}

func (c *checks) wait(p *plan.Plan) {
	for i := range p.Steps {
		if step := &p.Steps[i]; waits(step) && step.Blocked == "" && c.checker != nil {
			c.waiting = append(c.waiting, *step)
		}
	}
}

// ask asks in the background about the present plan, when it is another one or when the answers are old: a host's room
// changes.
func (c *checks) ask(ctx context.Context, now time.Time) {
	p := c.l.plan
	if c.asking || p.Unknown != "" || (p.ID == c.about && now.Before(c.at.Add(resync))) {
		return
	}
	if next := c.at.Add(checkPause); now.Before(next) {
		c.l.wakeAt(next)
		return
	}
	c.about, c.at = p.ID, now
	if len(c.waiting) == 0 {
		c.found = apply.Inspection{}
		return
	}
	asked := &plan.Plan{Fleet: p.Fleet, Revision: p.Revision, Steps: c.waiting}
	c.asking = true
	c.l.workers.running.Go(func() {
		var found apply.Inspection
		found.Look(ctx, c.checker, asked, waits)
		select {
		case c.answers <- found:
		case <-ctx.Done():
		}
	})
}

// answered takes what the platform said.
func (c *checks) answered(found apply.Inspection) {
	c.asking = false
	if found.Equal(&c.found) {
		return
	}
	c.found = found
	c.l.replan, c.l.dirty = true, true
}
