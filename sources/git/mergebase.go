package git

import (
	"container/heap"
	"context"
	"errors"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
)

// What is known of a commit while common ancestors are looked for.
const (
	ofOurs = 1 << iota
	ofTheirs
	// stale is a common commit, or an ancestor of one: it is no best one.
	stale
)

// mergeBases returns the best common ancestors of two commits, those that git merge-base --all names: several where histories cross, none
// where they have nothing in common. It reads the history no further back than it has to, which is what go-git's own does not do.
func mergeBases(ctx context.Context, st storer.EncodedObjectStorer, ours, theirs *object.Commit) ([]*object.Commit, error) {
	if ours.Hash == theirs.Hash {
		return []*object.Commit{ours}, nil
	}
	found, err := common(ctx, st, ours, theirs)
	if err != nil || len(found) < 2 {
		return found, err
	}
	// Clocks that go wrong leave ancestors of others among them.
	var best []*object.Commit
	for i, one := range found {
		below := false
		for j, other := range found {
			if i == j || below {
				continue
			}
			shared, err := common(ctx, st, one, other)
			if err != nil {
				return nil, err
			}
			below = len(shared) == 1 && shared[0].Hash == one.Hash
		}
		if !below {
			best = append(best, one)
		}
	}
	return best, nil
}

// common walks back from both commits, the newest commit first, until all that is left was seen from both.
func common(ctx context.Context, st storer.EncodedObjectStorer, ours, theirs *object.Commit) ([]*object.Commit, error) {
	w := &ancestry{st: st, seen: map[plumbing.Hash]int{}}
	w.push(ours, ofOurs)
	w.push(theirs, ofTheirs)
	var found []*object.Commit
	for w.fresh > 0 {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		commit, flags := w.pop()
		if flags&(ofOurs|ofTheirs) == ofOurs|ofTheirs && flags&stale == 0 {
			found = append(found, commit)
			flags |= stale
		}
		for _, hash := range commit.ParentHashes {
			if w.seen[hash]|flags == w.seen[hash] {
				continue
			}
			parent, err := object.GetCommit(st, hash)
			if errors.Is(err, plumbing.ErrObjectNotFound) {
				continue // where a shallow history ends
			}
			if err != nil {
				return nil, fmt.Errorf("%w: commit %s: %w", errDamaged, hash, err)
			}
			w.push(parent, flags)
		}
	}
	best := found[:0]
	for _, commit := range found {
		if w.seen[commit.Hash]&stale == 0 {
			best = append(best, commit)
		}
	}
	return best, nil
}

// ancestry is the commits that are still to be looked at.
type ancestry struct {
	st    storer.EncodedObjectStorer
	queue []*object.Commit
	// queued are the commits in the queue; fresh is how many of them are not stale.
	queued map[plumbing.Hash]bool
	seen   map[plumbing.Hash]int
	fresh  int
}

// push adds what is known of a commit and has it looked at, again if need be.
func (w *ancestry) push(commit *object.Commit, flags int) {
	if w.queued == nil {
		w.queued = map[plumbing.Hash]bool{}
	}
	before := w.seen[commit.Hash]
	w.seen[commit.Hash] = before | flags
	switch {
	case !w.queued[commit.Hash]:
		w.queued[commit.Hash] = true
		heap.Push(w, commit)
		if (before|flags)&stale == 0 {
			w.fresh++
		}
	case before&stale == 0 && flags&stale != 0:
		w.fresh--
	}
}

// pop returns the newest commit.
func (w *ancestry) pop() (*object.Commit, int) {
	commit, _ := heap.Pop(w).(*object.Commit)
	delete(w.queued, commit.Hash)
	flags := w.seen[commit.Hash]
	if flags&stale == 0 {
		w.fresh--
	}
	return commit, flags
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (w *ancestry) Len() int { return len(w.queue) }

func (w *ancestry) Less(i, j int) bool {
	return w.queue[i].Committer.When.After(w.queue[j].Committer.When)
}
func (w *ancestry) Swap(i, j int) { w.queue[i], w.queue[j] = w.queue[j], w.queue[i] }

// Push implements heap.Interface.
func (w *ancestry) Push(x any) {
	if commit, ok := x.(*object.Commit); ok {
		w.queue = append(w.queue, commit)
	}
}

// Pop implements heap.Interface.
func (w *ancestry) Pop() any {
	last := w.queue[len(w.queue)-1]
	w.queue = w.queue[:len(w.queue)-1]
	return last
}
