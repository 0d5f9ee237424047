package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// counted is a platform whose steps are written down before they begin, where the Fleet has budgets: the controller and the
// next apply go by that.
type counted struct {
	driver
	observed plan.Observed
	budgets  bool

	mu      sync.Mutex
	account *ledger.Account
	open    map[schemas.Address]ledger.Entry
	// failed is what could not be written down of steps that ended.
	failed error
}

// newCounted keeps others from carrying out steps that count until the account is closed.
func newCounted(d driver, p *hostPlan) (*counted, error) {
	c := &counted{
		driver: d, observed: p.observed, budgets: len(p.desired.Fleet.Spec.Policy.Budgets) > 0,
		account: p.account, open: map[schemas.Address]ledger.Entry{},
	}
	if !c.budgets {
		return c, nil
	}
	switch err := c.account.Hold(); {
	case errors.Is(err, ledger.ErrBusy):
		return nil, fmt.Errorf("%w; nothing was carried out, run again when it is done", err)
	case errors.Is(err, ledger.ErrMoved):
		return nil, fmt.Errorf("the plan is stale: %w; nothing was carried out, plan again", err)
	case err != nil:
		return nil, fmt.Errorf("what counts for the Fleet's budgets cannot be written down, so nothing was carried out: %w", err)
	}
	return c, nil
}

// Execute writes down that the step begins, and carries it out.
func (c *counted) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	if err := c.begin(&step); err != nil {
		return fmt.Errorf("%w: %w", apply.ErrRetry, err)
	}
	return c.driver.Execute(ctx, target, step, progress)
}

func (c *counted) begin(step *plan.Step) error {
	spent, counts := policy.Spend(step, c.observed)
	if !c.budgets || !counts {
		return nil
	}
	entry := ledger.NewEntry(step, spent, time.Now())
	entry.Awaits = apply.AwaitsGuest(step)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.account.Begin(entry); err != nil {
		return err
	}
	c.open[step.Address] = entry
	return nil
}

// ended writes down how a step ended.
func (c *counted) ended(event *apply.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, began := c.open[event.Address]
	if !event.Done || !began {
		return
	}
	delete(c.open, event.Address)
	state := ledger.Well
	switch {
	case errors.Is(event.Err, apply.ErrLeft):
		state = ledger.Begun
	case event.Err != nil:
		state = ledger.Failed
	}
	c.failed = errors.Join(c.failed, c.account.End(entry, state))
}
