package git

import (
	"context"
	"errors"
	"fmt"
	"strings"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"github.com/gitvirt/gitvirt/sources"
)

// At returns the snapshot of one revision: a branch, a tag, a reference that begins with "refs/" (such as that of a
// pull request), a full or short hash, or any of these with ~N and ^N; "" and HEAD mean the branch of this source. Names
// are looked up at the remote; a full hash that was fetched before needs no network. It does not change what Poll and
// Last return. Changed and Rewritten are empty.
func (s *Source) At(ctx context.Context, rev string) (*sources.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, err := s.at(ctx, rev)
	if err != nil {
		return nil, s.fail(ctx, fmt.Sprintf("reading revision %q", rev), err)
	}
	return snapshot, nil
}

func (s *Source) at(ctx context.Context, rev string) (*sources.Snapshot, error) {
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return nil, err
	}
	defer func() { _ = st.Close() }() // it was only read
	if hash := plumbing.NewHash(rev); plumbing.IsHash(rev) && st.has(hash) {
		if snapshot, err := s.read(ctx, st, hash); err == nil || !errors.Is(err, errDamaged) {
			return snapshot, err
		}
	}
	hash, err := s.fetchRevision(ctx, st, rev)
	if err == nil {
		var snapshot *sources.Snapshot
		if snapshot, err = s.read(ctx, st, hash); err == nil {
			return snapshot, nil
		}
	}
	if !errors.Is(err, errDamaged) || ctx.Err() != nil {
		return nil, err
	}
	// Begin again in an empty mirror.
	fresh, freshErr := s.mirror.fresh(s.cfg.Limits.FileBytes)
	if freshErr != nil {
		return nil, errors.Join(err, freshErr)
	}
	defer func() { _ = fresh.Close() }() // what it holds was flushed by the fetch
	defer s.mirror.discard()
	if hash, err = s.fetchRevision(ctx, fresh, rev); err != nil {
		return nil, err
	}
	snapshot, err := s.read(ctx, fresh, hash)
	if err != nil {
		return nil, err
	}
	return snapshot, s.mirror.commit()
}

// read reads a commit, or the commit that a tag names, with what the last snapshots have in common with it.
func (s *Source) read(ctx context.Context, st *store, hash plumbing.Hash) (*sources.Snapshot, error) {
	if tag, err := object.GetTag(st, hash); err == nil {
		commit, err := tag.Commit()
		if err != nil {
			return nil, noRevision(hash.String(), err)
		}
		hash = commit.Hash
	}
	if s.current != nil && s.current.Revision == hash.String() {
		plain := *s.current
		plain.Changed, plain.Rewritten = nil, ""
		return &plain, nil
	}
	snapshot, tree, err := s.snapshot(ctx, st, hash, s.known())
	if err != nil {
		return nil, err
	}
	s.other = tree
	return snapshot, nil
}

// fetchRevision fetches all branches and tags that are missing and resolves rev.
func (s *Source) fetchRevision(ctx context.Context, st *store, rev string) (plumbing.Hash, error) {
	from, refs, err := s.upload(ctx)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	wanted := map[plumbing.ReferenceName]plumbing.Hash{}
	for name, hash := range refs.References {
		if strings.HasPrefix(name, "refs/heads/") || strings.HasPrefix(name, "refs/tags/") || isNamed(rev, name) {
			wanted[plumbing.ReferenceName(name)] = hash
		}
	}
	if err := s.fetchAll(ctx, from, refs, st, rev, wanted); err != nil {
		return plumbing.ZeroHash, err
	}
	name, head, err := branchHead(refs, s.cfg.Branch)
	if err == nil {
		if err := point(st, name, head); err != nil {
			return plumbing.ZeroHash, damaged(err)
		}
	}
	return resolve(st, rev)
}

// isNamed reports whether rev is the reference itself, or begins from it as in refs/pull/1/head~2.
func isNamed(rev, name string) bool {
	return rev == name || strings.HasPrefix(rev, name+"~") || strings.HasPrefix(rev, name+"^")
}

func (s *Source) fetchAll(ctx context.Context, from fetcher, refs *packp.AdvRefs, st *store, rev string, wanted map[plumbing.ReferenceName]plumbing.Hash) error {
	r := request{limit: s.cfg.FetchBytes}
	want := func(hash plumbing.Hash) {
		if !st.has(hash) {
			r.wants = append(r.wants, hash)
		}
	}
	for name, hash := range wanted {
		want(hash)
		if tip, err := st.Reference(name); err == nil {
			r.known = append(r.known, tip.Hash())
		}
	}
	if caps := refs.Capabilities; plumbing.IsHash(rev) && len(r.wants) == 0 &&
		(caps.Supports(capability.AllowReachableSHA1InWant) || caps.Supports(capability.AllowTipSHA1InWant)) {
		want(plumbing.NewHash(rev))
	}
	if len(r.wants) > 0 {
		plumbing.HashesSort(r.wants)
		if err := download(ctx, from, refs, st, r); err != nil {
			return err
		}
	}
	for name, hash := range wanted {
		if err := st.SetReference(plumbing.NewHashReference(name, hash)); err != nil {
			return damaged(err)
		}
	}
	return nil
}

// resolve looks rev up in the mirror.
func resolve(st *store, rev string) (plumbing.Hash, error) {
	if rev == "" {
		rev = "HEAD"
	}
	repository, err := gogit.Open(st, nil)
	if err != nil {
		return plumbing.ZeroHash, damaged(err)
	}
	hash, err := repository.ResolveRevision(plumbing.Revision(rev))
	if err != nil {
		return plumbing.ZeroHash, noRevision(rev, err)
	}
	return *hash, nil
}

func noRevision(rev string, err error) error {
	return &sources.Error{
		Kind: sources.ErrEmpty,
		Op:   "looking up a revision",
		Err:  fmt.Errorf("there is no commit %q: %w", rev, err),
		Fix:  "name a branch, a tag, a commit hash, or one of these with ~N",
	}
}
