package trust

import (
	"container/heap"
	"context"
	"errors"
	"math"
	"slices"
)

// maxWalk bounds how many commits one verdict looks at.
const maxWalk = 500_000

// node is what the order of commits needs.
type node struct {
	parents   []string
	committed int64
}

// walk finds out which commits are new.
type walk struct {
	history History
	nodes   map[string]*node
}

var errTooLong = errors.New("the history is too long to look through")

func (w *walk) node(hash string) (*node, error) {
	if n, ok := w.nodes[hash]; ok {
		return n, nil
	}
	if len(w.nodes) >= maxWalk {
		return nil, errTooLong
	}
	commit, err := w.history.Commit(hash)
	if err != nil {
		return nil, err
	}
	n := &node{parents: commit.Parents, committed: commit.Committed.Unix()}
	w.nodes[hash] = n
	return n, nil
}

// skew is by how much the clocks of two people may differ, in seconds.
const skew = 24 * 60 * 60

// The two ends that a commit can be reached from.
const (
	fromHead = 1 << iota
	fromBase
)

// since returns the commits that head has in its history and base has not; all when base is "". It goes from the newest
// to the oldest, and ends when only what base has is left, and that is older by skew. Clocks that are further apart may
// have it name commits that base has as well, and then more are looked at than need be, never fewer.
func (w *walk) since(ctx context.Context, head, base string) (map[string]bool, error) {
	flags := map[string]int{}
	queue := &byTime{walk: w, has: map[string]bool{}}
	oldest := int64(math.MaxInt64) // of what only head was known to have
	open := 0                      // of those in the queue that only head is known to have
	mark := func(hash string, flag int) error {
		before := flags[hash]
		if before|flag == before {
			return nil
		}
		if _, err := w.node(hash); err != nil {
			return err
		}
		flags[hash] = before | flag
		switch {
		case queue.has[hash] && before == fromHead:
			open-- // base has it as well
		case !queue.has[hash]:
			heap.Push(queue, hash)
			if flags[hash] == fromHead {
				open++
			}
		}
		return nil
	}
	if base != "" {
		if err := mark(base, fromBase); err != nil {
			return nil, err
		}
	}
	if err := mark(head, fromHead); err != nil {
		return nil, err
	}
	for open > 0 || queue.Len() > 0 && w.nodes[queue.hashes[0]].committed >= oldest-skew {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		hash, _ := heap.Pop(queue).(string)
		flag := flags[hash]
		if flag == fromHead {
			open--
			oldest = min(oldest, w.nodes[hash].committed)
		}
		for _, parent := range w.nodes[hash].parents {
			if err := mark(parent, flag); err != nil {
				return nil, err
			}
		}
	}
	found := map[string]bool{}
	for hash, flag := range flags {
		if flag == fromHead {
			found[hash] = true
		}
	}
	return found, nil
}

// byTime is a heap with the newest commit first.
type byTime struct {
	walk   *walk
	hashes []string
	has    map[string]bool
}

// Len implements heap.Interface.
func (q *byTime) Len() int { return len(q.hashes) }

// Less implements heap.Interface.
func (q *byTime) Less(i, j int) bool {
	return q.walk.nodes[q.hashes[i]].committed > q.walk.nodes[q.hashes[j]].committed
}

// Swap implements heap.Interface.
func (q *byTime) Swap(i, j int) { q.hashes[i], q.hashes[j] = q.hashes[j], q.hashes[i] }

// Push implements heap.Interface.
func (q *byTime) Push(hash any) {
	if text, ok := hash.(string); ok {
		q.hashes = append(q.hashes, text)
		q.has[text] = true
	}
}

// Pop implements heap.Interface.
func (q *byTime) Pop() any {
	last := len(q.hashes) - 1
	hash := q.hashes[last]
	q.hashes = q.hashes[:last]
	delete(q.has, hash)
	return hash
}

// mainline is head with its first parents among the commits, the oldest first.
func (w *walk) mainline(head string, among map[string]bool) []string {
	var line []string
	for hash := head; among[hash]; {
		line = append(line, hash)
		parents := w.nodes[hash].parents
		if len(parents) == 0 {
			break
		}
		hash = parents[0]
	}
	slices.Reverse(line)
	return line
}

// merged are the commits that a merge brings along: those among the commits that were not seen before, which it marks as
// seen.
func (w *walk) merged(hash string, among, seen map[string]bool) []string {
	var found []string
	for stack := []string{hash}; len(stack) > 0; {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, parent := range w.nodes[at].parents {
			if among[parent] && !seen[parent] {
				seen[parent] = true
				found = append(found, parent)
				stack = append(stack, parent)
			}
		}
	}
	return found
}
