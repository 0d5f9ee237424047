// Package apply carries out the steps of a plan: exactly those that were shown, in parallel within a bound, each
// checked against what the plan saw. It plans nothing itself. Where the steps are carried out is the business of
// its subpackages: host drives a node agent.
package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// The kinds of failures; callers decide with errors.Is. Every error of an Executor wraps one of them.
var (
	// ErrStale: the domain is no longer what the plan saw. Plan again.
	ErrStale = errors.New("the plan is stale")
	// ErrRetry: the host cannot do it now. Try again later.
	ErrRetry = errors.New("the host cannot do it now")
	// ErrStalled: trying again cannot help until git or the host changes.
	ErrStalled = errors.New("cannot be done as it is written")
)

// Target says on whose behalf steps are carried out; it becomes part of each domain's record.
type Target struct {
	Fleet    string
	Revision string
}

// Executor carries out one step and verifies it. Carrying out a step twice equals once.
type Executor interface {
	Execute(ctx context.Context, target Target, step plan.Step, progress func(string)) error
}

// Event is what happens to a step while a plan is applied.
type Event struct {
	Address schemas.Address
	Step    *plan.Step
	// Progress says what is being done now; empty in the first and the last event of a step.
	Progress string
	Done     bool
	Err      error
}

// Options are the bounds of a Run.
type Options struct {
	// Parallel is the number of steps carried out at a time; 0 means 8.
	Parallel int
	// Report gets every event, one at a time; nil means nobody listens.
	Report func(Event)
}

// Result is what became of a step.
type Result struct {
	Step plan.Step
	Err  error
}

// Run carries out the steps and returns one result per step, in their order. One failed step stops no other. When
// ctx ends, steps that have not begun fail with the context's error.
func Run(ctx context.Context, target Target, steps []plan.Step, executor Executor, options Options) []Result {
	parallel := options.Parallel
	if parallel <= 0 {
		parallel = 8
	}
	var reporting sync.Mutex
	report := func(event Event) {
		if options.Report == nil {
			return
		}
		reporting.Lock()
		defer reporting.Unlock()
		options.Report(event)
	}
	results := make([]Result, len(steps))
	slots := make(chan struct{}, parallel)
	var running sync.WaitGroup
	for i := range steps {
		step := &steps[i]
		results[i].Step = *step
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			results[i].Err = fmt.Errorf("%s %s: not begun: %w", step.Action, step.Address, context.Cause(ctx))
			continue
		}
		running.Go(func() {
			defer func() { <-slots }()
			report(Event{Address: step.Address, Step: step})
			err := executor.Execute(ctx, target, *step, func(progress string) {
				report(Event{Address: step.Address, Step: step, Progress: progress})
			})
			if err != nil {
				err = fmt.Errorf("%s %s: %w", step.Action, step.Address, err)
			}
			results[i].Err = err
			report(Event{Address: step.Address, Step: step, Done: true, Err: err})
		})
	}
	running.Wait()
	return results
}
