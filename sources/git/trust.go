package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
	"github.com/gitvirt/gitvirt/sources/trust"
)

// WithTrust has Poll and Last return only revisions that the judge trusts: one that is refused is an ErrUntrusted, and
// what was returned before stays what is known. At and Browse look at any revision.
func WithTrust(judge *trust.Judge) Option { return func(o *options) { o.judge = judge } }

// errCutOff says that the mirror ends before a verdict could be reached: it is damaged, or the remote has no more.
var errCutOff = fmt.Errorf("%w: a commit is missing", errDamaged)

// trustedRef is the reference in the mirror to what was trusted last. Its name has the keys in it: with others everything
// is judged anew.
func (s *Source) trustedRef() plumbing.ReferenceName {
	anchor := s.judge.Anchor()
	return plumbing.ReferenceName("refs/gitvirt/trusted/" + anchor.Signers.Digest()[:16] + anchor.Since)
}

// look reads a commit that is to be applied, if it may be.
func (s *Source) look(ctx context.Context, st *store, head plumbing.Hash) (*sources.Snapshot, *walk.Tree, error) {
	if s.judge == nil {
		return s.snapshot(ctx, st, head, s.tree)
	}
	history := &commits{source: s, store: st, tree: s.tree}
	before, err := s.judgeHead(ctx, history, head)
	if err != nil {
		return nil, nil, err
	}
	snapshot, tree, err := s.snapshot(ctx, st, head, s.tree)
	if err != nil {
		return nil, nil, err
	}
	fleet := schemas.TrustOf(snapshot.Files)
	if err := s.anchored(history, head, fleet); err != nil {
		return nil, nil, err
	}
	if s.judge.Enforces() {
		if err := st.SetReference(plumbing.NewHashReference(s.trustedRef(), head)); err != nil {
			return nil, nil, damaged(err)
		}
		s.standing = s.judge.Anchor().After(before, head.String(), fleet)
	}
	return snapshot, tree, nil
}

// judgeHead returns what held before head, which is trusted.
func (s *Source) judgeHead(ctx context.Context, history *commits, head plumbing.Hash) (trust.Standing, error) {
	if !s.judge.Enforces() {
		return trust.Standing{}, nil
	}
	if s.standing.Revision == "" {
		if reference, err := history.store.Reference(s.trustedRef()); err == nil {
			s.standing.Revision = reference.Hash().String()
		}
	}
	before, err := s.judge.Head(ctx, history, s.standing, head.String())
	return before, s.verdict(err)
}

// anchored refuses a Fleet that wants signatures where nothing says whose.
func (s *Source) anchored(history *commits, head plumbing.Hash, fleet *schemas.FleetTrust) error {
	commit, err := history.Commit(head.String())
	if err != nil {
		return s.verdict(err)
	}
	return s.verdict(s.judge.Unanchored(commit, head.String(), fleet))
}

// verdict makes an error of this package of one of package trust.
func (s *Source) verdict(err error) error {
	var refused *trust.Refused
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		shown := *refused
		shown.Subject, shown.Author = plain(shown.Subject), plain(shown.Author)
		return &sources.Error{
			Kind: sources.ErrUntrusted, Op: "judging " + s.branchName(), Err: &shown, Fix: shown.Fix, Revision: shown.Head, Reason: shown.Why(),
		}
	case errors.Is(err, trust.ErrMissing):
		return fmt.Errorf("%w: %w", errCutOff, err)
	}
	return err
}

// cutOff is the verdict about a head whose history is cut off at the remote.
func (s *Source) cutOff(err error, head string) error {
	if !errors.Is(err, errCutOff) {
		return err
	}
	return &sources.Error{
		Kind: sources.ErrUntrusted, Op: "judging " + s.branchName(), Err: err,
		Fix:      "the remote has not the whole history (a shallow clone?); complete it, or name a commit that is trusted with --trusted-since",
		Revision: head, Reason: "its history cannot be seen whole",
	}
}

// lastTrusted is what Last begins with.
func (s *Source) lastTrusted(st *store) (plumbing.Hash, error) {
	reference, err := st.Reference(s.trustedRef())
	if err != nil {
		return plumbing.ZeroHash, fmt.Errorf("no revision was trusted yet: %w", err)
	}
	return reference.Hash(), nil
}

// Vouch judges a revision that At or Poll has returned, as if nothing had been trusted before. The error of one that is
// not trusted is an ErrUntrusted.
func (s *Source) Vouch(ctx context.Context, judge *trust.Judge, revision string) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.vouch(ctx, judge, revision); err != nil {
		return s.fail(ctx, "judging "+revision[:min(12, len(revision))], err)
	}
	return nil
}

func (s *Source) vouch(ctx context.Context, judge *trust.Judge, revision string) error {
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }() // it was only read
	_, err = judge.Head(ctx, &commits{source: s, store: st, tree: s.tree}, trust.Standing{}, revision)
	return s.cutOff(s.verdict(err), revision)
}

// commits is the history of a mirror as package trust reads it.
type commits struct {
	source *Source
	store  *store
	// tree is the tree that was read last: neighbours in history have most in common.
	tree *walk.Tree
}

// Commit reads a commit from its bytes. One that git would not have written so has no signature that counts.
func (c *commits) Commit(hash string) (*trust.Commit, error) {
	at := plumbing.NewHash(hash)
	raw, err := rawCommit(c.store, at)
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		return nil, fmt.Errorf("%.12s: %w", hash, trust.ErrMissing)
	}
	if err != nil {
		return nil, damaged(err)
	}
	commit, err := object.GetCommit(c.store, at)
	if err != nil {
		return nil, damaged(err)
	}
	parents := make([]string, len(commit.ParentHashes))
	for i, parent := range commit.ParentHashes {
		parents[i] = parent.String()
	}
	parsed, err := trust.ParseCommit(raw)
	if err != nil || parsed.Tree != commit.TreeHash.String() || !slices.Equal(parsed.Parents, parents) {
		return &trust.Commit{Tree: commit.TreeHash.String(), Parents: parents, Committed: commit.Committer.When, Author: commit.Author.Name + " <" + commit.Author.Email + ">"}, nil
	}
	return parsed, nil
}

// rawCommit returns the bytes of a commit, whose hash is what it is asked for by.
func rawCommit(st *store, hash plumbing.Hash) (raw []byte, err error) {
	encoded, err := st.EncodedObject(plumbing.CommitObject, hash)
	if err != nil {
		return nil, err
	}
	r, err := encoded.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if raw, err = io.ReadAll(r); err != nil {
		return nil, err
	}
	if plumbing.ComputeHash(plumbing.CommitObject, raw) != hash {
		return nil, fmt.Errorf("commit %s is not what its hash says", hash)
	}
	return raw, nil
}

// Trust reads what the Fleet of a commit says.
func (c *commits) Trust(ctx context.Context, hash string) (*schemas.FleetTrust, error) {
	snapshot, tree, err := c.source.snapshot(ctx, c.store, plumbing.NewHash(hash), c.tree)
	switch {
	case errors.Is(err, sources.ErrEmpty):
		return nil, nil //nolint:nilnil // a commit without manifests says nothing
	case errors.Is(err, sources.ErrLimit):
		return &schemas.FleetTrust{Doubt: true}, nil
	case err != nil:
		return nil, err
	}
	c.tree = tree
	return schemas.TrustOf(snapshot.Files), nil
}
