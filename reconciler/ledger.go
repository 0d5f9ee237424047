package reconciler

import (
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// ledger remembers what was done at the present revision, for the budgets of the Fleet's policy. It belongs to the loop. A
// new process begins with an empty one: what counts against a budget of a revision is what this process has done.
type ledger struct {
	revision string
	done     []policy.Spent
	underWay map[key]policy.Spent
}

// turn begins a new account when the revision is another one. What is under way goes on counting until it is done.
func (l *ledger) turn(revision string) {
	if l.revision != revision {
		l.revision, l.done = revision, nil
	}
}

// begin notes that a step is being carried out.
func (l *ledger) begin(step *plan.Step, have plan.Observed) {
	spent, counts := policy.Spend(step, have)
	if !counts {
		return
	}
	if l.underWay == nil {
		l.underWay = map[key]policy.Spent{}
	}
	l.underWay[keyFor(step.Address)] = spent
}

// end notes that a step was carried out, or failed, and reports whether it counted.
func (l *ledger) end(step *plan.Step) bool {
	spent, counted := l.underWay[keyFor(step.Address)]
	if counted {
		delete(l.underWay, keyFor(step.Address))
		l.done = append(l.done, spent)
	}
	return counted
}

func (l *ledger) history() policy.History {
	history := policy.History{Done: l.done}
	for _, spent := range l.underWay {
		history.UnderWay = append(history.UnderWay, spent)
	}
	return history
}

// policy returns the policy of the Fleet as it is now.
func (l *loop) policy(now time.Time) *policy.Policy {
	l.ledger.turn(l.snapshot.Revision)
	return policy.New(l.desired.Fleet, policy.Options{
		Now: now, Approvals: status.ApprovalsFor(l.approvals, l.desired.Fleet.Name), History: l.ledger.history(),
	})
}
