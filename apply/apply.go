// Package apply carries out the steps of a plan: exactly those that were shown, in parallel within a bound, each
// checked against what the plan saw. It plans nothing itself. Where the steps are carried out is the business of
// its subpackages: host drives a node agent.
package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

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
	one := func(i int) {
		step := &steps[i]
		report(Event{Address: step.Address, Step: step})
		err := executor.Execute(ctx, target, *step, func(progress string) {
			report(Event{Address: step.Address, Step: step, Progress: progress})
		})
		if err != nil {
			err = fmt.Errorf("%s %s: %w", step.Action, step.Address, err)
		}
		results[i].Err = err
		report(Event{Address: step.Address, Step: step, Done: true, Err: err})
	}
	var running errgroup.Group
	running.SetLimit(parallel)
	for _, chain := range chains(steps) {
		running.Go(func() error {
			for _, i := range chain {
				results[i].Step = steps[i]
				if ctx.Err() != nil {
					results[i].Err = fmt.Errorf("%s %s: not begun: %w", steps[i].Action, steps[i].Address, context.Cause(ctx))
					continue
				}
				one(i)
			}
			return nil
		})
	}
	_ = running.Wait() // what failed is in the results
	return results
}

// chains returns the steps by domain: what is one domain goes one after the other, its destroy first. Two steps are one
// domain when a VirtualMachine becomes a VirtualMachineInstance of the same name.
func chains(steps []plan.Step) [][]int {
	var out [][]int
	of := map[string]int{}
	for i := range steps {
		at, known := of[steps[i].Domain]
		switch {
		case !known:
			of[steps[i].Domain] = len(out)
			out = append(out, []int{i})
		case steps[i].Action == plan.ActionDestroy:
			out[at] = append([]int{i}, out[at]...)
		default:
			out[at] = append(out[at], i)
		}
	}
	return out
}
