package reconciler

import (
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// accounting writes down what is done at a revision, as far as budgets, canaries and failures count it, before it is done. It
// belongs to the loop.
type accounting struct {
	l               *loop
	fleet, revision string
	account         *ledger.Account
	// open are the steps under way that were written down, with the account that they are in.
	open map[key]entered
	// told is the problem that was told last.
	told string
}

type entered struct {
	account *ledger.Account
	entry   ledger.Entry
}

// writeAgain is when a step is tried again that could not be written down, or that waits for another process.
const writeAgain = 2 * time.Second

// turn takes the account of the present revision.
func (a *accounting) turn() {
	fleet, revision := a.l.desired.Fleet.Name, a.l.snapshot.Revision
	if a.account == nil || a.fleet != fleet || a.revision != revision {
		a.fleet, a.revision = fleet, revision
		a.account = a.l.r.config.Ledger.Account(fleet, revision)
		return
	}
	a.account.Refresh()
}

// counts reports whether a step is written down, and returns it as it is.
func (a *accounting) counts(step *plan.Step) (ledger.Entry, bool) {
	policies := &a.l.desired.Fleet.Spec.Policy
	spent, counts := policy.Spend(step, a.l.observed)
	counts = counts && len(policies.Budgets) > 0
	rollout := &a.l.pacing.pace
	if !counts && (!apply.RolledOut(step) || rollout.Canary == nil && !rollout.StopOnFailure) {
		return ledger.Entry{}, false
	}
	entry := ledger.NewEntry(step, spent, a.l.now())
	entry.Awaits, entry.Canary = apply.AwaitsGuest(step), a.l.pacing.rollout.Canary()
	return entry, true
}

// begin writes down that a step begins, and says why it must not, or "".
func (a *accounting) begin(step *plan.Step) string {
	entry, counts := a.counts(step)
	if !counts {
		return ""
	}
	a.left(step.Address)
	switch err := a.account.Begin(entry); {
	case err == nil:
		a.open[keyFor(step.Address)] = entered{a.account, entry}
		a.told = ""
		return ""
	case errors.Is(err, ledger.ErrMoved):
		a.l.replan, a.l.dirty = true, true
		return err.Error()
	case errors.Is(err, ledger.ErrBusy):
		a.l.wakeAt(a.l.now().Add(writeAgain))
		return "waits because " + err.Error()
	default:
		a.l.wakeAt(a.l.now().Add(writeAgain))
		if problem := problemOf(err); problem != a.told {
			a.told = problem
			a.l.r.event(Warning, ApplyFailed, step.Address, a.revision, "not begun: "+problem)
		}
		return problemOf(err)
	}
}

// resume takes over what another process has begun. When that one still lives it is told by that.
func (a *accounting) resume(entry *ledger.Entry) {
	if a.account.Hold() == nil {
		a.open[keyFor(entry.Address)] = entered{a.account, *entry}
	}
}

// end writes down how a step ended: its guest is ready, or it failed.
func (a *accounting) end(address schemas.Address, failure error) {
	if failure != nil {
		a.write(address, ledger.Failed)
	} else {
		a.write(address, ledger.Well)
	}
}

// left notes that nobody will tell how a step ended.
func (a *accounting) left(address schemas.Address) { a.write(address, ledger.Begun) }

func (a *accounting) write(address schemas.Address, state ledger.State) {
	one, counted := a.open[keyFor(address)]
	if !counted {
		return
	}
	delete(a.open, keyFor(address))
	if err := one.account.End(one.entry, state); err != nil {
		a.l.r.event(Warning, ApplyFailed, address, a.revision, problemOf(err)) // it counts as under way until then
	}
	a.l.dirty = true
}

// policy returns the policy of the Fleet as it is now.
func (l *loop) policy(now time.Time) *policy.Policy {
	l.accounts.turn()
	approvals, _ := l.given()
	return policy.New(l.desired.Fleet, policy.Options{Now: now, Approvals: approvals, History: l.accounts.account.History()})
}
