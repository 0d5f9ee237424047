package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// The loop's pace.
const (
	// resync is how long the loop trusts that it was told of every change.
	resync = time.Minute
	// restShare and restMost keep the loop from planning a large fleet again after every single event: after a round it
	// rests for restShare times as long as the round took, at most restMost.
	restShare = 4
	restMost  = 500 * time.Millisecond
)

// loop owns everything that decides. One goroutine runs it, and it never waits for a step, a poll or a push.
type loop struct {
	r       *Reconciler
	gate    *gate
	workers *workers
	watcher *watcher
	pacing  *pacing
	checks  *checks

	snapshot *sources.Snapshot
	desired  *schemas.Desired
	// holders are those that desired was assembled by.
	holders   *holders
	problems  map[schemas.Address]string
	pollError string
	// refused says why the head of the branch is not taken, and refusal which one it is; empty when it is.
	refused string
	refusal Refusal
	// approvals are those that were read last, nil before; asked is the revision after which they were asked for.
	approvals *approvals
	asked     *sources.Snapshot
	// accounts is what was done at this revision.
	accounts *accounting
	// verdicts is when the policy may judge otherwise by itself; zero when it does not.
	verdicts time.Time

	observed plan.Observed
	// known are the domains as they were when the host could last be read.
	known []*plan.Domain
	// objects are the same of what a cluster got as it is.
	objects []*plan.Object
	plan    *plan.Plan

	replan bool      // git or the host has changed since the plan
	dirty  bool      // a round is due
	rest   time.Time // and not before
	wake   time.Time // when the next wait of the gate is over
}

func newLoop(r *Reconciler) *loop {
	l := &loop{r: r, gate: newGate(r.config.Rand), workers: newWorkers(r), watcher: newWatcher(r), dirty: true}
	l.pacing, l.checks = newPacing(l), newChecks(l)
	l.accounts = &accounting{l: l, open: map[key]entered{}}
	return l
}

func (l *loop) now() time.Time { return l.r.config.Clock.Now() }

// run reacts until ctx ends, and then waits for the workers.
func (l *loop) run(ctx context.Context, polls <-chan poll, given <-chan approvals) {
	defer l.workers.running.Wait()
	var notes <-chan Note
	if notifier, ok := l.r.platform.(Notifier); ok {
		notes = notifier.Notes()
	}
	for ctx.Err() == nil {
		now := l.now()
		l.r.busySince.Store(now.UnixNano())
		if (l.dirty && !now.Before(l.rest)) || !now.Before(l.wake) {
			l.round(ctx, now)
			continue
		}
		timer := l.r.config.Clock.NewTimer(l.due().Sub(now))
		l.r.busySince.Store(0)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case p := <-polls:
			l.polled(p)
		case found := <-given:
			l.approved(found)
		case <-l.r.platform.Changed():
			l.dirty = true
		case o := <-l.workers.done:
			l.finished(ctx, o)
		case a := <-l.workers.answers:
			l.pacing.answered(a, l.now())
			l.dirty = true
		case found := <-l.checks.answers:
			l.checks.answered(found)
		case note, ok := <-notes:
			if !ok {
				notes = nil
				break
			}
			l.r.Report(note)
		}
		timer.Stop()
	}
}

// due is when the next round is.
func (l *loop) due() time.Time {
	if l.dirty && l.rest.Before(l.wake) {
		return l.rest
	}
	return l.wake
}

// polled takes what the source said.
func (l *loop) polled(p poll) {
	l.r.metrics.polled(p)
	problem, refused, refusal := "", "", refusalOf(p.err)
	switch {
	case errors.Is(p.err, sources.ErrUntrusted):
		if refused = problemOf(p.err); refused != l.refused {
			l.r.event(Warning, RevisionRefused, schemas.Address{}, "", "not applied: "+refused)
		}
	case p.err != nil:
		problem = problemOf(p.err)
		l.r.event(Warning, PollFailed, schemas.Address{}, "", problem)
	case l.pollError != "":
		l.r.event(Normal, PollRecovered, schemas.Address{}, "", "the source can be read again")
	}
	if p.err != nil && refused == "" {
		refused, refusal = l.refused, l.refusal // nobody knows better
	}
	if problem != l.pollError || refused != l.refused || refusal != l.refusal {
		l.pollError, l.refused, l.refusal, l.dirty = problem, refused, refusal, true
	}
	if p.snapshot == nil || p.snapshot == l.snapshot {
		return
	}
	l.fetched(p.snapshot, p.err)
}

// fetched takes a new revision; with an error it is that of an earlier run.
func (l *loop) fetched(snapshot *sources.Snapshot, err error) {
	revision := snapshot.Revision
	switch {
	case errors.Is(err, sources.ErrUntrusted):
		l.r.event(Warning, RevisionRestored, schemas.Address{}, revision, "going by the revision that was trusted last, "+short(revision))
	case err != nil:
		l.r.event(Warning, RevisionRestored, schemas.Address{}, revision, "git cannot be read; going by the revision that was fetched last, "+short(revision))
	case l.snapshot == nil || l.snapshot.Commit() != snapshot.Commit():
		text := "fetched revision " + short(snapshot.Commit())
		if snapshot.Subject != "" {
			text += " (" + status.OneLine(snapshot.Subject) + ")"
		}
		l.r.event(Normal, RevisionFetched, schemas.Address{}, revision, text)
	}
	if snapshot.Rewritten != "" {
		l.r.event(Warning, HistoryRewritten, schemas.Address{}, revision,
			fmt.Sprintf("history was rewritten (a force-push): %s is not in the history of %s", short(snapshot.Rewritten), short(revision)))
	}
	l.parts(snapshot)
	l.snapshot = snapshot
	l.assemble()
	l.workers.clear() // what they would begin is another revision's
	l.replan, l.dirty, l.rest = true, true, time.Time{}
}

// finished takes the outcome of a step and lets the next one in.
func (l *loop) finished(ctx context.Context, o outcome) {
	now := l.now()
	l.workers.finished(&o.step)
	l.gate.end(&o.step, o.err, now)
	l.pacing.ended(ctx, &o)
	l.r.metrics.applied(o)
	l.watcher.applied(o)
	l.dirty = true
	l.dispatch(ctx, now)
}

// round compares both sides and lets carried out what may be.
func (l *loop) round(ctx context.Context, now time.Time) {
	l.dirty = false
	l.wake = now.Add(resync)
	observed := l.r.platform.Observed()
	if !same(observed, l.observed) || l.r.View().Plan == nil {
		l.replan = true
		l.look(observed, now)
	}
	if l.desired != nil {
		if l.replan || (!l.verdicts.IsZero() && !now.Before(l.verdicts)) {
			l.build(now)
		}
		if !l.verdicts.IsZero() && l.verdicts.Before(l.wake) {
			l.wake = l.verdicts
		}
		l.admit(ctx, now)
		l.checks.ask(ctx, now)
	}
	l.publish(now)
	took := l.now().Sub(now)
	l.rest = now.Add(took + min(restShare*took, restMost))
}

// same reports whether two pictures are one: they are immutable, so equal slices have equal content.
func same(a, b plan.Observed) bool {
	return a.Node == b.Node && a.Unknown == b.Unknown && sameSlice(a.Domains, b.Domains) && sameSlice(a.Foreign, b.Foreign) && sameSlice(a.Objects, b.Objects)
}

func sameSlice[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// look takes a new picture of the host and tells what has happened.
func (l *loop) look(observed plan.Observed, now time.Time) {
	l.watcher.host(observed, l.snapshot != nil)
	l.observed = observed
	if observed.Unknown != "" {
		return
	}
	l.watcher.domains(l.known, observed.Domains, l.gate, now)
	l.known, l.objects = observed.Domains, observed.Objects
	if l.holders != nil && l.holders.moved(&observed) {
		l.assemble()
	}
}

// pods says how machines become Pods; nil where they do not.
func (l *loop) pods() plan.Pods {
	if platform, ok := l.r.platform.(PodPlatform); ok {
		return platform.Pods()
	}
	return nil
}

// build makes the plan. An error (a record that cannot be compared) leaves the plan before without its steps: nothing
// is carried out that is not understood.
func (l *loop) build(now time.Time) {
	l.replan = false
	rules := l.policy(now)
	pods := l.pods()
	build := func(have plan.Observed) (*plan.Plan, error) {
		options := plan.Options{Revision: l.snapshot.Revision, Policy: rules, Pods: pods}
		if len(l.snapshot.Parts) > 0 {
			options.Provenance = l.snapshot.Provenance
		}
		return plan.Build(l.desired, have, options)
	}
	p, err := build(l.observed.For(l.desired.Fleet, pods))
	if err == nil {
		p, err = l.checks.into(p, build)
	}
	if err != nil {
		l.r.event(Warning, PlanFailed, schemas.Address{}, l.snapshot.Revision, "planning: "+problemOf(err))
		p = &plan.Plan{
			FormatVersion: plan.FormatVersion, Revision: l.snapshot.Revision, Fleet: l.desired.Fleet.Name, Steps: []plan.Step{},
			Unknown: "the plan could not be made: " + problemOf(err), UnknownCount: len(l.desired.VMs),
		}
	}
	l.r.metrics.planned(l.now().Sub(now))
	l.watcher.planned(p)
	l.plan, l.verdicts = p, rules.Next(p)
	l.pacing.planned(p, l.desired, rules)
}

// admit asks the gate about each step and hands the workers those that may go.
func (l *loop) admit(ctx context.Context, now time.Time) {
	l.workers.clear()
	if l.plan.Unknown != "" {
		return
	}
	l.pacing.round(ctx, now)
	wanted := make(map[key]bool, len(l.plan.Steps))
	for i := range l.plan.Steps {
		step := &l.plan.Steps[i]
		wanted[keyFor(step.Address)] = true
		if !step.Runs() {
			continue
		}
		if l.waitsForDestroy(i) {
			l.pacing.holds[keyFor(step.Address)] = "waits until the one of another kind that has its name is destroyed"
			continue
		}
		answer := l.gate.ask(step, l.observed.Domain(step.Address), now)
		if answer.admit && l.pacing.hold(i) == "" {
			l.pacing.rollout.Reserve(step)
			l.workers.enqueue(*step)
		}
		if answer.until.IsZero() {
			continue
		}
		l.watcher.waits(l.gate.state(keyFor(step.Address)), step.Address, now)
		l.wakeAt(answer.until)
	}
	l.pacing.settle(wanted)
	for k, state := range l.gate.states {
		if wanted[k] {
			continue
		}
		l.gate.confirm(state)
		if state.forgettable(now) {
			delete(l.gate.states, k)
		}
	}
	l.dispatch(ctx, now)
}

// wakeAt lets there be a round at a time, or before.
func (l *loop) wakeAt(at time.Time) {
	if at.Before(l.wake) {
		l.wake = at
	}
}

// waitsForDestroy reports whether a step makes a domain whose name another step still has to free: a
// VirtualMachineInstance that becomes a VirtualMachine. The steps of one name are neighbours.
func (l *loop) waitsForDestroy(i int) bool {
	steps := l.plan.Steps
	if steps[i].Action == plan.ActionDestroy {
		return false
	}
	for _, j := range []int{i - 1, i + 1} {
		if j >= 0 && j < len(steps) && steps[j].Action == plan.ActionDestroy && keyFor(steps[j].Address) == keyFor(steps[i].Address) {
			return true
		}
	}
	return false
}

// dispatch begins steps for which there is a place.
func (l *loop) dispatch(ctx context.Context, now time.Time) {
	for {
		step, ok := l.workers.next()
		if !ok {
			return
		}
		if l.pacing.stopped(&step) {
			continue // something failed since it was let through
		}
		if reason := l.accounts.begin(&step); reason != "" {
			l.pacing.holds[keyFor(step.Address)] = reason
			continue
		}
		l.gate.begin(step, l.observed.Domain(step.Address), now)
		l.pacing.rollout.Begin(&step)
		l.workers.begin(ctx, apply.Target{Fleet: l.plan.Fleet, Revision: l.plan.Revision}, step)
	}
}

// publish makes the outcome of the round visible.
func (l *loop) publish(now time.Time) {
	observed := l.observed
	observed.Domains = l.known
	view := &View{
		Time: now, Snapshot: l.snapshot, Desired: l.desired, Observed: observed, Plan: l.plan, Pods: l.pods(), PollError: l.pollError,
		Refused: l.refused, Refusal: l.refusal, problems: l.problems,
	}
	view.Approvals, view.ApprovalsKnown = l.given()
	view.attempts = l.pacing.notReady()
	for k, state := range l.gate.states {
		attempt := state.attempt()
		attempt.Waits, attempt.NotReady = l.pacing.holds[k], view.attempts[k].NotReady
		if attempt != (status.Attempt{}) {
			view.attempts[k] = attempt
		}
	}
	l.r.view.Store(view)
	select {
	case l.r.views <- struct{}{}:
	default:
	}
	l.r.followers.tell()
	if l.asked != l.snapshot {
		l.asked = l.snapshot
		l.r.nudgeApprover()
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
