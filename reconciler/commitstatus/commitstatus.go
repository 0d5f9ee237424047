// Package commitstatus tells of each revision how far it is carried out, or that it is not, where people look at commits: as a status on the forge,
// or in git's notes.
// It follows a reconciler's views and never holds up the loop.
//
// What was told is kept where it is told: after a start it is read there first, and written only when it is another. So neither a restart nor a
// forge that was down costs or loses anything. A revision whose place another one has taken is brought to an end.
package commitstatus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources"
)

// Context is what the status is called.
const Context = "gitvirt/apply"

// Controller is what is told of; *reconciler.Reconciler is one.
type Controller interface {
	View() *reconciler.View
	Earlier() string
	Follow() (changed <-chan struct{}, stop func())
	Report(note reconciler.Note)
}

// Board is where it is told.
type Board interface {
	// Name names it for people.
	Name() string
	// Told returns what a commit has; false when it has nothing.
	Told(ctx context.Context, commit string) (forges.Status, bool, error)
	// Tell writes it, in place of what was there.
	Tell(ctx context.Context, commit string, status forges.Status) error
}

// Config adjusts a Reporter. The zero value is usable.
type Config struct {
	// Interval is the shortest time between two writes for a commit; 0 means 5 s.
	Interval time.Duration
	// Timeout is how long one read or write may take; 0 means 30 s.
	Timeout time.Duration
	// Counts counts the attempts to write, by result (ok, error); nil means nobody does.
	Counts *prometheus.CounterVec
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

// NewCounts returns what a Config's Counts may be; several Reporters may share it, curried with the label board.
func NewCounts() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "gitvirt_commit_status_total", Help: "Attempts to tell how far a revision is, by where (forge, notes) and result (ok, error).",
	}, []string{"board", "result"})
}

// The bounds.
const (
	// maxEnding is how many earlier revisions are brought to an end at a time.
	maxEnding = 50
	// maxFound is how many revisions of machines that run are asked about at the start.
	maxFound = 10
	// Forges take only so many statuses for a commit (GitHub 1,000). After so many of one commit what is not an end is told less often.
	often     = 50
	seldom    = time.Minute
	firstWait = time.Second
	mostWait  = 5 * time.Minute
)

// Reporter tells one Board. Run is called once.
type Reporter struct {
	controller Controller
	board      Board
	config     Config

	// current is the wanted revision; nil before it is known. ending are those before it, the oldest first.
	current *entry
	ending  []*entry
	// refused is the head of the branch when nobody trusts it; nil when it is the current one.
	refused *entry
	backoff backoff.Backoff
	// notBefore is the end of a pause of the board; problem is what was told last of it.
	notBefore time.Time
	problem   string
}

// entry is what a revision is told of.
type entry struct {
	revision string
	wanted   forges.Status
	// known says that told is what the board has; has, that it has anything.
	known, has bool
	told       forges.Status
	// end is written only in place of something that is none.
	end    bool
	after  time.Time
	writes int
}

// done reports whether the board has what it should.
func (e *entry) done() bool {
	if !e.known {
		return false
	}
	if e.end {
		return !e.has || e.told.State != forges.Pending
	}
	return e.has && same(e.told, e.wanted)
}

func same(a, b forges.Status) bool {
	return a.State == b.State && a.Description == b.Description
}

// New returns a Reporter that does nothing until Run.
func New(controller Controller, board Board, config Config) (*Reporter, error) {
	if controller == nil || board == nil {
		return nil, errors.New("commitstatus: a controller and a board are needed")
	}
	if config.Interval < 0 || config.Timeout < 0 {
		return nil, errors.New("commitstatus: Interval and Timeout must not be negative")
	}
	if config.Interval == 0 {
		config.Interval = 5 * time.Second
	}
	if config.Timeout == 0 {
		config.Timeout = 30 * time.Second
	}
	if config.Counts == nil {
		config.Counts = NewCounts().MustCurryWith(prometheus.Labels{"board": "none"})
	}
	if config.Clock == nil {
		config.Clock = backoff.SystemClock{}
	}
	if config.Rand == nil {
		config.Rand = rand.Float64
	}
	return &Reporter{
		controller: controller, board: board, config: config,
		backoff: backoff.Backoff{Min: firstWait, Max: mostWait, Rand: config.Rand},
	}, nil
}

// Run follows the views until ctx ends, and returns nil.
func (r *Reporter) Run(ctx context.Context) error {
	changed, stop := r.controller.Follow()
	defer stop()
	for ctx.Err() == nil {
		var timer backoff.Timer
		var due <-chan time.Time
		next, at := r.next()
		if next != nil {
			timer = r.config.Clock.NewTimer(at.Sub(r.config.Clock.Now()))
			due = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-changed:
			r.look()
		case <-due:
			r.look() // what is written is what is so now
			r.write(ctx, next)
		}
		if timer != nil {
			timer.Stop()
		}
	}
	return nil
}

// next returns what is to be written next, and when; nil when all is told.
func (r *Reporter) next() (*entry, time.Time) {
	var first *entry
	var at time.Time
	for _, e := range append([]*entry{r.current, r.refused}, r.ending...) {
		if e == nil || e.done() {
			continue
		}
		when := e.after
		if r.notBefore.After(when) {
			when = r.notBefore
		}
		if first == nil || when.Before(at) {
			first, at = e, when
		}
	}
	return first, at
}

// look takes the present view.
func (r *Reporter) look() {
	view := r.controller.View()
	r.refuse(view)
	if view.Plan != nil && isCommit(view.Commit()) {
		r.follow(view)
	}
	r.ending = slices.DeleteFunc(r.ending, (*entry).done)
}

// refuse takes the head of the branch that is not applied. What was told of it stays until it is applied after all.
func (r *Reporter) refuse(view *reconciler.View) {
	head := view.Refusal.Revision
	if head == view.Commit() {
		head = ""
	}
	if r.refused != nil && r.refused.revision != head {
		r.ending = append(r.ending, r.refused) // what is not told yet arrives all the same
		r.refused = nil
	}
	if !isCommit(head) {
		return
	}
	if r.refused == nil {
		r.refused = r.take(head)
	}
	r.refused.wanted = forges.Status{Context: Context, State: forges.Failure, Description: cut("not applied: " + status.OneLine(view.Refusal.Reason))}
}

// take returns what is known of a revision that is among those that end, or begins anew.
func (r *Reporter) take(revision string) *entry {
	at := slices.IndexFunc(r.ending, func(e *entry) bool { return e.revision == revision })
	if at < 0 {
		return &entry{revision: revision}
	}
	e := r.ending[at]
	r.ending = slices.Delete(r.ending, at, at+1)
	e.end, e.wanted = false, forges.Status{}
	return e
}

// follow takes how far the wanted revision is.
func (r *Reporter) follow(view *reconciler.View) {
	progress := view.Progress()
	if r.current == nil || r.current.revision != view.Commit() {
		r.turn(view)
	}
	if progress.Unknown == "" {
		r.current.wanted = Of(&progress)
	} else if r.current.wanted.State == "" {
		r.current.wanted = forges.Status{Context: Context, State: forges.Pending, Description: cut("the host cannot be read: " + progress.Unknown)}
	}
}

// commit is the full name of one; what a directory's manifests are called is none.
var commit = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

func isCommit(revision string) bool { return commit.MatchString(revision) }

// turn takes a new revision, and lets those before it end.
func (r *Reporter) turn(view *reconciler.View) {
	revision := view.Commit()
	if r.current == nil {
		for _, earlier := range r.earlier(view) {
			r.ending = append(r.ending, &entry{revision: earlier})
		}
	} else {
		r.ending = append(r.ending, r.current)
	}
	r.current = r.take(revision) // it may be wanted again
	for _, e := range r.ending {
		e.supersede(revision)
	}
	if len(r.ending) > maxEnding {
		r.ending = slices.Delete(r.ending, 0, len(r.ending)-maxEnding)
	}
}

// earlier are the revisions that an earlier run may have told of, and not to their end.
func (r *Reporter) earlier(view *reconciler.View) []string {
	var out []string
	add := func(revision string) {
		known := revision == view.Commit() || revision == view.Refusal.Revision || slices.Contains(out, revision)
		if isCommit(revision) && !known && len(out) < maxFound {
			out = append(out, revision)
		}
	}
	add(sources.CommitOf(r.controller.Earlier()))
	for _, domain := range view.Observed.Domains {
		if domain.Fleet == view.Plan.Fleet {
			add(domain.Revision)
		}
	}
	return out
}

// supersede ends what has not ended by itself.
func (e *entry) supersede(by string) {
	if e.end || e.wanted.State == forges.Success || e.wanted.State == forges.Failure {
		return // the last state arrives, whatever it is
	}
	e.end = true
	text := "superseded by " + status.ShortRevision(by)
	if e.wanted.Description != "" {
		text += " (" + e.wanted.Description + ")"
	}
	e.wanted = forges.Status{Context: Context, State: forges.Failure, Description: cut(text)}
}

// write brings the board up to one entry, or says when to try again.
func (r *Reporter) write(ctx context.Context, e *entry) {
	if !e.known {
		reading, cancel := context.WithTimeout(ctx, r.config.Timeout)
		told, has, err := r.board.Told(reading, e.revision)
		cancel()
		if errors.Is(err, forges.ErrNotFound) && e.end {
			err = nil // a rewritten history has left nothing to end
		}
		if err != nil {
			r.failed(ctx, e, err)
			return
		}
		e.known, e.has, e.told = true, has, told
	}
	if e.done() {
		return
	}
	writing, cancel := context.WithTimeout(ctx, r.config.Timeout)
	err := r.board.Tell(writing, e.revision, e.wanted)
	cancel()
	if err != nil {
		e.known = false // it may have arrived
		r.failed(ctx, e, err)
		return
	}
	r.config.Counts.WithLabelValues("ok").Inc()
	r.backoff.Reset()
	r.problem = ""
	e.has, e.told = true, e.wanted
	e.writes++
	e.after = r.config.Clock.Now().Add(r.pause(e))
}

// pause is how long nothing is told of a commit.
func (r *Reporter) pause(e *entry) time.Duration {
	if e.writes > often {
		return max(seldom, r.config.Interval)
	}
	return r.config.Interval
}

// failed waits before anything is written again.
func (r *Reporter) failed(ctx context.Context, e *entry, err error) {
	if ctx.Err() != nil {
		return
	}
	r.config.Counts.WithLabelValues("error").Inc()
	now := r.config.Clock.Now()
	r.notBefore = now.Add(r.backoff.Next())
	var limited *forges.RateLimitedError
	if errors.As(err, &limited) && limited.Until.After(r.notBefore) {
		r.notBefore = limited.Until
	}
	if problem := err.Error(); problem != r.problem {
		r.problem = problem
		r.controller.Report(reconciler.Note{
			Type: reconciler.Warning, Reason: reconciler.CommitStatusFailed, Revision: e.revision,
			Message: fmt.Sprintf("telling %s how far the revision is: %s; it is tried again", r.board.Name(), problem),
		})
	}
}
