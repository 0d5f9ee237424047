package apply

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// DefaultReadyTimeout is how long a guest may take to become ready when the Fleet does not say.
const DefaultReadyTimeout = 5 * time.Minute

// Pace is how fast a plan is carried out, and how far after a failure.
type Pace struct {
	// Parallel is the number of steps carried out at a time; 0 means 8.
	Parallel int
	// Canary is the part of the steps that has to be well before the others begin, a number or a percentage; nil for none.
	Canary *intstr.IntOrString
	// StopOnFailure lets nothing begin after a step has failed.
	StopOnFailure bool
	// ReadyTimeout is how long a guest may take to become ready; 0 means DefaultReadyTimeout.
	ReadyTimeout time.Duration
	// HostBounds bound how many guests are interrupted at a time.
	HostBounds []policy.HostBound
}

// PaceOf is the pace that a Fleet asks for (spec.policy.rollout).
func PaceOf(rollout *schemas.Rollout) Pace {
	return Pace{
		Parallel: rollout.Parallel, Canary: rollout.Canary, StopOnFailure: rollout.OnFailure == "stop",
		ReadyTimeout: time.Duration(rollout.ReadyTimeout),
	}
}

// Timeout is how long a guest may take to become ready.
func (p Pace) Timeout() time.Duration {
	if p.ReadyTimeout <= 0 {
		return DefaultReadyTimeout
	}
	return p.ReadyTimeout
}

// Rollout keeps account of the steps of one revision: which have begun, which are well, which failed. It outlives the
// plans that are made meanwhile, because the canary is that of the revision. It is a value machine without a clock, and
// not safe for concurrent use.
//
// Steps that put right what nobody committed (a guest that went down, drift) are no part of it: they neither count nor
// wait.
type Rollout struct {
	pace   Pace
	canary int
	parts  map[part]progress
	counts [failed + 1]int
	// broken is the first that failed and has not become well since.
	broken []part
	names  map[part]schemas.Address
	// interruptions are those of the host, at whatever revision. Unlike the rest they are about repairs, too.
	interruptions *Interruptions
}

// part is what a Rollout counts: a domain that is made or changed, or one that goes.
type part struct {
	domain string
	gone   bool
}

func partOf(step *plan.Step) part {
	return part{domain: step.Domain, gone: step.Action == plan.ActionDestroy}
}

// progress is how far a part is.
type progress int

const (
	idle progress = iota
	reserved
	begun
	well
	failed
)

// NewRollout returns the account of a revision whose first plan has these steps.
func NewRollout(pace Pace, steps []plan.Step) *Rollout {
	r := &Rollout{pace: pace, parts: map[part]progress{}, names: map[part]schemas.Address{}, interruptions: NewInterruptions()}
	r.interruptions.Bound(pace.HostBounds)
	if pace.Canary == nil {
		return r
	}
	all := map[part]bool{}
	for i := range steps {
		if RolledOut(&steps[i]) {
			all[partOf(&steps[i])] = true
		}
	}
	count, err := intstr.GetScaledValueFromIntOrPercent(pace.Canary, len(all), true)
	if err != nil {
		count = 1 // what cannot be read is no reason to hurry; the schemas refuse it
	}
	if count < len(all) {
		r.canary = max(count, 1)
	}
	return r
}

// Share has the rollout go by an account of interruptions that others have begun.
func (r *Rollout) Share(interruptions *Interruptions) { r.interruptions = interruptions }

// Canary is how many steps go first.
func (r *Rollout) Canary() int { return r.canary }

// Resume counts a step that another process has begun, and how it ended: nil for well. canary is how many go
// first, 0 when that process did not know.
func (r *Rollout) Resume(step *plan.Step, ended bool, err error, canary int) {
	if canary > 0 {
		r.canary = canary
	}
	if RolledOut(step) {
		r.set(step, begun)
	}
	if ended {
		r.End(step, err)
	}
}

// RolledOut reports whether a step carries out what somebody committed.
func RolledOut(step *plan.Step) bool {
	switch step.Reason {
	case plan.ReasonPower, plan.ReasonDrift, plan.ReasonRunningDrift:
		return false
	case plan.ReasonNew, plan.ReasonChanged, plan.ReasonRemoved, plan.ReasonPendingRestart, plan.ReasonAdopted, plan.ReasonRenamed:
	}
	return true
}

// Hold says what keeps a step from beginning, or "".
func (r *Rollout) Hold(step *plan.Step) string {
	if reason := r.holdBack(step); reason != "" {
		return reason
	}
	return r.interruptions.Hold(step)
}

// holdBack says what keeps a step of the revision from beginning.
func (r *Rollout) holdBack(step *plan.Step) string {
	if !RolledOut(step) {
		return ""
	}
	k := partOf(step)
	if broken, ok := r.failure(k); ok {
		switch {
		case r.pace.StopOnFailure:
			return fmt.Sprintf("%s failed, and nothing more begins after a failure (rollout.onFailure is stop)", name(r.names[broken]))
		case r.counts[well] < r.canary:
			return fmt.Sprintf("%s failed, which is one of the %d that go first (rollout.canary)", name(r.names[broken]), r.canary)
		}
	}
	if r.counts[well] >= r.canary || r.parts[k] != idle {
		return ""
	}
	if len(r.parts) < r.canary {
		return ""
	}
	return fmt.Sprintf("%d of the %d that go first (rollout.canary) are ready", r.counts[well], r.canary)
}

// failure returns the first part that failed, other than this one.
func (r *Rollout) failure(other part) (part, bool) {
	for _, broken := range r.broken {
		if broken != other {
			return broken, true
		}
	}
	return part{}, false
}

// Reserve counts a step that is going to begin.
func (r *Rollout) Reserve(step *plan.Step) {
	r.interruptions.Reserve(step)
	if RolledOut(step) && r.parts[partOf(step)] == idle {
		r.set(step, reserved)
	}
}

// Release drops what was reserved and has not begun.
func (r *Rollout) Release() {
	r.interruptions.Release()
	for k, at := range r.parts {
		if at == reserved {
			delete(r.parts, k)
			r.counts[reserved]--
		}
	}
}

// Begin counts a step that begins.
func (r *Rollout) Begin(step *plan.Step) {
	r.interruptions.Begin(step)
	if RolledOut(step) && r.parts[partOf(step)] != failed { // which it remains until it is well
		r.set(step, begun)
	}
}

// End counts a step that is well, or failed.
func (r *Rollout) End(step *plan.Step, err error) {
	r.interruptions.End(step.Domain)
	switch {
	case !RolledOut(step):
	case err != nil:
		r.set(step, failed)
	default:
		r.set(step, well)
	}
}

// Settle counts as well what was begun and needs nothing more; done says of which machines that is true.
func (r *Rollout) Settle(done func(schemas.Address) bool) {
	if r.canary == 0 && len(r.broken) == 0 {
		return
	}
	for k, at := range r.parts {
		if (at == begun || at == failed) && done(r.names[k]) {
			r.move(k, well)
		}
	}
}

func (r *Rollout) set(step *plan.Step, to progress) {
	k := partOf(step)
	r.names[k] = step.Address
	r.move(k, to)
}

func (r *Rollout) move(k part, to progress) {
	from := r.parts[k]
	if from == to {
		return
	}
	if from != idle {
		r.counts[from]--
	}
	if from == failed {
		for i, broken := range r.broken {
			if broken == k {
				r.broken = append(r.broken[:i:i], r.broken[i+1:]...)
				break
			}
		}
	}
	if to == failed {
		r.broken = append(r.broken, k)
	}
	r.parts[k] = to
	r.counts[to]++
}

// name is an address as people write it.
func name(address schemas.Address) string { return address.Namespace + "/" + address.Name }
