package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

const (
	// askPatience is how long a guest is given to answer one question; it is asked anew until its time is up.
	askPatience = 10 * time.Second
	// askAgain is how long an answer that a guest is not ready stands, askValid one that it is.
	askAgain = 5 * time.Second
	askValid = 30 * time.Second
)

// pacing keeps the order and the pace of a revision: which machines wait for others, for the canary, or because something
// failed. It belongs to the loop. What was begun is in the account of the revision as well, from which a controller that starts
// anew goes on. A guest that crashed is started again without any of this.
type pacing struct {
	l        *loop
	revision string
	rollout  *apply.Rollout
	// interruptions are the guests that are interrupted now, at whatever revision that began.
	interruptions *apply.Interruptions
	pace          apply.Pace
	asked         map[plan.Dependency]*question
	// pacer orders the steps of the present plan; index says which of its steps a step of the plan is. It is nil where no
	// step depends on another machine.
	pacer *apply.Pacer
	index []int
	// holds are what steps of this round wait for.
	holds map[key]string
}

// question is whether a guest is ready, in a way that only the guest can tell.
type question struct {
	// fingerprint is the domain's that was asked.
	fingerprint string
	asking      bool
	ready       bool
	why         string
	answered    time.Time
	// step is the one that started the guest, and is well when the guest is ready; nil when another machine asks. revision
	// is that of the step.
	step     *plan.Step
	revision string
	// until is when that has taken too long.
	until time.Time
	told  string
}

// answer is what became of a question.
type answer struct {
	dependency plan.Dependency
	question   *question
	err        error
}

func newPacing(l *loop) *pacing {
	return &pacing{l: l, rollout: apply.NewRollout(apply.Pace{}, nil), interruptions: apply.NewInterruptions(), asked: map[plan.Dependency]*question{}, holds: map[key]string{}}
}

// planned takes a new plan; that of another revision begins the account anew.
func (p *pacing) planned(now *plan.Plan, want *schemas.Desired, rules *policy.Policy) {
	if now.Unknown != "" {
		return
	}
	p.interruptions.Bound(rules.HostBounds(now.Fleet, want, p.l.observed))
	if p.revision != now.Revision {
		p.revision, p.pace = now.Revision, apply.PaceOf(&want.Fleet.Spec.Policy.Rollout)
		steps := make([]plan.Step, 0, len(now.Steps))
		for i := range now.Steps {
			if now.Steps[i].Blocked == "" {
				steps = append(steps, now.Steps[i])
			}
		}
		p.rollout = apply.NewRollout(p.pace, steps)
		p.rollout.Share(p.interruptions)
		p.l.workers.paced = p.pace.Parallel
		for dependency, q := range p.asked {
			if q.step == nil || q.ready {
				delete(p.asked, dependency) // the others are interrupted still
			}
		}
		p.resume(now, want)
	}
}

// resume goes on from what was begun at the revision: by a process that was stopped, or before the branch went elsewhere.
func (p *pacing) resume(now *plan.Plan, want *schemas.Desired) {
	wanted := map[key]bool{}
	for i := range now.Steps {
		wanted[keyFor(now.Steps[i].Address)] = true
	}
	machines := make(map[schemas.Address]*schemas.VM, len(want.VMs))
	for _, vm := range want.VMs {
		machines[vm.Address] = vm
	}
	entries := p.l.accounts.account.Entries()
	for i := range entries {
		e := &entries[i]
		k := keyFor(e.Address)
		step := &plan.Step{Address: e.Address, Domain: e.Domain, Action: e.Action, Reason: e.Reason, Ready: e.Ready, VM: machines[e.Address]}
		if e.Interrupts {
			step.Power = plan.PowerCycle
		} else if e.Awaits {
			step.Power = plan.PowerOn
		}
		have := p.l.observed.Domain(e.Address)
		under := e.State == ledger.Begun && !p.l.gate.busy(k)
		if under && wanted[k] {
			// It goes on, or begins again. A guest that is down meanwhile is one that was taken down.
			if have != nil && have.State != plan.StateRunning {
				p.interruptions.Resume(step, e.Was)
			}
			continue
		}
		var failure error
		if e.State == ledger.Failed {
			failure = apply.ErrNotReady
		}
		p.rollout.Resume(step, e.State != ledger.Begun, failure, e.Canary)
		if e.State == ledger.Well || wanted[k] || step.VM == nil || have == nil || !apply.AwaitsGuest(step) {
			continue
		}
		if under {
			p.interruptions.Resume(step, e.Was)
			p.l.accounts.resume(e)
		}
		dependency := plan.Dependency{Address: step.Address, Ready: step.Ready}
		p.asked[dependency] = &question{
			step: step, revision: now.Revision, why: "nobody knows yet whether it is ready", until: p.l.now().Add(p.pace.Timeout()),
		}
	}
}

// round begins a round of admissions.
func (p *pacing) round(ctx context.Context, now time.Time) {
	p.rollout.Release()
	clear(p.holds)
	p.again(ctx, now)
	p.pacer = nil
	steps := p.l.plan.Steps
	depends := false
	for i := range steps {
		depends = depends || len(steps[i].DependsOn) > 0
	}
	if !depends {
		return
	}
	var runs []plan.Step
	p.index = make([]int, len(steps))
	for i := range steps {
		p.index[i] = len(runs)
		if steps[i].Runs() {
			runs = append(runs, steps[i])
		}
	}
	p.pacer = apply.NewPacer(runs, p.rollout)
	for _, dependency := range p.pacer.Outside() {
		p.pacer.Found(dependency, p.ready(ctx, dependency, now))
	}
}

// hold says why a step must not begin now, or "".
func (p *pacing) hold(i int) string {
	step := &p.l.plan.Steps[i]
	if crashed(step, p.l.observed.Domain(step.Address)) {
		return ""
	}
	reason := p.rollout.Hold(step)
	if p.pacer != nil {
		reason = p.pacer.Wait(p.index[i])
	}
	if reason != "" {
		p.holds[keyFor(step.Address)] = reason
	}
	return reason
}

// stopped reports whether a step that was let through must not begin after all.
func (p *pacing) stopped(step *plan.Step) bool {
	return !crashed(step, p.l.observed.Domain(step.Address)) && p.rollout.Hold(step) != ""
}

// crashed reports whether a step starts a guest again that crashed.
func crashed(step *plan.Step, have *plan.Domain) bool {
	return restarts(step, have) && (have.Stop == plan.StopCrashed || have.Stop == plan.StopFailed)
}

// ready says why a machine that has no step is not ready, or "".
func (p *pacing) ready(ctx context.Context, dependency plan.Dependency, now time.Time) string {
	have := p.l.observed.Domain(dependency.Address)
	switch {
	case have == nil || have.State == plan.StateMissing:
		return "it is not on the host"
	case p.l.gate.busy(keyFor(dependency.Address)):
		return "a step of it is under way"
	case have.State == plan.StatePaused:
		return "the guest is paused"
	case have.State != plan.StateRunning:
		return "the guest is off"
	}
	switch dependency.Ready.Kind {
	case schemas.ReadyRunning:
		return ""
	case "", schemas.ReadyProbe:
		switch {
		case have.Ready == "true" || (have.Ready == "" && dependency.Ready.Kind == ""):
			return ""
		case have.Ready == "":
			return "it has no readiness probe"
		}
		return "readiness probe: " + have.ReadyReason
	case schemas.ReadyAgent, schemas.ReadyTCP, schemas.ReadyCloudInit:
	}
	q := p.asked[dependency]
	if q == nil || (q.fingerprint != have.Fingerprint && !q.asking && (q.step == nil || q.ready)) {
		q = &question{why: "nobody knows yet whether it is ready"}
		p.asked[dependency] = q
	}
	stands := now.Sub(q.answered)
	switch {
	case q.asking:
	case q.ready && stands < askValid:
		return ""
	case !q.ready && !q.answered.IsZero() && stands < askAgain:
		p.l.wakeAt(q.answered.Add(askAgain))
	default:
		p.ask(ctx, dependency, q, have.Fingerprint)
	}
	if q.ready {
		return "" // until it answers otherwise
	}
	return q.why
}

// ask asks a guest in the background; the answer arrives at answered.
func (p *pacing) ask(ctx context.Context, dependency plan.Dependency, q *question, fingerprint string) {
	q.asking, q.fingerprint = true, fingerprint
	p.l.workers.ask(ctx, dependency, q, askPatience)
}

// ended takes the outcome of a step. One that started a guest is well when the guest is ready.
func (p *pacing) ended(ctx context.Context, o *outcome) {
	switch {
	case errors.Is(o.err, apply.ErrStale): // what is planned next counts
		p.interruptions.End(o.step.Domain)
		p.l.accounts.left(o.step.Address)
		return
	case o.err != nil || !apply.AwaitsGuest(&o.step) || p.atOnce(&o.step):
		p.end(&o.step, o.revision, o.err)
		return
	}
	dependency := plan.Dependency{Address: o.step.Address, Ready: o.step.Ready}
	q := &question{step: &o.step, revision: o.revision, why: "nobody knows yet whether it is ready", until: p.l.now().Add(p.pace.Timeout())}
	p.asked[dependency] = q
	p.ask(ctx, dependency, q, "")
}

// end counts a step that is well, or failed.
func (p *pacing) end(step *plan.Step, revision string, err error) {
	p.interruptions.End(step.Domain)
	p.l.accounts.end(step.Address, err)
	if revision == p.revision {
		p.rollout.End(step, err)
	}
}

// atOnce reports whether a guest is ready as soon as it runs.
func (p *pacing) atOnce(step *plan.Step) bool {
	return step.Ready.Kind == schemas.ReadyRunning || (step.Ready.Kind == "" && step.VM.Spec().ReadinessProbe == nil)
}

// answered takes what a guest, or its agent, has said.
func (p *pacing) answered(a answer, now time.Time) {
	q := a.question
	if p.asked[a.dependency] != q {
		return // of another revision, or of another run of the guest
	}
	q.asking, q.answered, q.ready, q.why = false, now, a.err == nil, ""
	if have := p.l.observed.Domain(a.dependency.Address); have != nil && q.fingerprint == "" {
		q.fingerprint = have.Fingerprint
	}
	var not apply.NotReadyError
	switch {
	case errors.As(a.err, &not):
		q.why = not.Reason
	case a.err != nil:
		q.why = problemOf(a.err)
	}
	if q.step == nil {
		return
	}
	switch {
	case a.err == nil:
		p.end(q.step, q.revision, nil)
		p.l.r.event(Normal, GuestReady, q.step.Address, p.revision, "the guest is ready")
	case errors.Is(a.err, apply.ErrNotReady) && (not.Never || !now.Before(q.until)):
		p.end(q.step, q.revision, a.err)
		if q.told != q.why {
			q.told = q.why
			p.l.r.event(Warning, GuestNotReady, q.step.Address, p.revision, "the guest is not ready after its "+string(q.step.Action)+": "+q.why)
		}
	}
}

// again asks the guests that were not ready after their step: the rollout goes on when they are.
func (p *pacing) again(ctx context.Context, now time.Time) {
	for dependency, q := range p.asked {
		if q.step == nil || q.ready || q.asking {
			continue
		}
		have := p.l.observed.Domain(dependency.Address)
		switch at := q.answered.Add(askAgain); {
		case have == nil:
			delete(p.asked, dependency)
			p.interruptions.End(q.step.Domain)
			p.l.accounts.left(q.step.Address)
		case have.State != plan.StateRunning && !now.Before(q.until):
			p.end(q.step, q.revision, apply.NotReadyError{Reason: "the guest is off"})
		case have.State != plan.StateRunning:
			p.l.wakeAt(q.until)
		case now.Before(at):
			p.l.wakeAt(at)
		default:
			p.ask(ctx, dependency, q, have.Fingerprint)
		}
	}
}

// settle notes that the plan asks nothing more of machines that were begun, such as those that somebody has put right by hand.
func (p *pacing) settle(wanted map[key]bool) {
	open := map[key]bool{}
	for dependency, q := range p.asked {
		if q.step != nil && !q.ready {
			open[keyFor(dependency.Address)] = true
		}
	}
	p.rollout.Settle(func(address schemas.Address) bool {
		k := keyFor(address)
		return !wanted[k] && !open[k] && !p.l.gate.busy(k)
	})
}

// notReady tells of the machines whose guests are not ready although a step has started them.
func (p *pacing) notReady() map[key]status.Attempt {
	out := map[key]status.Attempt{}
	for dependency, q := range p.asked {
		if q.step != nil && q.told != "" && !q.ready {
			out[keyFor(dependency.Address)] = status.Attempt{NotReady: q.told}
		}
	}
	return out
}
