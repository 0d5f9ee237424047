package previews

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
)

// forkRefused reports whether the Fleet of the base lets nobody plan it.
func (l *loop) forkRefused(one *pull) bool {
	fleet := l.world.fleet()
	return one.Fork && (fleet == nil || !fleet.Spec.PullRequests.Forks)
}

// kind is what has to be done about a pull request.
type kind int

const (
	nothing kind = iota
	closes       // nobody decides about it any more
	refuses      // it comes from a fork that is not planned
	awaits       // it cannot be planned yet
	plans
	listens // somebody may have commanded something
)

// what says what has to be done about a pull request, and from when on; quick says that people wait for it.
func (l *loop) what(one *pull, now time.Time) (what kind, quick bool) {
	switch fleet := l.world.fleet(); {
	case one.busy || l.branch == "" || fleet == nil || now.Before(one.retry):
		return nothing, false
	case one.State != forges.Open || one.Base != l.branch:
		return closes, false
	case l.forkRefused(one):
		if one.refused == one.Head {
			return nothing, false
		}
		return refuses, true
	case !l.world.known():
		if one.moved && one.pending != one.Head {
			return awaits, true
		}
		return nothing, false
	case !one.fetched, !l.based.IsZero() && l.polled.Before(l.based.Add(mergeGrace)):
		return nothing, false
	case !l.doubt.IsZero() && now.Before(l.doubt.Add(l.p.config.Settle)):
		return nothing, false // a restart knows in a moment what was approved
	case one.head != one.Head:
		return plans, true
	case l.toHear(one, now):
		return listens, true
	case one.base != l.world.view.Commit():
		return plans, false
	case one.world != l.seq && !now.Before(one.at.Add(l.p.config.Settle)):
		return plans, false
	}
	return nothing, false
}

// sameTime is for how long after a pull request was seen to be updated something else may be written that updates it at the same time: forges
// tell it in seconds.
const sameTime = 2 * time.Second

// toHear reports whether somebody may have commanded something since the comments were read.
func (l *loop) toHear(one *pull, now time.Time) bool {
	if fleet := l.world.fleet(); fleet == nil || !fleet.TakesCommands() || now.Before(one.deaf) {
		return false
	}
	settled := one.updated.Add(sameTime)
	return one.more || one.heard.Before(one.updated) || one.heard.Before(settled) && !now.Before(settled)
}

// dispatch begins what is due: first what people wait for, of that the newest.
func (l *loop) dispatch(ctx context.Context, now time.Time) {
	if now.Before(l.quiet) || l.busy >= l.p.config.Parallel {
		return
	}
	type candidate struct {
		one   *pull
		what  kind
		quick bool
	}
	var due []candidate
	for _, one := range l.pulls {
		if what, quick := l.what(one, now); what != nothing {
			due = append(due, candidate{one, what, quick})
		}
	}
	rank := func(c candidate) int {
		switch {
		case c.quick && c.one.moved:
			return 0
		case c.quick:
			return 1
		}
		return 2
	}
	slices.SortFunc(due, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.one.at.Compare(b.one.at), cmp.Compare(b.one.Number, a.one.Number))
	})
	for _, c := range due {
		if l.busy >= l.p.config.Parallel {
			return
		}
		if !c.quick && (l.slow > 0 || now.Before(l.rest)) {
			return
		}
		l.begin(ctx, c.one, c.what, !c.quick, now)
	}
}

func (l *loop) begin(ctx context.Context, one *pull, what kind, slow bool, now time.Time) {
	one.busy = true
	l.busy++
	if slow {
		l.slow++
	}
	j := &job{
		p: l.p, pull: *one, what: what, world: l.world, account: l.account, branch: l.branch, seq: l.seq, slow: slow,
		commands: l.world.fleet().TakesCommands(), hears: l.toHear(one, now),
	}
	l.workers.Go(func() {
		working, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		began := l.p.config.Clock.Now()
		err := j.run(working)
		o := outcome{job: j, err: err, took: l.p.config.Clock.Now().Sub(began)}
		select {
		case l.done <- o:
		case <-ctx.Done():
		}
	})
}

// outcome is a job that is over.
type outcome struct {
	*job
	err  error
	took time.Duration
}

// finished takes what a job did; what the forge said of the pull request meanwhile stays.
func (l *loop) finished(o outcome) {
	now := l.p.config.Clock.Now()
	l.busy--
	if o.slow {
		l.slow--
		l.rest = now.Add(restShare * o.took)
	}
	one := l.pulls[o.pull.Number]
	if one == nil {
		return
	}
	latest, fetched, unfetched, moved, updated := one.PullRequest, one.fetched, one.unfetched, one.moved, one.updated
	*one = o.pull
	one.PullRequest, one.fetched, one.unfetched, one.updated, one.busy = latest, fetched, unfetched, updated, false
	if errors.Is(o.err, forges.ErrNotFound) && o.gone || o.err == nil && o.what == closes && (latest.State != forges.Open || latest.Base != l.branch) {
		delete(l.pulls, latest.Number)
		l.p.mu.Lock()
		delete(l.p.pulls, latest.Number)
		l.p.mu.Unlock()
		return
	}
	if o.err != nil {
		l.limited(o.err, now)
		one.moved = moved
		one.retry = now.Add(one.backoff.Next())
		if problem := plan.Inert(o.err.Error()); problem != one.problem {
			one.problem = problem
			reason := ForgeFailed
			if errors.Is(o.err, errUnwritten) {
				reason = CommandFailed
			}
			l.p.world.Report(reconciler.Note{Type: reconciler.Warning, Reason: reason, Message: "pull request " + strconv.Itoa(one.Number) + ": " + problem})
		}
	} else {
		one.problem = ""
		one.backoff.Reset()
		one.retry = time.Time{}
		if one.Head != o.pull.Head {
			one.moved = true
		}
	}
	l.show(one)
}

// show lets others see what is known of a pull request.
func (l *loop) show(one *pull) {
	if l.branch != "" && one.Base != l.branch || one.State != forges.Open {
		return
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.pulls[one.Number] = Status{
		Number: one.Number, Title: plan.Inert(one.Title), Author: plan.Inert(one.Author), Fork: one.Fork, Branch: one.PullRequest.Base,
		Head: one.Head, Base: one.base,
		URL: one.URL, State: one.told.State, Summary: one.told.Description, Problem: one.problem,
	}
}
