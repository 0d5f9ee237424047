package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

// applyOptions say how a plan is carried out.
type applyOptions struct {
	approved bool
	// parallel is 0 for what the Fleet says.
	parallel int
	output   string
}

// json reports whether a program reads what happens.
func (o *applyOptions) json() bool { return o.output == "json" }

// consoleLines is how many lines of the console of a guest that is not ready are shown on a terminal.
const consoleLines = 15

// terminal is the terminal that is written to; nil when the output goes elsewhere or the terminal cannot move its cursor.
func (c *cli) terminal() *os.File {
	file, ok := c.stdout.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || c.getenv("TERM") == "dumb" {
		return nil
	}
	return file
}

// begin shows the plan that is carried out.
func (c *cli) begin(p *hostPlan, o *applyOptions) error {
	if o.json() {
		return writeLine(c.stdout, &line{Type: linePlan, Plan: p.ID, Revision: p.Revision, Fleet: p.Fleet, Steps: len(p.Executable()), Message: p.SummaryLine(), Error: p.Unknown})
	}
	if err := p.Text(c.stdout, plan.TextOptions{Color: c.color(), Node: p.node}); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return nil
}

// teller tells what happens to the steps of a plan.
type teller interface {
	report(event apply.Event)
	// interrupted says that no step begins any more.
	interrupted()
	// end says how it came out.
	end(tally *tally)
}

func (c *cli) teller(o *applyOptions) teller {
	switch file := c.terminal(); {
	case o.json():
		return &jsonTeller{out: c.stdout, began: map[*plan.Step]time.Time{}, start: time.Now()}
	case file != nil:
		return newLiveTeller(file, c.color(), c.stderr)
	}
	return &plainTeller{out: c.stdout, err: c.stderr, began: map[*plan.Step]time.Time{}}
}

// tally counts how the steps came out.
type tally struct {
	results                      []apply.Result
	done, failed, left, notBegun int
	interrupted                  bool
}

func newTally(results []apply.Result, interrupted bool) *tally {
	t := &tally{results: results, interrupted: interrupted}
	for _, result := range results {
		switch {
		case result.Err == nil:
			t.done++
		case errors.Is(result.Err, apply.ErrNotBegun):
			t.notBegun++
		case errors.Is(result.Err, apply.ErrLeft):
			t.left++
		default:
			t.failed++
		}
	}
	return t
}

// err is how the command ends.
func (t *tally) err() error {
	var parts []string
	for _, part := range []struct {
		count int
		text  string
	}{{t.done, "done"}, {t.failed, "failed"}, {t.left, "left under way"}, {t.notBegun, "not begun"}} {
		if part.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.count, part.text))
		}
	}
	text := fmt.Sprintf("of %d step%s: %s; what was carried out stays, run again to go on", len(t.results), plural(len(t.results)), strings.Join(parts, ", "))
	switch {
	case t.done == len(t.results):
		return nil
	case t.interrupted:
		return fmt.Errorf("%w %s", errInterrupted, text)
	}
	return errors.New(text)
}

// carryOut carries out the steps of a plan. An interrupt lets no step begin any more; a second one leaves those under way.
func (c *cli) carryOut(ctx context.Context, p *hostPlan, platform *platform, o *applyOptions) error {
	pace := apply.PaceOf(&p.desired.Fleet.Spec.Policy.Rollout)
	if o.parallel > 0 {
		pace.Parallel = o.parallel
	}
	pace.HostBounds = p.rules.HostBounds(p.Fleet, p.desired, p.observed)
	counted, err := newCounted(platform.driver, p)
	if err != nil {
		return err
	}
	defer counted.account.Close()
	options := apply.Options{Pace: pace, Stop: ctx.Done()}
	if c.terminal() != nil && !o.json() {
		options.ConsoleLines = consoleLines
	}
	t := c.teller(o)
	options.Report = func(event apply.Event) {
		counted.ended(&event)
		t.report(event)
	}
	working, leave := context.WithCancel(context.WithoutCancel(ctx))
	defer leave()
	defer onInterrupts(t.interrupted, leave)()
	results := apply.Run(working, apply.Target{Fleet: p.Fleet, Revision: p.Revision}, p.Executable(), apply.CheckedFirst{Executor: counted, Checker: platform.driver}, options)
	tally := newTally(results, ctx.Err() != nil)
	t.end(tally)
	return errors.Join(tally.err(), counted.failed)
}

// onInterrupts calls first at the first interrupt and second at the next, until what it returns is called.
func onInterrupts(first, second func()) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for _, react := range []func(){first, second} {
			select {
			case <-signals:
				react()
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
