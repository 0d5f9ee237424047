package several

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// How long those that fail are left alone.
const (
	firstWait = 5 * time.Second
	mostWait  = 2 * time.Minute
)

// firstRead is what is said of a repository that has not answered yet.
const firstRead = "it is being read for the first time"

// member is a repository that the Fleet names. What is known of it is guarded by Source.mu; repository belongs to who asks it.
type member struct {
	source schemas.FleetSource
	// opening is the Opener's state that it is opened with.
	opening    string
	repository Repository

	// snapshot is what was read last; nil before anything was, and then unread stands in.
	snapshot *sources.Snapshot
	unread   *schemas.File
	// problem says why it cannot be read now, kind is that of the error.
	problem string
	kind    error
	// cancel ends what is being asked; nil when nothing is. over says that the Fleet no longer names it.
	cancel context.CancelFunc
	over   bool
	// lagging says that the last answer came late; notBefore is when it is asked again.
	lagging   bool
	notBefore time.Time
	backoff   backoff.Backoff
}

// begin makes a member; it is opened when it is asked.
func (s *Source) begin(source *schemas.FleetSource, opening string) *member {
	return &member{
		source: *source, opening: opening, unread: schemas.Unread(source.Name, firstRead),
		backoff: backoff.Backoff{Min: firstWait, Max: mostWait, Rand: s.config.Rand},
	}
}

// end lets a member go: what is being asked is cancelled, and it is closed when that is over.
func (s *Source) end(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.over = true
	if m.cancel != nil {
		m.cancel()
		return
	}
	m.close()
}

func (m *member) close() {
	if m.repository != nil {
		_ = m.repository.Close() // its mirror is a cache
		m.repository = nil
	}
}

// state is what the member contributes now.
func (m *member) state() state {
	if m.snapshot == nil {
		return state{part: sources.Part{Name: m.source.Name, Problem: cmp.Or(m.problem, firstRead), Pending: m.problem == ""}, unread: m.unread}
	}
	part := partOf(m.source.Name, m.snapshot)
	part.Problem = m.problem
	return state{part: part, snapshot: m.snapshot}
}

// ask begins to ask all members that are not being asked and whose time has come; without remote only what was fetched earlier is
// read. A channel is closed when the answer of one is there; there is none for those that answer late.
func (s *Source) ask(ctx context.Context, remote bool) []<-chan struct{} {
	now := s.config.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	var asked []<-chan struct{}
	for _, m := range s.members {
		if m.cancel != nil || remote && now.Before(m.notBefore) {
			continue
		}
		lane := s.quick
		if m.lagging {
			lane = s.slow
		}
		asking, cancel := context.WithCancel(context.WithoutCancel(ctx)) // whoever polls does not wait for all
		m.cancel = cancel
		done := make(chan struct{})
		if !m.lagging {
			asked = append(asked, done)
		}
		s.running.Go(func() {
			defer close(done)
			defer s.asked(m)
			select {
			case lane <- struct{}{}:
				defer func() { <-lane }()
			case <-asking.Done():
				return
			}
			began := s.config.Clock.Now()
			err := s.read(asking, m, remote)
			s.answered(m, err, s.config.Clock.Now().Sub(began))
		})
	}
	return asked
}

// asked notes that nothing is being asked any more.
func (s *Source) asked(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.cancel()
	m.cancel = nil
	if m.over {
		m.close()
	}
}

// read reads one repository: first as it was fetched earlier when nothing is known of it, then as it is.
func (s *Source) read(ctx context.Context, m *member, remote bool) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.Timeout)
	defer cancel()
	if m.repository == nil {
		repository, err := s.opener.Open(&m.source)
		if err != nil {
			return err
		}
		m.repository = repository
	}
	s.mu.Lock()
	known := m.snapshot != nil
	s.mu.Unlock()
	if !known {
		if last, err := m.repository.Last(ctx); err == nil { // a first start has nothing, and asking tells what is wrong
			s.found(m, last)
		}
	}
	if !remote {
		return nil
	}
	snapshot, err := m.repository.Poll(ctx)
	if err != nil {
		return err
	}
	s.found(m, snapshot)
	return nil
}

func (s *Source) found(m *member, snapshot *sources.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.snapshot = snapshot
}

// answered notes how asking went.
func (s *Source) answered(m *member, err error, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.lagging = took > s.config.Patience
	if err == nil {
		m.problem, m.kind, m.notBefore = "", nil, time.Time{}
		m.backoff.Reset()
		return
	}
	if problem, kind := err.Error(), kindOf(err); m.problem == "" || !errors.Is(kind, m.kind) || !alike(problem, m.problem) {
		m.problem, m.kind = problem, kind
		m.unread = schemas.Unread(m.source.Name, "it cannot be read: "+problem)
	}
	if errors.Is(err, sources.ErrUntrusted) { // which was read, and waits for another push
		m.notBefore = time.Time{}
		m.backoff.Reset()
		return
	}
	m.notBefore = s.config.Clock.Now().Add(m.backoff.Next())
}

// kindOf is the kind of a failure; nil when it has none.
func kindOf(err error) error {
	var known *sources.Error
	if errors.As(err, &known) {
		return known.Kind
	}
	return nil
}

// alike reports whether two texts differ in their numbers alone: ports and times are no news.
func alike(a, b string) bool {
	letters := func(text string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsDigit(r) {
				return -1
			}
			return r
		}, text)
	}
	return letters(a) == letters(b)
}
