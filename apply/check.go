package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Checker looks at a step before it is carried out, and changes nothing.
type Checker interface {
	// Check says what is wrong with a step, if anything is. An error says that nobody could tell.
	Check(ctx context.Context, target Target, step plan.Step) (Findings, error)
}

// Findings are what a look at a step found, in words for people.
type Findings struct {
	// Problems keep the step from being carried out now.
	Problems []string
	// NotLive is why the running guest cannot be changed live, although the step asks for that.
	NotLive string
	// Warnings are what may go wrong later, although the step can be carried out.
	Warnings []string
}

// CheckOptions bound how much is checked; zero fields mean 8 at a time, 200 steps and 30 seconds.
type CheckOptions struct {
	Parallel int
	Most     int
	Patience time.Duration
}

func (o CheckOptions) withDefaults() CheckOptions {
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if o.Most <= 0 {
		o.Most = 200
	}
	if o.Patience <= 0 {
		o.Patience = 30 * time.Second
	}
	return o
}

// Plan builds a plan and has the platform check its steps: what would fail is blocked with the reason, and where a guest
// cannot be changed live the plan is made again without that. What was not checked stays as it is, and the plan's notes
// tell it.
func Plan(ctx context.Context, want *schemas.Desired, have plan.Observed, options plan.Options, checker Checker, check CheckOptions) (*plan.Plan, error) {
	p, err := plan.Build(want, have, options)
	if err != nil || p.Unknown != "" {
		return p, err
	}
	c := &checks{
		checker: checker, options: check.withDefaults(),
		problems: map[schemas.Address]string{}, notLive: map[schemas.Address]string{}, warnings: map[schemas.Address][]string{},
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Patience)
	defer cancel()
	c.look(ctx, p, nil)
	if len(c.notLive) > 0 {
		checked := make(map[string]bool, len(p.Steps))
		for i := range p.Steps {
			checked[p.Steps[i].ID] = true
		}
		if p, err = plan.Build(want, plan.RefusedLive(have, p.Steps, c.notLive), options); err != nil {
			return nil, err
		}
		c.look(ctx, p, checked)
	}
	p.Block(c.problems)
	p.Warn(c.warnings)
	p.Notes = append(p.Notes, c.notes()...)
	return p, nil
}

// checks is what was found.
type checks struct {
	checker Checker
	options CheckOptions

	mu       sync.Mutex
	problems map[schemas.Address]string
	notLive  map[schemas.Address]string
	warnings map[schemas.Address][]string
	failed   error
	left     int
	total    int
}

// look checks the steps of a plan that nothing blocks, the worst for their guests first, but for those that were.
func (c *checks) look(ctx context.Context, p *plan.Plan, checked map[string]bool) {
	target := Target{Fleet: p.Fleet, Revision: p.Revision}
	var steps []plan.Step
	for i := range p.Steps {
		if step := &p.Steps[i]; step.Blocked == "" && !checked[step.ID] {
			delete(c.problems, step.Address)
			delete(c.warnings, step.Address)
			steps = append(steps, *step)
		}
	}
	c.total += len(steps)
	slices.SortStableFunc(steps, func(a, b plan.Step) int {
		switch worse := a.Consequence.Worse(b.Consequence); {
		case a.Consequence == b.Consequence:
			return 0
		case worse == a.Consequence:
			return -1
		}
		return 1
	})
	if len(steps) > c.options.Most {
		c.left += len(steps) - c.options.Most
		steps = steps[:c.options.Most]
	}
	var running errgroup.Group
	running.SetLimit(c.options.Parallel)
	for i := range steps {
		running.Go(func() error {
			c.one(ctx, target, &steps[i])
			return nil
		})
	}
	_ = running.Wait() // what went wrong is in the notes
}

func (c *checks) one(ctx context.Context, target Target, step *plan.Step) {
	err := ctx.Err()
	var found Findings
	if err == nil {
		found, err = c.checker.Check(ctx, target, *step)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = err
		c.left++
		return
	}
	if len(found.Problems) > 0 {
		c.problems[step.Address] = wouldFail(found.Problems)
	}
	if found.NotLive != "" && step.Live {
		c.notLive[step.Address] = found.NotLive
	}
	if len(found.Warnings) > 0 {
		c.warnings[step.Address] = found.Warnings
	}
}

func wouldFail(problems []string) string {
	return "this step fails if it is tried: " + strings.Join(problems, "; ")
}

// notes say what was not checked.
func (c *checks) notes() []string {
	switch {
	case c.left == 0:
		return nil
	case c.failed != nil:
		return []string{fmt.Sprintf("the host did not check %d of %d steps: %v", c.left, c.total, c.failed)}
	}
	return []string{fmt.Sprintf("the host checked the %d of %d steps that are worst for their guests", c.total-c.left, c.total)}
}

// CheckedFirst is an Executor that has a step checked before it is carried out when its guest would go down for it: a
// guest is not stopped for what is known to fail.
type CheckedFirst struct {
	Executor
	Checker Checker
}

// Execute checks, and carries out what has no problems. What cannot be checked is carried out: its own checks remain.
func (c CheckedFirst) Execute(ctx context.Context, target Target, step plan.Step, progress func(string)) error {
	if interrupts(&step) {
		found, err := c.Checker.Check(ctx, target, step)
		switch {
		case errors.Is(err, ErrStale):
			return err
		case err == nil && len(found.Problems) > 0:
			return fmt.Errorf("%w: not begun, because it would fail: %s", ErrRetry, strings.Join(found.Problems, "; "))
		}
	}
	return c.Executor.Execute(ctx, target, step, progress)
}

// Console is that of the Executor, when it has one.
func (c CheckedFirst) Console(ctx context.Context, guest Guest, lines int) ([]string, error) {
	if reader, ok := c.Executor.(ConsoleReader); ok {
		return reader.Console(ctx, guest, lines)
	}
	return nil, nil
}

// interrupts reports whether a step takes a running guest down and needs it to come back.
func interrupts(step *plan.Step) bool {
	return step.Power == plan.PowerCycle || step.Action == plan.ActionReplace
}
