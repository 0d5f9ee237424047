package branches

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/sources"
)

// The reasons of the events.
const (
	PlansNotPushed   reconciler.Reason = "PlansNotPushed"
	PlansPushedAgain reconciler.Reason = "PlansPushedAgain"
	PlanMoved        reconciler.Reason = "PlanMoved"
)

// The pace of pushes.
const (
	// gather is how long more plans are waited for: a hundred branches, whose base has moved, are one push.
	gather = time.Second
	// pushTimeout is for one push.
	pushTimeout = time.Minute
	firstRetry  = 2 * time.Second
	lastRetry   = 10 * time.Minute
	// mostAtOnce is how many plans one push has at most.
	mostAtOnce = 200
)

// Problem says why plans cannot be pushed; empty when they can.
func (b *Branches) Problem() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.problem
}

// Run pushes plans until ctx ends, and returns nil. What was not pushed then is planned again after the next start.
func (b *Branches) Run(ctx context.Context) error {
	var timer backoff.Timer
	for ctx.Err() == nil {
		var due <-chan time.Time
		wake := b.wake
		if timer != nil {
			due, wake = timer.C(), nil // it is pushed anyway
		}
		select {
		case <-ctx.Done():
		case <-wake:
			timer = b.config.Clock.NewTimer(gather)
		case <-due:
			timer = nil
			if wait := b.push(ctx); wait > 0 {
				timer = b.config.Clock.NewTimer(wait)
			}
		}
	}
	if timer != nil {
		timer.Stop()
	}
	return nil
}

// push pushes what is to be pushed, and returns when to push again; 0 is when there is something new.
func (b *Branches) push(ctx context.Context) time.Duration {
	updates, sent, more := b.pending()
	if len(updates) == 0 {
		return 0
	}
	pushing, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	results, err := b.refs.Update(pushing, updates)
	var moved []string
	if err == nil {
		moved, err = b.pushed(results, sent)
	}
	if len(moved) > 0 && err == nil {
		err = b.lookAgain(pushing, moved)
	}
	if ctx.Err() != nil {
		return 0
	}
	b.tell(err)
	switch {
	case err != nil:
		return b.backoff.Next()
	case more || len(moved) > 0:
		return gather
	}
	b.backoff.Reset()
	return 0
}

// pending returns the updates to be made and what they are of, and whether there are more.
func (b *Branches) pending() (updates []sources.RefUpdate, sent map[string]*next, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sent = map[string]*next{}
	for _, ref := range slices.Sorted(maps.Keys(b.plans)) {
		p := b.plans[ref]
		if p.next == nil {
			continue
		}
		if len(updates) == mostAtOnce {
			return updates, sent, true
		}
		updates = append(updates, sources.RefUpdate{Ref: ref, Known: p.commit, Files: p.next.files, Message: p.next.message})
		sent[ref] = p.next
	}
	return updates, sent, false
}

// pushed takes the results. It returns the references that others have moved, and why another one could not be pushed.
func (b *Branches) pushed(results map[string]sources.RefResult, sent map[string]*next) (moved []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range slices.Sorted(maps.Keys(sent)) {
		p, result := b.plans[ref], results[ref]
		switch {
		case errors.Is(result.Err, sources.ErrMoved):
			moved = append(moved, ref)
			continue
		case result.Err != nil:
			if err == nil {
				err = result.Err // one is enough: it is the same for all, mostly
			}
			continue
		}
		p.commit, p.body, p.read = result.Commit, sent[ref].body, true
		if p.next == sent[ref] {
			p.next = nil
		}
	}
	return moved, err
}

// lookAgain reads references that others have moved. A plan of this fleet that somebody else has written gets ours on top; what is something else is
// theirs, and told.
func (b *Branches) lookAgain(ctx context.Context, refs []string) error {
	contents, err := b.refs.ReadRefs(ctx, refs, isPlanFile)
	if err != nil {
		return fmt.Errorf("reading what others have pushed: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ref := range refs {
		p, found := b.plans[ref], contents[ref]
		if found.Commit == "" {
			err = fmt.Errorf("%s is there, and the server does not let it be read", ref)
			continue
		}
		before, there := owner(p.body), string(found.Files[planFile])
		if p.next != nil && p.next.body != "" {
			before = owner(p.next.body)
		}
		p.commit, p.body, p.read = found.Commit, there, true
		switch {
		case p.next == nil:
		case there == p.next.body:
			p.next = nil // it was ours, and its answer was lost
		case owner(there) == before && before != "":
			b.note(reconciler.Normal, PlanMoved, fmt.Sprintf("somebody else has moved %s to %.12s; the plan goes on top of that", ref, found.Commit))
		default:
			p.next, p.theirs = nil, true
			b.note(reconciler.Warning, PlanMoved, fmt.Sprintf("somebody else has moved %s to %.12s, which is no plan of this fleet; it is left as it is", ref, found.Commit))
		}
	}
	return err
}

// note tells of something without holding anybody up who tells.
func (b *Branches) note(kind reconciler.EventType, reason reconciler.Reason, message string) {
	b.config.Report(reconciler.Note{Type: kind, Reason: reason, Message: message})
}

// tell tells that plans cannot be pushed, or that they can again.
func (b *Branches) tell(err error) {
	problem := ""
	if err != nil {
		problem = strings.ToValidUTF8(err.Error(), "\uFFFD")
	}
	b.mu.Lock()
	before := b.problem
	b.problem = problem
	b.mu.Unlock()
	switch {
	case problem == before:
	case problem == "":
		b.note(reconciler.Normal, PlansPushedAgain, "plans of branches can be pushed again")
	default:
		b.note(reconciler.Warning, PlansNotPushed, "plans of branches are not pushed: "+problem+"; it is tried again")
	}
}
