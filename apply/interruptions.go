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
	// was is what its machine was when another process began the step.
	was []policy.Named
	// in are the budgets that it has a place of. It keeps them until it ends, whatever labels the machine has meanwhile.
	in map[string]bool
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
		n.add(one)
	}
}

func (n *Interruptions) add(one *interruption) {
	for i := range n.bounds {
		b := &n.bounds[i]
		if one.in[b.Budget] || b.Counts(one.step, one.was) {
			one.in[b.Budget] = true
			n.taken[i]++
		}
	}
}

// remove gives the places of a domain back.
func (n *Interruptions) remove(domain string) {
	one := n.under[domain]
	if one == nil {
		return
	}
	delete(n.under, domain)
	for i := range n.bounds {
		if one.in[n.bounds[i].Budget] {
			n.taken[i]--
		}
	}
}

// Hold says what keeps a step from beginning, or "".
func (n *Interruptions) Hold(step *plan.Step) string {
	if n.under[step.Domain] != nil {
		return ""
	}
	for i := range n.bounds {
		if b := &n.bounds[i]; n.taken[i] >= b.Limit && b.Counts(step, nil) {
			return fmt.Sprintf("waits for others: the budget %s lets %d of %d machines of a host be interrupted at a time", b.Budget, b.Limit, b.Base)
		}
	}
	return ""
}

// Reserve counts a step that is going to begin.
func (n *Interruptions) Reserve(step *plan.Step) { n.reserve(step, nil) }

func (n *Interruptions) reserve(step *plan.Step, was []policy.Named) {
	if step.Power == plan.PowerCycle && n.under[step.Domain] == nil {
		one := &interruption{step: step, was: was, in: map[string]bool{}}
		n.under[step.Domain] = one
		n.add(one)
	}
}

// Release drops what was reserved and has not begun.
func (n *Interruptions) Release() {
	for domain, one := range n.under {
		if !one.begun {
			n.remove(domain)
		}
	}
}

// Begin counts a step that begins.
func (n *Interruptions) Begin(step *plan.Step) { n.Resume(step, nil) }

// Resume counts a step that another process has begun, when its machine was what is written down.
func (n *Interruptions) Resume(step *plan.Step, was []policy.Named) {
	n.reserve(step, was)
	if one := n.under[step.Domain]; one != nil {
		one.begun = true
	}
}

// End gives the place of a guest back. Whatever started it last, its restart is over.
func (n *Interruptions) End(domain string) { n.remove(domain) }
