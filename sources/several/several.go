// Package several makes one source of several repositories: the one that the Fleet is in, and those that the Fleet names
// (spec.sources), which are opened and closed as the Fleet changes (docs/adr/0056).
//
// A Poll asks the repository of the Fleet first, because it says who else is asked, and then all others at the same time.
// None of them waits for another: who has not answered in a moment is taken as it was, and the answer counts at the next
// Poll. Who fails is asked again later and later. What was read once stays what is known; of what was never read a
// schemas.Unread stands in, which keeps whatever was made from it.
//
// It does not log, and does not know what a rights or a quota is; it opens repositories through an Opener, of which Git is
// the one for real.
package several

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// Main is the repository, or the directory, that the Fleet is in.
type Main interface {
	// Poll returns the present revision, the same pointer as before when nothing changed.
	Poll(ctx context.Context) (*sources.Snapshot, error)
	// Last returns what was fetched last, without asking anybody.
	Last(ctx context.Context) (*sources.Snapshot, error)
}

// Repository is one that the Fleet names; *git.Source is one. Only one of its methods is called at a time, but for Close.
type Repository interface {
	Main
	Close() error
}

// Opener opens the repositories that a Fleet names.
type Opener interface {
	// State changes with everything but the source itself that Open depends on, such as which credentials there are.
	State(source *schemas.FleetSource) string
	// Open opens one without asking it anything. Its files are parsed as those of the source (schemas.ParseFrom).
	Open(source *schemas.FleetSource) (Repository, error)
}

// Config adjusts a Source. The zero value is usable.
type Config struct {
	// Timeout is how long one repository may take to answer; 0 means a minute.
	Timeout time.Duration
	// Patience is how long a Poll waits for those that it has asked; 0 means 5 s.
	Patience time.Duration
	// Parallel is how many are asked at a time; 0 means 64. Those that were slow or failed the last time have places of
	// their own, an eighth as many, so that they take none from the others.
	Parallel int
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

func (c Config) withDefaults() (Config, error) {
	if c.Timeout < 0 || c.Patience < 0 || c.Parallel < 0 {
		return c, errors.New("several sources: Timeout, Patience and Parallel must not be negative")
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.Patience == 0 {
		c.Patience = 5 * time.Second
	}
	if c.Parallel == 0 {
		c.Parallel = 64
	}
	if c.Clock == nil {
		c.Clock = backoff.SystemClock{}
	}
	return c, nil
}

// Source reads the repository of the Fleet and those that the Fleet names. It is safe for concurrent use; polls wait for each
// other. Close ends it.
type Source struct {
	main   Main
	opener Opener
	config Config
	// quick and slow have a place for each that may be asked at a time.
	quick, slow chan struct{}
	running     sync.WaitGroup

	// polling is held by Poll, Last and Close; it is taken before mu.
	polling sync.Mutex
	// members are in the order of the Fleet, made is what current was made of; both belong to who holds polling.
	members []*member
	current *sources.Snapshot
	whole   *sources.Snapshot
	made    []state

	// mu guards what the members know.
	mu sync.Mutex
}

// New returns a Source that has opened nothing yet: the first Poll or Last does.
func New(main Main, opener Opener, config Config) (*Source, error) {
	if main == nil || opener == nil {
		return nil, errors.New("several sources: the repository of the Fleet and an opener are needed")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Source{
		main: main, opener: opener, config: config,
		quick: make(chan struct{}, config.Parallel), slow: make(chan struct{}, max(1, config.Parallel/8)),
	}, nil
}

// Read asks every repository that the Fleet of a snapshot names, waits for all of them, and returns what they are together.
func Read(ctx context.Context, main *sources.Snapshot, opener Opener, config Config) (*sources.Snapshot, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	config.Patience = 2 * config.Timeout // who waits for a place waits for others, too
	s, err := New(fixed{main}, opener, config)
	if err != nil {
		return nil, err
	}
	whole, err := s.Poll(ctx)
	if err == nil {
		err = context.Cause(ctx) // what is not known because nobody waited is no answer
	}
	return whole, errors.Join(err, s.Close())
}

// fixed is a repository of one revision.
type fixed struct{ snapshot *sources.Snapshot }

func (f fixed) Poll(context.Context) (*sources.Snapshot, error) { return f.snapshot, nil }
func (f fixed) Last(context.Context) (*sources.Snapshot, error) { return f.snapshot, nil }

// String names the repository of the Fleet.
func (s *Source) String() string { return fmt.Sprint(s.main) }

// Poll asks all repositories and returns what they are together: the same pointer as before when nothing moved. Its errors are
// those of the repository of the Fleet; then nobody else is asked, because their rights may have changed. What is wrong with
// the others is in the snapshot's Parts.
func (s *Source) Poll(ctx context.Context) (*sources.Snapshot, error) {
	s.polling.Lock()
	defer s.polling.Unlock()
	main, err := s.main.Poll(ctx)
	if err != nil {
		return nil, err
	}
	s.arrange(main)
	s.wait(ctx, s.ask(ctx, true))
	return s.combine(main), nil
}

// Last returns what was fetched last of all repositories, without asking them.
func (s *Source) Last(ctx context.Context) (*sources.Snapshot, error) {
	s.polling.Lock()
	defer s.polling.Unlock()
	main, err := s.main.Last(ctx)
	if err != nil {
		return nil, err
	}
	s.arrange(main)
	s.wait(ctx, s.ask(ctx, false))
	return s.combine(main), nil
}

// Close stops asking, waits until that is over and closes the repositories that the Fleet names. That of the Fleet is its
// caller's.
func (s *Source) Close() error {
	s.polling.Lock()
	defer s.polling.Unlock()
	for _, m := range s.members {
		s.end(m)
	}
	s.members = nil
	s.running.Wait()
	return nil
}

// arrange has a member for each repository that the Fleet names, and for no other.
func (s *Source) arrange(main *sources.Snapshot) {
	before := s.members
	wanted := s.wanted(main.Files)
	if len(wanted) == 0 && len(before) == 0 {
		return
	}
	s.members = make([]*member, 0, len(wanted))
	for i := range wanted {
		source := &wanted[i]
		opening := s.opener.State(source)
		at := slices.IndexFunc(before, func(m *member) bool { return m.source.Name == source.Name })
		if at < 0 {
			s.members = append(s.members, s.begin(source, opening))
			continue
		}
		old := before[at]
		before = slices.Delete(before, at, at+1)
		same := old.opening == opening && old.source.Git == source.Git && reflect.DeepEqual(old.source.Trust, source.Trust)
		if same || source.Doubt { // what was right goes on to count where a mistake has come
			s.members = append(s.members, old)
			continue
		}
		anew := s.begin(source, opening)
		if old.source.Git == source.Git { // what was read of another place is not what is known of this one
			s.mu.Lock()
			anew.snapshot = old.snapshot
			s.mu.Unlock()
		}
		s.end(old)
		s.members = append(s.members, anew)
	}
	for _, gone := range before {
		s.end(gone)
	}
}

// wanted are the repositories that the Fleet names, each name once. Of a Fleet that nobody can rely on those of before are not
// taken as removed.
func (s *Source) wanted(files []*schemas.File) []schemas.FleetSource {
	var fleet *schemas.Fleet
	doubt := false // the Fleet may be in a file that cannot be read
	for _, file := range files {
		if file.Fleet != nil && fleet == nil {
			fleet = file.Fleet
		}
		doubt = doubt || file.Opaque
	}
	var out []schemas.FleetSource
	add := func(source schemas.FleetSource) {
		if source.Name != "" && !slices.ContainsFunc(out, func(other schemas.FleetSource) bool { return other.Name == source.Name }) {
			out = append(out, source)
		}
	}
	if fleet != nil {
		doubt = fleet.Spec.SourcesDoubt
		for _, source := range fleet.Spec.Sources {
			add(source)
		}
	}
	if doubt {
		for _, m := range s.members {
			add(m.source)
		}
	}
	return out
}

// wait waits for answers, for a moment.
func (s *Source) wait(ctx context.Context, asked []<-chan struct{}) {
	if len(asked) == 0 {
		return
	}
	timer := s.config.Clock.NewTimer(s.config.Patience)
	defer timer.Stop()
	for _, done := range asked {
		select {
		case <-done:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// state is what a member contributes: what was read of it, or what stands in for that.
type state struct {
	part     sources.Part
	snapshot *sources.Snapshot
	unread   *schemas.File
}

// combine makes one snapshot of what is known of all.
func (s *Source) combine(main *sources.Snapshot) *sources.Snapshot {
	if len(s.members) == 0 {
		s.current, s.whole, s.made = nil, nil, nil
		return main
	}
	s.mu.Lock()
	made := make([]state, 0, len(s.members))
	count := len(main.Files)
	for _, m := range s.members {
		one := m.state()
		made = append(made, one)
		if one.snapshot != nil {
			count += len(one.snapshot.Files)
		} else {
			count++
		}
	}
	s.mu.Unlock()
	if s.current == main && slices.Equal(made, s.made) {
		return s.whole
	}
	whole := &sources.Snapshot{
		Subject: main.Subject, Author: main.Author, Time: main.Time,
		Files: make([]*schemas.File, 0, count), Parts: make([]sources.Part, 0, len(made)+1),
	}
	if s.current != main {
		whole.Rewritten = main.Rewritten
	}
	whole.Files = append(whole.Files, main.Files...)
	whole.Parts = append(whole.Parts, partOf("", main))
	for i := range made {
		whole.Parts = append(whole.Parts, made[i].part)
		if made[i].snapshot != nil {
			whole.Files = append(whole.Files, made[i].snapshot.Files...)
		} else {
			whole.Files = append(whole.Files, made[i].unread)
		}
	}
	whole.Revision = sources.Combined(whole.Parts)
	s.current, s.whole, s.made = main, whole, made
	return whole
}

func partOf(name string, snapshot *sources.Snapshot) sources.Part {
	return sources.Part{
		Name: name, Revision: snapshot.Revision, Subject: snapshot.Subject, Author: snapshot.Author, Time: snapshot.Time, Rewritten: snapshot.Rewritten,
	}
}
