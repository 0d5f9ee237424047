package git

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// errNoBranch says that the branch is not there.
var errNoBranch = errors.New("nothing to follow")

// Source reads the manifests of one branch. It is safe for concurrent use; calls wait for each other.
type Source struct {
	*connector
	parse  ParseFunc
	mirror *mirror
	// judge says which revisions may be applied; nil takes all.
	judge *trust.Judge
	now   func() time.Time

	mu      sync.Mutex
	current *sources.Snapshot
	tree    *walk.Tree // of current
	other   *walk.Tree // of the last At or Merge
	stuck   *stuck
	// latest is tree, for the sources beside this one; peer is the one that this is beside.
	latest atomic.Pointer[walk.Tree]
	peer   *Source
	// refused are heads that cannot be fetched, and damaged says that the mirror has to be fetched anew; both are for Heads.
	refused map[plumbing.Hash]error
	damaged bool
	// slack is by how many bytes a mirror of heads may grow, and notBefore when it is made anew at the earliest after that has failed.
	slack     int64
	notBefore time.Time
	// standing is what was trusted last.
	standing trust.Standing
}

// stuck is a revision that exceeds a limit or is not trusted: it is so each time, so it is read only once. A signature that
// is too young, by a clock that is ahead, may count later: it is looked at again.
type stuck struct {
	hash  plumbing.Hash
	err   error
	until time.Time
}

// again is when what is not trusted is looked at once more.
const again = time.Minute

// Open checks the configuration. It reads nothing yet: the first Poll, Last or At does.
func Open(cfg Config, opts ...Option) (*Source, error) {
	o := newOptions(opts)
	ep, err := newEndpoint(cfg, o.getenv)
	if err != nil {
		return nil, fmt.Errorf("git source: %w", err)
	}
	c, err := newConnector(ep)
	if err != nil {
		return nil, fmt.Errorf("git source: %w", err)
	}
	m, err := newMirror(ep.cfg.Dir, ep.display, ep.cfg.Branch)
	if err != nil {
		return nil, fmt.Errorf("git source %s: %w", ep.display, err)
	}
	return &Source{connector: c, parse: o.parse, mirror: m, judge: o.judge, now: o.now, slack: headSlack}, nil
}

// Close releases connections. The mirror stays.
func (s *Source) Close() error {
	s.close()
	return nil
}

// String names the repository, without credentials.
func (s *Source) String() string { return s.display }

// Poll asks the remote where the branch is and returns its snapshot: the same pointer as before when it did not move.
// Errors are *sources.Error; with any of them what was returned before stays what is known.
func (s *Source) Poll(ctx context.Context) (*sources.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, err := s.poll(ctx)
	if err != nil {
		return nil, s.fail(ctx, "polling "+s.branchName(), err)
	}
	return snapshot, nil
}

func (s *Source) branchName() string {
	if s.cfg.Branch == "" {
		return "HEAD"
	}
	return s.cfg.Branch
}

func (s *Source) poll(ctx context.Context) (*sources.Snapshot, error) {
	from, refs, err := s.upload(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	name, head, err := s.head(refs)
	if err != nil {
		return nil, err
	}
	if s.current != nil && s.current.Revision == head.String() {
		return s.current, nil
	}
	if s.stuck != nil && s.stuck.hash == head && (s.stuck.until.IsZero() || s.now().Before(s.stuck.until)) {
		return nil, s.stuck.err
	}
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	snapshot, tree, err := s.advance(ctx, from, refs, name, head)
	if err != nil {
		switch {
		case errors.Is(err, sources.ErrLimit):
			s.stuck = &stuck{hash: head, err: err}
		case errors.Is(err, sources.ErrUntrusted):
			s.stuck = &stuck{hash: head, err: err, until: s.now().Add(again)}
		}
		return nil, err
	}
	s.accept(snapshot, tree)
	return snapshot, nil
}

// head finds the branch among what the remote offers.
func (s *Source) head(refs *packp.AdvRefs) (plumbing.ReferenceName, plumbing.Hash, error) {
	name, head, err := branchHead(refs, s.cfg.Branch)
	if err != nil {
		return "", plumbing.ZeroHash, &sources.Error{
			Kind: sources.ErrEmpty, Op: "polling " + s.branchName(), Err: err,
			Fix: "push the branch, or correct its name",
		}
	}
	return name, head, nil
}

// advance brings the mirror to head and reads it; a damaged mirror is replaced.
func (s *Source) advance(ctx context.Context, from fetcher, refs *packp.AdvRefs, name plumbing.ReferenceName, head plumbing.Hash) (*sources.Snapshot, *walk.Tree, error) {
	snapshot, tree, err := s.follow(ctx, from, refs, name, head)
	if err == nil || ctx.Err() != nil || !errors.Is(err, errDamaged) {
		return snapshot, tree, err
	}
	damage := err
	st, err := s.mirror.fresh(s.cfg.Limits.FileBytes)
	if err != nil {
		return nil, nil, errors.Join(damage, err)
	}
	defer func() { _ = st.Close() }() // what it holds was flushed by the fetch
	defer s.mirror.discard()
	anew, refs, err := s.upload(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = anew.Close() }()
	if name, head, err = s.head(refs); err != nil {
		return nil, nil, err
	}
	if err := download(ctx, anew, refs, st, request{wants: []plumbing.Hash{head}, limit: s.cfg.FetchBytes}); err != nil {
		return nil, nil, err
	}
	if err := point(st, name, head); err != nil {
		return nil, nil, err
	}
	if snapshot, tree, err = s.look(ctx, st, head); err != nil {
		return nil, nil, s.cutOff(err, head.String())
	}
	snapshot.Rewritten = s.rewritten(st, s.previous(), head)
	return snapshot, tree, s.mirror.commit()
}

// follow fetches head into the mirror unless it is there, and reads it.
func (s *Source) follow(ctx context.Context, from fetcher, refs *packp.AdvRefs, name plumbing.ReferenceName, head plumbing.Hash) (*sources.Snapshot, *walk.Tree, error) {
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return nil, nil, damaged(err)
	}
	defer func() { _ = st.Close() }() // what it holds was flushed by the fetch
	previous := s.previous()
	tip, err := st.Reference(name)
	if err != nil && !errors.Is(err, plumbing.ErrReferenceNotFound) {
		return nil, nil, damaged(err)
	}
	var known []plumbing.Hash
	if tip != nil {
		known = append(known, tip.Hash())
		if previous.IsZero() {
			previous = tip.Hash()
		}
	}
	switch err := st.HasEncodedObject(head); {
	case errors.Is(err, plumbing.ErrObjectNotFound):
		if err := download(ctx, from, refs, st, request{wants: []plumbing.Hash{head}, known: known, limit: s.cfg.FetchBytes}); err != nil {
			return nil, nil, err
		}
	case err != nil:
		return nil, nil, damaged(err)
	}
	snapshot, tree, err := s.look(ctx, st, head)
	if err != nil {
		return nil, nil, err
	}
	snapshot.Rewritten = s.rewritten(st, previous, head)
	if err := point(st, name, head); err != nil {
		return nil, nil, damaged(err)
	}
	// A mirror of many small packs is slower than it need be, and no worse.
	_ = st.consolidate(ctx)
	return snapshot, tree, nil
}

// damaged makes an error of the mirror's files a reason to replace the mirror.
func damaged(err error) error { return fmt.Errorf("%w: %w", errDamaged, err) }

// previous is the revision this process has seen last.
func (s *Source) previous() plumbing.Hash {
	if s.current == nil {
		return plumbing.ZeroHash
	}
	return plumbing.NewHash(s.current.Revision)
}

// accept makes a snapshot the current one.
func (s *Source) accept(snapshot *sources.Snapshot, tree *walk.Tree) {
	if s.tree != nil {
		snapshot.Changed = walk.Changed(s.tree, tree)
	}
	s.current, s.tree, s.stuck = snapshot, tree, nil
	s.latest.Store(tree)
}

// point records head in the mirror: the branch, and HEAD for Last.
func point(st *store, name plumbing.ReferenceName, head plumbing.Hash) error {
	if name == plumbing.HEAD {
		return st.SetReference(plumbing.NewHashReference(plumbing.HEAD, head))
	}
	if err := st.SetReference(plumbing.NewHashReference(name, head)); err != nil {
		return err
	}
	return st.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, name))
}

// clockSkew is how much older than its parent a commit may look.
const clockSkew = 24 * 60 * 60

// rewritten returns old when it is not in the history of head, "" otherwise.
func (s *Source) rewritten(st *store, old, head plumbing.Hash) string {
	if old.IsZero() || old == head {
		return ""
	}
	before, err := object.GetCommit(st, old)
	if err != nil {
		return old.String() // a complete history without it
	}
	tip, err := object.GetCommit(st, head)
	if err != nil {
		return ""
	}
	found := false
	oldest := before.Committer.When.Unix() - clockSkew
	// The commits come newest first, so the search ends soon after the age of old is passed.
	_ = object.NewCommitIterCTime(tip, nil, nil).ForEach(func(c *object.Commit) error {
		found = c.Hash == old
		if found || c.Committer.When.Unix() < oldest {
			return storer.ErrStop
		}
		return nil
	})
	if found {
		return ""
	}
	return old.String()
}

// Last returns the revision that was fetched last, from the mirror alone: what there is to go by when the remote cannot
// be reached after a restart. It is an ErrUnreadable when nothing was fetched yet or the mirror is damaged.
func (s *Source) Last(ctx context.Context) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		return s.current, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	snapshot, err := s.last(ctx)
	if err != nil {
		return nil, s.fail(ctx, "reading the last revision from the mirror", err)
	}
	return snapshot, nil
}

func (s *Source) last(ctx context.Context) (*sources.Snapshot, error) {
	if !s.mirror.exists() {
		return nil, errors.New("nothing was fetched yet")
	}
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // what it holds was flushed by the fetch
	head, err := s.lastHead(st)
	if err != nil {
		return nil, err
	}
	snapshot, tree, err := s.snapshot(ctx, st, head, nil)
	if err != nil {
		return nil, err
	}
	if s.judge != nil {
		if err := s.anchored(&commits{source: s, store: st}, head, schemas.TrustOf(snapshot.Files)); err != nil {
			return nil, err
		}
	}
	s.accept(snapshot, tree)
	return snapshot, nil
}

// lastHead is the commit that Last returns.
func (s *Source) lastHead(st *store) (plumbing.Hash, error) {
	if s.judge != nil && s.judge.Enforces() {
		return s.lastTrusted(st)
	}
	head, err := storer.ResolveReference(st, plumbing.HEAD)
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("nothing was fetched yet: %w", err)
	}
	return head.Hash(), nil
}
