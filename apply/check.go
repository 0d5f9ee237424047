package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// Plan builds a plan and has the platform check its steps: what would fail is blocked with the reason, and where a guest
// cannot be changed live the plan is made again without that. What was not checked stays as it is, and the plan's notes
// tell it.
func Plan(ctx context.Context, want *schemas.Desired, have plan.Observed, options plan.Options, checker Checker) (*plan.Plan, error) {
	p, err := plan.Build(want, have, options)
	if err != nil || p.Unknown != "" {
		return p, err
	}
	var found Inspection
	found.Look(ctx, checker, p, all)
	if refused := found.NotLive(p); len(refused) > 0 {
		if p, err = plan.Build(want, plan.RefusedLive(have, p.Steps, refused), options); err != nil {
			return nil, err
		}
		found.Look(ctx, checker, p, all)
	}
	found.Mark(p, all)
	p.Notes = append(p.Notes, found.Notes()...)
	return p, nil
}

func all(*plan.Step) bool { return true }

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
