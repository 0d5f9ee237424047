package apply

import (
	"fmt"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
)

// Interruptions keep account of the guests of a host that are interrupted now: from the beginning of their restart until they
// are ready, or it is clear that they do not become so. No more are at a time than the bounds let; the next begins when one
// has ended, whatever its revision. Like a Rollout they are a value machine without a clock, and not safe for concurrent use.
type Interruptions struct {
	bounds []policy.HostBound
	// under are the restarts under way, by domain.
	under map[string]*interruption
	// taken counts those of each bound.
	taken []int
}

type interruption struct {
	step  *plan.Step
	begun bool
}

// NewInterruptions returns an account with nothing under way.
func NewInterruptions() *Interruptions {
	return &Interruptions{under: map[string]*interruption{}}
}

// Bound sets the bounds; what is under way counts for them.
func (n *Interruptions) Bound(bounds []policy.HostBound) {
	n.bounds = bounds
	n.count()
}

func (n *Interruptions) count() {
	n.taken = make([]int, len(n.bounds))
	for _, one := range n.under {
		n.add(one.step, 1)
	}
}

func (n *Interruptions) add(step *plan.Step, by int) {
	for i := range n.bounds {
		if n.bounds[i].Counts(step) {
			n.taken[i] += by
		}
	}
}

// Hold says what keeps a step from beginning, or "".
func (n *Interruptions) Hold(step *plan.Step) string {
	if n.under[step.Domain] != nil {
		return ""
	}
	for i := range n.bounds {
		if b := &n.bounds[i]; n.taken[i] >= b.Limit && b.Counts(step) {
			return fmt.Sprintf("waits for others: the budget %s lets %d of %d machines of a host be interrupted at a time", b.Budget, b.Limit, b.Base)
		}
	}
	return ""
}

// Reserve counts a step that is going to begin.
func (n *Interruptions) Reserve(step *plan.Step) {
	if step.Power == plan.PowerCycle && n.under[step.Domain] == nil {
		n.under[step.Domain] = &interruption{step: step}
		n.add(step, 1)
	}
}

// Release drops what was reserved and has not begun.
func (n *Interruptions) Release() {
	for domain, one := range n.under {
		if !one.begun {
			delete(n.under, domain)
			n.add(one.step, -1)
		}
	}
}

// Begin counts a step that begins.
func (n *Interruptions) Begin(step *plan.Step) {
	n.Reserve(step)
	if one := n.under[step.Domain]; one != nil {
		one.begun = true
	}
}

// End gives the place of a guest back. Whatever started it last, its restart is over.
func (n *Interruptions) End(domain string) {
	if one := n.under[domain]; one != nil {
		delete(n.under, domain)
		n.add(one.step, -1)
	}
}
