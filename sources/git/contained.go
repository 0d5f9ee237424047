package git

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// Contained returns which of some commits are in the history of tip, itself included. All are full hashes; a commit that was not fetched is in no
// history. The history is read no further back than the oldest of them.
func (s *Source) Contained(ctx context.Context, tip string, commits []string) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	found, err := s.contained(ctx, tip, commits)
	if err != nil {
		s.damaged = s.damaged || errors.Is(err, errDamaged)
		return nil, s.fail(ctx, fmt.Sprintf("reading the history of %.12s", tip), err)
	}
	return found, nil
}

func (s *Source) contained(ctx context.Context, tip string, commits []string) (map[string]bool, error) {
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
	from, err := object.GetCommit(st, plumbing.NewHash(tip))
	if err != nil {
		return nil, damaged(err)
	}
	found, wanted, oldest := map[string]bool{}, map[plumbing.Hash]bool{}, from.Committer.When.Unix()
	for _, hash := range commits {
		commit, err := object.GetCommit(st, plumbing.NewHash(hash))
		switch {
		case errors.Is(err, plumbing.ErrObjectNotFound):
			continue
		case err != nil:
			return nil, damaged(err)
		}
		wanted[commit.Hash] = true
		oldest = min(oldest, commit.Committer.When.Unix())
	}
	err = object.NewCommitIterCTime(from, nil, nil).ForEach(func(c *object.Commit) error {
		if wanted[c.Hash] {
			found[c.Hash.String()] = true
			delete(wanted, c.Hash)
		}
		if len(wanted) == 0 || c.Committer.When.Unix() < oldest-clockSkew {
			return storer.ErrStop
		}
		return ctx.Err()
	})
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		err = nil // where a shallow history ends
	}
	return found, err
}
