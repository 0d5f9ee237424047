package apply

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// What a platform is asked at a time, and how long.
const (
	checksAtOnce  = 8
	mostChecks    = 200
	checkPatience = 30 * time.Second
)

// Inspection is what a platform said of steps. The zero value knows nothing.
type Inspection struct {
	// found is by the ID of the step: what is found of one is not true of another.
	found  map[string]Findings
	failed error
	left   int
	total  int
}

// Look asks about the steps of a plan that nothing blocks, that are wanted and that were not asked about: the worst for their
// guests first, at most 200 of them, and waits for the answers at most half a minute.
func (i *Inspection) Look(ctx context.Context, checker Checker, p *plan.Plan, wanted func(*plan.Step) bool) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	target := Target{Fleet: p.Fleet, Revision: p.Revision}
	var steps []*plan.Step
	for n := range p.Steps {
		step := &p.Steps[n]
		if _, known := i.found[step.ID]; step.Blocked == "" && !known && wanted(step) {
			steps = append(steps, step)
		}
	}
	i.total += len(steps)
	slices.SortStableFunc(steps, func(a, b *plan.Step) int {
		switch worse := a.Consequence.Worse(b.Consequence); {
		case a.Consequence == b.Consequence:
			return 0
		case worse == a.Consequence:
			return -1
		}
		return 1
	})
	if len(steps) > mostChecks {
		i.left += len(steps) - mostChecks
		steps = steps[:mostChecks]
	}
	if i.found == nil {
		i.found = make(map[string]Findings, len(steps))
	}
	var mu sync.Mutex
	var running errgroup.Group
	running.SetLimit(checksAtOnce)
	for _, step := range steps {
		running.Go(func() error {
			err := ctx.Err()
			var found Findings
			if err == nil {
				found, err = checker.Check(ctx, target, *step)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				i.failed = err
				i.left++
				return nil
			}
			i.found[step.ID] = found
			return nil
		})
	}
	_ = running.Wait() // what went wrong is in the notes
}

// NotLive says of which guests the running one cannot be changed as the plan says, and why.
func (i *Inspection) NotLive(p *plan.Plan) map[schemas.Address]string {
	refused := map[schemas.Address]string{}
	for n := range p.Steps {
		step := &p.Steps[n]
		if found := i.found[step.ID]; found.NotLive != "" && step.Live {
			refused[step.Address] = found.NotLive
		}
	}
	return refused
}

// Mark blocks the wanted steps of a plan that would fail, and gives them the warnings.
func (i *Inspection) Mark(p *plan.Plan, wanted func(*plan.Step) bool) {
	problems, warnings := map[schemas.Address]string{}, map[schemas.Address][]string{}
	for n := range p.Steps {
		step := &p.Steps[n]
		found, ok := i.found[step.ID]
		if !ok || !wanted(step) {
			continue
		}
		if len(found.Problems) > 0 {
			problems[step.Address] = "this step fails if it is tried: " + strings.Join(found.Problems, "; ")
		}
		if len(found.Warnings) > 0 {
			warnings[step.Address] = found.Warnings
		}
	}
	p.Block(problems)
	p.Warn(warnings)
}

// Equal reports whether a plan says the same of both.
func (i *Inspection) Equal(other *Inspection) bool {
	return slices.Equal(i.Notes(), other.Notes()) &&
		maps.EqualFunc(i.found, other.found, func(a, b Findings) bool { return reflect.DeepEqual(a, b) })
}

// Notes say what was not checked.
func (i *Inspection) Notes() []string {
	switch {
	case i.left == 0:
		return nil
	case i.failed != nil:
		return []string{fmt.Sprintf("the host did not check %d of %d steps: %v", i.left, i.total, i.failed)}
	}
	return []string{fmt.Sprintf("the host checked the %d of %d steps that are worst for their guests", i.total-i.left, i.total)}
}
