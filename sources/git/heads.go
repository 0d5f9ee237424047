package git

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
)

// headBytes is the most that the heads of pull requests may transfer at a time: anybody may open one.
const headBytes = 64 << 20

// Beside returns a source of the same branch with a mirror of its own below dir: what it fetches, and how long that takes, is nothing to
// this one, whose Poll never waits for it. Files that this one has parsed are not parsed again and are the same pointers.
func (s *Source) Beside(dir string) (*Source, error) {
	cfg := s.cfg
	cfg.Dir = dir
	beside, err := Open(cfg, WithParse(s.parse), WithGetenv(s.getenv))
	if err != nil {
		return nil, err
	}
	beside.peer = s
	return beside, nil
}

// known is what was read before and has most in common with what is read next.
func (s *Source) known() *walk.Tree {
	if s.peer != nil {
		if tree := s.peer.latest.Load(); tree != nil {
			return tree
		}
	}
	if s.tree != nil {
		return s.tree
	}
	return s.other
}

// Heads asks the remote where the branch and other references are (such as "refs/pull/1/head"), and fetches what the mirror lacks of
// them. When nothing moved that is one request; otherwise all that moved comes with one more.
func (s *Source) Heads(ctx context.Context, names []string) (*sources.Heads, error) {
	return s.pick(ctx, func(refs map[string]plumbing.Hash, heads *sources.Heads) {
		for _, name := range names {
			if hash, ok := refs[name]; ok {
				heads.Refs[name] = hash.String()
			}
		}
	})
}

// Matching is Heads for all references whose names fetch wants, whichever the remote has. Those that see wants are only looked at.
func (s *Source) Matching(ctx context.Context, fetch, see func(name string) bool) (*sources.Heads, error) {
	return s.pick(ctx, func(refs map[string]plumbing.Hash, heads *sources.Heads) {
		heads.Seen = map[string]string{}
		for name, hash := range refs {
			switch {
			case fetch(name):
				heads.Refs[name] = hash.String()
			case see(name):
				heads.Seen[name] = hash.String()
			}
		}
	})
}

// choice takes of what the remote offers what is to be fetched and seen.
type choice func(refs map[string]plumbing.Hash, heads *sources.Heads)

func (s *Source) pick(ctx context.Context, choose choice) (*sources.Heads, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	heads, err := s.heads(ctx, choose)
	if err != nil {
		s.damaged = s.damaged || errors.Is(err, errDamaged)
		return nil, s.fail(ctx, "fetching heads", err)
	}
	return heads, nil
}

func (s *Source) heads(ctx context.Context, choose choice) (*sources.Heads, error) {
	from, refs, err := s.upload(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	name, base, err := s.head(refs)
	if err != nil {
		return nil, err
	}
	heads := &sources.Heads{
		Branch: strings.TrimPrefix(name.String(), "refs/heads/"), Base: base.String(),
		Refs: map[string]string{}, Refused: map[string]error{},
	}
	choose(refs.References, heads)
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	st, commit, err := s.headStore()
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // what it holds was flushed by the fetch
	f := &headFetch{s: s, st: st, from: from, refs: refs}
	if err := f.base(ctx, name, base); err != nil {
		return nil, err
	}
	if err := f.others(ctx, base, heads.Refs); err != nil {
		return nil, err
	}
	still := map[plumbing.Hash]error{}
	for name, hash := range heads.Refs {
		if err := s.refused[plumbing.NewHash(hash)]; err != nil {
			heads.Refused[name] = err
			still[plumbing.NewHash(hash)] = err
		}
	}
	s.refused = still
	// A mirror of many small packs, or of much that nobody needs any more, is slower than it need be, and no worse.
	_ = st.consolidate(ctx)
	if err := commit(); err != nil {
		return nil, err
	}
	s.shrink(ctx, heads.Refs)
	return heads, nil
}

// headStore opens the mirror, or a new one in its place when it is damaged; commit is what makes the new one count.
func (s *Source) headStore() (st *store, commit func() error, err error) {
	if !s.damaged {
		st, err = s.mirror.open(s.cfg.Limits.FileBytes)
		return st, func() error { return nil }, err
	}
	st, err = s.mirror.fresh(s.cfg.Limits.FileBytes)
	return st, func() error {
		s.damaged = false
		return s.mirror.commit()
	}, err
}

// headFetch is one conversation, or a few.
type headFetch struct {
	s    *Source
	st   *store
	from fetcher
	refs *packp.AdvRefs
	used bool
}

// base fetches the branch, by itself: what is allowed to be large is ours.
func (f *headFetch) base(ctx context.Context, name plumbing.ReferenceName, head plumbing.Hash) error {
	if !f.st.has(head) {
		var known []plumbing.Hash
		if tip, err := f.st.Reference(name); err == nil {
			known = append(known, tip.Hash())
		}
		if err := f.download(ctx, request{wants: []plumbing.Hash{head}, known: known, limit: f.s.cfg.FetchBytes}); err != nil {
			return err
		}
	}
	if tip, err := f.st.Reference(name); err == nil && tip.Hash() == head {
		return nil
	}
	if err := point(f.st, name, head); err != nil {
		return damaged(err)
	}
	return nil
}

// others fetches the other heads, all at once, and one by one when that is too much, so that it is known which one it is.
func (f *headFetch) others(ctx context.Context, base plumbing.Hash, refs map[string]string) error {
	missing := map[plumbing.Hash]bool{}
	for _, hash := range refs {
		if h := plumbing.NewHash(hash); f.s.refused[h] == nil && !f.st.has(h) {
			missing[h] = true
		}
	}
	if len(missing) == 0 {
		return nil
	}
	wants := slices.Collect(maps.Keys(missing))
	plumbing.HashesSort(wants)
	known := []plumbing.Hash{base}
	limit := min(headBytes, f.s.cfg.FetchBytes)
	err := f.download(ctx, request{wants: wants, known: known, limit: limit})
	if err == nil || !errors.Is(err, errTooMuch) {
		return err
	}
	for _, want := range wants {
		if len(wants) > 1 {
			err = f.download(ctx, request{wants: []plumbing.Hash{want}, known: known, limit: limit})
		}
		switch {
		case errors.Is(err, errTooMuch):
			if f.s.refused == nil {
				f.s.refused = map[plumbing.Hash]error{}
			}
			f.s.refused[want] = &sources.Error{Kind: sources.ErrLimit, Source: f.s.display, Op: "fetching " + want.String()[:12], Err: errTooMuch}
		case err != nil:
			return err
		}
	}
	return nil
}

// download fetches over the conversation that is open, and over a new one when that was used.
func (f *headFetch) download(ctx context.Context, r request) error {
	if !f.used {
		f.used = true
		return download(ctx, f.from, f.refs, f.st, r)
	}
	from, refs, err := f.s.upload(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	return download(ctx, from, refs, f.st, r)
}
