// Package apply carries out the steps of a plan: exactly those that were shown, in the order that dependencies ask for
// and at the pace of the Fleet, each checked against what the plan saw. It plans nothing itself. Where the steps are
// carried out is the business of its subpackages: host drives a node agent.
package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

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
	// ErrNotReady: the step was carried out, and its guest did not become ready.
	ErrNotReady = errors.New("the guest is not ready")
	// ErrLeft: nobody waited for the end of the step. Who carries it out goes on with it.
	ErrLeft = errors.New("left while it was under way")
	// ErrNotBegun: the step was not begun, and nothing was changed.
	ErrNotBegun = errors.New("not begun")
)

// Target says on whose behalf steps are carried out; it becomes part of each domain's record.
type Target struct {
	Fleet    string
	Revision string
}

// For is the target as it becomes part of the record of a step's domain: a machine of another repository has the revision of that.
func (t Target) For(step *plan.Step) Target {
	t.Revision = cmp.Or(step.Revision, t.Revision)
	return t
}

// Guest is a machine that somebody waits for.
type Guest struct {
	Address schemas.Address
	// Domain is the name of its domain; empty when the caller does not know it.
	Domain string
	Ready  schemas.Ready
}

// Executor carries out single steps and tells when guests are ready.
type Executor interface {
	// Execute carries out one step and verifies it. Carrying out a step twice equals once.
	Execute(ctx context.Context, target Target, step plan.Step, progress func(string)) error
	// Await returns when a guest is ready. That it is not in time, or cannot become so, is ErrNotReady.
	Await(ctx context.Context, guest Guest, timeout time.Duration) error
}

// ConsoleReader is an Executor that can show what a guest has printed lately. It may be anything, also secrets: it is for
// whoever applies, and is written nowhere.
type ConsoleReader interface {
	Console(ctx context.Context, guest Guest, lines int) ([]string, error)
}

// Event is what happens to a step while a plan is applied.
type Event struct {
	Address schemas.Address
	Step    *plan.Step
	// Progress says what is being done now; empty in the first and the last event of a step.
	Progress string
	Done     bool
	Err      error
	// Console is what the guest that is not ready printed last.
	Console []string
}

// Options are the bounds of a Run.
type Options struct {
	Pace Pace
	// Stop, once closed, lets no step begin any more; those under way are waited for.
	Stop <-chan struct{}
	// ConsoleLines is how many lines of the console of a guest that is not ready are reported; 0 for none.
	ConsoleLines int
	// Report gets every event, one at a time; nil means nobody listens.
	Report func(Event)
}

// Result is what became of a step: no error when it was carried out and its guest is ready, ErrNotBegun when it was not
// begun, else why it failed.
type Result struct {
	Step plan.Step
	Err  error
}

// stopReason is why steps do not begin after Options.Stop.
const stopReason = "interrupted"

// consolePatience bounds how long a console is read.
const consolePatience = 5 * time.Second

// Run carries out the steps and returns one result per step, in their order. A step that fails stops those that depend on
// it, and others as the pace says. When ctx ends, steps under way are left.
func Run(ctx context.Context, target Target, steps []plan.Step, executor Executor, options Options) []Result {
	r := &run{
		target: target, executor: executor, options: options, steps: steps, results: make([]Result, len(steps)),
		pacer: NewPacer(steps, NewRollout(options.Pace, steps)), news: make(chan func(), 16),
	}
	for i := range steps {
		r.results[i].Step = steps[i]
	}
	r.loop(ctx)
	for i := range steps {
		if r.pacer.states[i] == stepWaits {
			r.refuse(i)
		}
	}
	return r.results
}

// run is one Run. Its fields belong to the goroutine of loop; what happens elsewhere arrives as news.
type run struct {
	target   Target
	executor Executor
	options  Options
	steps    []plan.Step
	results  []Result
	pacer    *Pacer
	news     chan func()
	// working counts the steps under way and the questions that are asked.
	working int
	stopped bool
}

func (r *run) loop(ctx context.Context) {
	// Nobody is interested in whether a guest is ready for a step that will not begin.
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	stop := r.options.Stop
	for {
		if ctx.Err() != nil {
			r.stopped = true
		}
		if !r.stopped {
			r.begin(ctx, asking)
		}
		if r.working == 0 {
			return
		}
		select {
		case <-stop:
			stop, r.stopped = nil, true
			stopAsking()
		case tell := <-r.news:
			tell()
		}
	}
}

// begin begins all that may.
func (r *run) begin(ctx, asking context.Context) {
	for {
		select {
		case <-r.options.Stop:
			r.stopped = true
			return
		default:
		}
		i, ok := r.pacer.Next()
		if !ok {
			break
		}
		r.working++
		r.report(Event{Address: r.steps[i].Address, Step: &r.steps[i]})
		go r.work(ctx, i)
	}
	for _, dependency := range r.pacer.Outside() {
		r.working++
		go func() {
			err := r.executor.Await(asking, Guest{Address: dependency.Address, Ready: dependency.Ready}, r.options.Pace.Timeout())
			r.news <- func() {
				r.working--
				r.pacer.Found(dependency, whyNot(err))
			}
		}()
	}
}

// whyNot is the reason for which a guest is not ready, without the words that say so.
func whyNot(err error) string {
	if err == nil {
		return ""
	}
	var not NotReadyError
	if errors.As(err, &not) {
		return not.Reason
	}
	return err.Error()
}

// NotReadyError is an ErrNotReady with its reason.
type NotReadyError struct {
	// Reason is what was found when the guest was asked last.
	Reason string
	// Never says that it cannot become ready any more, as when it is off.
	Never bool
}

// Error implements error.
func (e NotReadyError) Error() string { return ErrNotReady.Error() + ": " + e.Reason }

// Is makes it an ErrNotReady.
func (e NotReadyError) Is(target error) bool { return target == ErrNotReady }

// work carries out a step and waits for its guest.
func (r *run) work(ctx context.Context, i int) {
	step := &r.steps[i]
	progress := func(text string) {
		r.news <- func() { r.report(Event{Address: step.Address, Step: step, Progress: text}) }
	}
	err := r.executor.Execute(ctx, r.target, *step, progress)
	var console []string
	if err == nil && AwaitsGuest(step) {
		if text := awaiting(step.Ready); text != "" {
			progress(text)
		}
		guest := Guest{Address: step.Address, Domain: step.Domain, Ready: step.Ready}
		if err = r.executor.Await(ctx, guest, r.options.Pace.Timeout()); errors.Is(err, ErrNotReady) {
			console = r.console(ctx, guest)
		}
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", step.Action, step.Address, err)
	}
	r.news <- func() {
		r.working--
		r.results[i].Err = err
		r.pacer.End(i, err)
		r.report(Event{Address: step.Address, Step: step, Done: true, Err: err, Console: console})
	}
}

// AwaitsGuest reports whether a step is done only when its guest is ready.
func AwaitsGuest(step *plan.Step) bool {
	if !step.StartsGuest() || step.VM == nil {
		return false
	}
	strategy := step.VM.Spec().StartStrategy
	return strategy == nil || *strategy != kubevirtv1.StartStrategyPaused
}

// awaiting says for people what a guest is waited for; nothing where the wait is hardly one.
func awaiting(ready schemas.Ready) string {
	switch ready.Kind {
	case schemas.ReadyAgent:
		return "waiting for the guest agent"
	case schemas.ReadyTCP:
		return fmt.Sprintf("waiting for port %d of the guest", ready.Port)
	case schemas.ReadyCloudInit:
		return "waiting for cloud-init"
	case schemas.ReadyProbe:
		return "waiting for the readiness probe"
	case schemas.ReadyRunning:
	}
	return ""
}

// console is what a guest printed last; that it cannot be read is no reason to fail otherwise.
func (r *run) console(ctx context.Context, guest Guest) []string {
	reader, ok := r.executor.(ConsoleReader)
	if !ok || r.options.ConsoleLines <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, consolePatience)
	defer cancel()
	lines, err := reader.Console(ctx, guest, r.options.ConsoleLines)
	if err != nil {
		return nil
	}
	return lines
}

// refuse gives a step its result that never began.
func (r *run) refuse(i int) {
	step := &r.steps[i]
	reason := stopReason
	if !r.stopped {
		reason = r.pacer.Wait(i)
	}
	err := fmt.Errorf("%s %s: %w: %s", step.Action, step.Address, ErrNotBegun, reason)
	r.results[i].Err = err
	r.report(Event{Address: step.Address, Step: step, Done: true, Err: err})
}

func (r *run) report(event Event) {
	if r.options.Report != nil {
		r.options.Report(event)
	}
}
