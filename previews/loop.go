package previews

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
)

// The pace.
const (
	// glance is how often it is looked whether the world has moved, which costs nothing.
	glance = time.Second
	// restShare is for how many times as long as a look took nothing is looked at again only because the world moved: a thousand pull
	// requests on thousands of VMs would otherwise keep a processor busy for ever.
	restShare = 3
	// lately is how long ago a pull request may have been closed while no controller looked, for its comment to be put right.
	lately = 24 * time.Hour
	// mergeGrace is how long after the base moved the forge is asked, before anything is planned on the new base: a forge moves the branch
	// first, and then says that the pull request is merged, for which nothing is planned any more.
	mergeGrace = 2 * time.Second
	// mostQuiet bounds for how long a forge is believed that it wants no requests.
	mostQuiet = 15 * time.Minute
)

// pull is what is known of a pull request.
type pull struct {
	forges.PullRequest
	// fetched says that its head is in the mirror, unfetched why it cannot be.
	fetched   bool
	unfetched error
	// comment is ours, 0 for none, when looked says that it was looked for; digest is what it was made of, summary what it says.
	looked          bool
	comment         int64
	digest, summary string
	// head, base and world (a number of the loop's) are what was looked at last, at is when; head is empty before.
	head, base string
	world      int
	at         time.Time
	// moved says that the head was seen to move, or the pull request to be opened: people wait for it.
	moved bool
	// pending is the head that was told to be pending, and not more yet; refused the one that was told to be refused.
	pending, refused string
	// updated is when it was seen that Updated is another, heard when the comments were read last whose commands all have answers; more says
	// that some have none, which are read again after deaf. unsaid says that the comment does not say yet what said remembers.
	updated, heard, deaf time.Time
	more, unsaid         bool
	said                 memory
	// told is the last status.
	told    forges.Status
	problem string
	retry   time.Time
	backoff backoff.Backoff
	busy    bool
}

// loop owns everything that Run knows.
type loop struct {
	p       *Previews
	pulls   map[int]*pull
	account string
	branch  string
	// since is when the last pull request that was seen was updated; zero before the first poll.
	since    time.Time
	nextPoll time.Time
	backoff  backoff.Backoff
	// based is when the base was seen to move, polled when the last poll began that succeeded.
	based, polled time.Time
	// quiet is until when the forge wants no requests, rest until when nothing is looked at only because the world moved.
	quiet, rest time.Time

	world *world
	seq   int
	// doubt is since when it is not known what was approved; zero while it is.
	doubt time.Time

	busy, slow int // jobs, and those of them that nobody waits for
	done       chan outcome
	workers    sync.WaitGroup
}

// Run keeps the pull requests right until ctx ends, waits for what is being done and returns nil.
func (p *Previews) Run(ctx context.Context) error {
	l := &loop{
		p: p, pulls: map[int]*pull{}, done: make(chan outcome),
		backoff: backoff.Backoff{Min: time.Second, Max: max(time.Minute, p.config.Interval), Rand: p.config.Rand},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer l.workers.Wait()
	defer cancel()
	for ctx.Err() == nil {
		now := p.config.Clock.Now()
		l.look(now)
		if !now.Before(l.nextPoll) {
			l.poll(ctx)
			continue
		}
		l.dispatch(ctx, now)
		wait := l.nextPoll.Sub(now)
		if len(l.pulls) > 0 {
			wait = min(wait, glance)
		}
		if rest := l.rest.Sub(now); rest > 0 {
			wait = min(wait, rest)
		}
		timer := p.config.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-p.nudges:
			l.pollSoon(now)
		case o := <-l.done:
			l.finished(o)
		}
		timer.Stop()
	}
	return nil
}

// pollSoon polls at a time that is now or soon, unless the forge wants to be left alone.
func (l *loop) pollSoon(at time.Time) {
	l.nextPoll = at
	if at.Before(l.quiet) {
		l.nextPoll = l.quiet
	}
}

// look takes what the reconciler's loop saw last. A plan is made whenever something was different.
func (l *loop) look(now time.Time) {
	view := l.p.world.View()
	if l.world != nil && l.world.view.Plan == view.Plan && l.world.view.Revision() == view.Revision() {
		return
	}
	if view.ApprovalsKnown {
		l.doubt = time.Time{}
	} else if l.doubt.IsZero() {
		l.doubt = now
	}
	if l.world != nil && l.world.view.Commit() != view.Commit() && l.world.view.Commit() != "" {
		l.based = now
		l.pollSoon(now.Add(mergeGrace)) // also because the mirror has to have the new base
	}
	l.seq++
	l.world = newWorld(view, now)
}

// poll asks the forge what has changed and git where the heads are.
func (l *loop) poll(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := l.p.config.Clock.Now()
	err := l.changed(asking)
	if err == nil {
		err = l.fetch(asking)
	}
	if ctx.Err() != nil {
		return
	}
	l.p.metrics.polled(err)
	now := l.p.config.Clock.Now()
	if err == nil {
		l.polled = began
		l.backoff.Reset()
		// A tenth, by chance, so that many controllers do not poll in step.
		l.nextPoll = now.Add(time.Duration(float64(l.p.config.Interval) * (1 - 0.1*l.p.config.Rand())))
		if grace := l.based.Add(mergeGrace); began.Before(grace) && grace.Before(l.nextPoll) {
			l.nextPoll = grace
		}
		l.tell("")
		return
	}
	l.limited(err, now)
	l.nextPoll = now.Add(l.backoff.Next())
	if l.nextPoll.Before(l.quiet) {
		l.nextPoll = l.quiet
	}
	l.tell(plan.Inert(err.Error()))
}

// limited keeps off a forge that wants it.
func (l *loop) limited(err error, now time.Time) {
	var limit *forges.RateLimitedError
	if !errors.As(err, &limit) {
		return
	}
	until := limit.Until
	if most := now.Add(mostQuiet); until.After(most) {
		until = most
	}
	if until.After(l.quiet) {
		l.quiet = until
	}
}

// tell tells that the forge cannot be read, or that it can again.
func (l *loop) tell(problem string) {
	l.p.mu.Lock()
	before := l.p.problem
	l.p.problem = problem
	l.p.mu.Unlock()
	switch {
	case problem == before:
	case problem == "":
		l.p.world.Report(reconciler.Note{Type: reconciler.Normal, Reason: ForgeRecovered, Message: "pull requests can be read again"})
	default:
		l.p.world.Report(reconciler.Note{Type: reconciler.Warning, Reason: ForgeFailed, Message: "pull requests: " + problem})
	}
}

// changed asks for the pull requests that were updated since the last time: one request when none was.
func (l *loop) changed(ctx context.Context) error {
	if l.account == "" {
		account, err := l.p.forge.Account(ctx)
		if err != nil {
			return err
		}
		l.account = account
	}
	first := l.since.IsZero()
	list, err := l.p.forge.Changed(ctx, l.since)
	if err != nil {
		return err
	}
	if first {
		recent, err := l.p.forge.Changed(ctx, l.p.config.Clock.Now().Add(-lately))
		if err != nil {
			return err
		}
		for _, pr := range recent {
			if pr.State != forges.Open && l.pulls[pr.Number] == nil {
				l.pulls[pr.Number] = l.newPull(pr)
			}
		}
		list = append(list, recent...)
	}
	for _, pr := range list {
		l.seen(pr, first)
		if pr.Updated.After(l.since) {
			l.since = pr.Updated
		}
	}
	return nil
}

func (l *loop) newPull(pr forges.PullRequest) *pull {
	return &pull{PullRequest: pr, updated: l.p.config.Clock.Now(), backoff: backoff.Backoff{Min: 2 * time.Second, Max: 10 * time.Minute, Rand: l.p.config.Rand}}
}

// seen takes what the forge says of a pull request. Those that were closed and are not known need nothing.
func (l *loop) seen(pr forges.PullRequest, first bool) {
	known := l.pulls[pr.Number]
	if known == nil {
		if pr.State != forges.Open || l.branch != "" && pr.Base != l.branch {
			return
		}
		known = l.newPull(pr)
		known.moved = !first
		l.pulls[pr.Number] = known
	}
	if pr.Head != known.Head {
		known.fetched, known.moved = false, true
	}
	if pr.State != known.State || pr.Head != known.Head || pr.Base != known.Base {
		known.retry = time.Time{}
	}
	if !pr.Updated.Equal(known.Updated) {
		known.updated = l.p.config.Clock.Now()
	}
	known.PullRequest = pr
	l.show(known)
}

// fetch asks git where the heads of the pull requests are that are planned, and fetches them. A head that moved is seen here even when the forge
// is slow to say so.
func (l *loop) fetch(ctx context.Context) error {
	names := map[string]*pull{}
	for number, one := range l.pulls {
		if one.State == forges.Open && (l.branch == "" || one.Base == l.branch) && !l.forkRefused(one) {
			names[l.p.forge.HeadRef(number)] = one
		}
	}
	if l.branch != "" && len(names) == 0 {
		return nil
	}
	heads, err := l.p.source.Heads(ctx, slices.Sorted(maps.Keys(names)))
	if err != nil {
		return err
	}
	l.branch = heads.Branch
	for name, one := range names {
		hash := heads.Refs[name]
		if hash == "" {
			continue // the forge makes the reference in a moment
		}
		if hash != one.Head {
			one.Head, one.moved, one.retry = hash, true, time.Time{}
		}
		one.fetched, one.unfetched = true, heads.Refused[name]
	}
	return nil
}
