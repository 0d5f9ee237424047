package reconciler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

// lane is a kind of work with a bound of its own, so that steps that wait for a guest or for an image never hold up
// the ones that start a crashed guest again.
type lane int

const (
	laneStart lane = iota
	laneDefine
	laneShutdown
	lanes
)

// laneOf tells what a step spends its time on.
func laneOf(step *plan.Step) lane {
	switch {
	case step.Action == plan.ActionDestroy, step.Action == plan.ActionReplace,
		step.Power == plan.PowerOff, step.Power == plan.PowerCycle:
		return laneShutdown
	case step.Define:
		return laneDefine
	}
	return laneStart
}

// outcome is what became of a step.
type outcome struct {
	step     plan.Step
	revision string
	err      error
	took     time.Duration
}

// workers carry out steps in the background, within the bound of each lane. They belong to the loop; only the steps
// themselves run elsewhere.
type workers struct {
	r       *Reconciler
	running sync.WaitGroup
	done    chan outcome
	limit   [lanes]int
	inUse   [lanes]int
	queue   [lanes][]plan.Step
	// answers are what guests say that were asked.
	answers chan answer
	// paced is how many steps of a revision are carried out at a time, over all lanes but that of starts; 0 for no bound.
	paced int
}

func newWorkers(r *Reconciler) *workers {
	n := r.config.Parallel
	return &workers{r: r, done: make(chan outcome), answers: make(chan answer), limit: [lanes]int{laneStart: n, laneDefine: n, laneShutdown: 4 * n}}
}

// clear forgets the steps that wait for a place; the next round plans them anew.
func (w *workers) clear() {
	for i := range w.queue {
		w.queue[i] = nil
	}
}

func (w *workers) enqueue(step plan.Step) {
	lane := laneOf(&step)
	w.queue[lane] = append(w.queue[lane], step)
}

// next takes a step for which there is a place.
func (w *workers) next() (plan.Step, bool) {
	for i := range w.queue {
		if lane(i) != laneStart && w.paced > 0 && w.inUse[laneDefine]+w.inUse[laneShutdown] >= w.paced {
			return plan.Step{}, false
		}
		if len(w.queue[i]) > 0 && w.inUse[i] < w.limit[i] {
			step := w.queue[i][0]
			w.queue[i] = w.queue[i][1:]
			return step, true
		}
	}
	return plan.Step{}, false
}

// begin carries out a step in the background; its outcome arrives on done, unless ctx ends before.
func (w *workers) begin(ctx context.Context, target apply.Target, step plan.Step) {
	lane := laneOf(&step)
	w.inUse[lane]++
	start := w.r.config.Clock.Now()
	w.running.Go(func() {
		result := outcome{step: step, revision: target.Revision, err: w.carryOut(ctx, target, &step)}
		result.took = w.r.config.Clock.Now().Sub(start)
		select {
		case w.done <- result:
		case <-ctx.Done():
		}
	})
}

// ask asks in the background whether a guest is ready; that takes no place.
func (w *workers) ask(ctx context.Context, dependency plan.Dependency, q *question, patience time.Duration) {
	w.running.Go(func() {
		guest := apply.Guest{Address: dependency.Address, Ready: dependency.Ready}
		a := answer{dependency: dependency, question: q, err: w.r.platform.Await(ctx, guest, patience)}
		select {
		case w.answers <- a:
		case <-ctx.Done():
		}
	})
}

// finished gives the place of a step back.
func (w *workers) finished(step *plan.Step) { w.inUse[laneOf(step)]-- }

// carryOut has the platform do a step. Whether its guest becomes ready is another question, which holds up nobody's place.
func (w *workers) carryOut(ctx context.Context, target apply.Target, step *plan.Step) error {
	event := apply.Event{Address: step.Address, Step: step}
	err := w.r.platform.Execute(ctx, target, *step, func(text string) {
		event.Progress = text
		w.r.progress(event)
	})
	w.r.progress(apply.Event{Address: step.Address, Step: step, Done: true, Err: err})
	if err != nil {
		return fmt.Errorf("%s %s: %w", step.Action, step.Address, err)
	}
	return nil
}
