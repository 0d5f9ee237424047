// Package history tells who changed what is wanted of a machine, when, and what that meant for its guest: from the commits
// of the manifests, and from the status branch, which says when it was applied and who approved it. It reads and changes
// nothing else.
//
// A commit counts when it changes the machine as it is wanted after everything was resolved: a commit of an instancetype,
// a Secret or the Fleet counts as much as one of the machine's own file. As with git log, a merge is passed over for the
// side that it took the machine from.
package history

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// Repository has the commits of the manifests.
type Repository interface {
	Commit(ctx context.Context, revision string) (sources.Commit, error)
	// Snapshot reads the manifests of a commit; files that are equal to those read before are the same pointers.
	Snapshot(ctx context.Context, revision string) (*sources.Snapshot, error)
}

// Kind is what a commit did to a machine.
type Kind string

// The closed set of kinds.
const (
	Created Kind = "created"
	Changed Kind = "changed"
	Renamed Kind = "renamed"
	Removed Kind = "removed"
	Broken  Kind = "broken" // its manifest has mistakes since
	Mended  Kind = "mended" // it has none any more
)

// Approval is somebody's approval of what a commit meant.
type Approval struct {
	By   string    `json:"by"`
	At   time.Time `json:"at"`
	Plan string    `json:"plan"`
}

// Entry is one commit that changed what is wanted of a machine.
type Entry struct {
	Revision string    `json:"revision"`
	Author   string    `json:"author"`
	Time     time.Time `json:"time"`
	Subject  string    `json:"subject"`
	Kind     Kind      `json:"kind"`
	// Address is what the machine was called since, Previous what it was called before, when that is another name.
	Address  schemas.Address  `json:"address"`
	Previous *schemas.Address `json:"previous,omitempty"`
	// Files are those of the commit that took part.
	Files []string `json:"files,omitempty"`
	// Consequence is what it meant for a running guest, Changes are the fields; sensitive values are not in them.
	Consequence plan.Consequence `json:"consequence,omitempty"`
	Changes     []plan.Change    `json:"changes,omitempty"`
	// Problem is the first mistake of a broken manifest.
	Problem string `json:"problem,omitempty"`
	// Applied is when the status branch first said that it was applied.
	Applied time.Time `json:"applied,omitzero"`
	// Approvals are those on the status branch.
	Approvals []Approval `json:"approvals,omitempty"`

	// covers are the commits at which the machine was as this one left it.
	covers []string
}

// Log is the history of one machine, newest first.
type Log struct {
	Address  schemas.Address `json:"address"`
	Revision string          `json:"revision"`
	Entries  []Entry         `json:"changes"`
	// More says that there is more than was asked for.
	More bool `json:"more"`
	// CutOff says that the repository does not hold the older commits.
	CutOff bool `json:"cut_off,omitempty"`
	// Commits is how many commits were looked at.
	Commits int `json:"commits"`
}

// Options bound the search; zero fields mean 10 entries and 100,000 commits.
type Options struct {
	Limit   int
	Commits int
}

const (
	defaultLimit   = 10
	defaultCommits = 100_000
)

// Of walks back from a revision.
func Of(ctx context.Context, repository Repository, revision string, address schemas.Address, options Options) (*Log, error) {
	if options.Limit <= 0 {
		options.Limit = defaultLimit
	}
	if options.Commits <= 0 {
		options.Commits = defaultCommits
	}
	w := &walker{repository: repository, options: options, log: &Log{Address: address, Revision: revision, Entries: []Entry{}}, seen: map[visit]bool{}}
	commit, err := repository.Commit(ctx, revision)
	if err != nil {
		return nil, err
	}
	state, err := w.look(ctx, commit, address)
	if err != nil {
		return nil, err
	}
	w.push(&node{commit: commit, address: address, state: state})
	for w.queue.Len() > 0 {
		if len(w.log.Entries) >= options.Limit || w.log.Commits >= options.Commits {
			w.log.More = true
			break
		}
		next, _ := heap.Pop(&w.queue).(*node)
		if err := w.step(ctx, next); err != nil {
			return nil, err
		}
	}
	return w.log, nil
}

// node is a commit that is still to be looked at, with what the machine was called there and how it was wanted.
type node struct {
	commit  sources.Commit
	address schemas.Address
	state   *state
	// covers are newer commits with the same state.
	covers []string
	order  int
}

// visit is what is looked at once.
type visit struct {
	revision string
	address  schemas.Address
}

type walker struct {
	repository Repository
	options    Options
	log        *Log
	queue      queue
	seen       map[visit]bool
	pushed     int
	viewer     viewer
}

func (w *walker) push(n *node) {
	key := visit{n.commit.Revision, n.address}
	if w.seen[key] {
		return
	}
	w.seen[key] = true
	w.pushed++
	n.order = w.pushed
	heap.Push(&w.queue, n)
}

// step compares a commit with its parents: the first that has the machine as the commit has it is followed alone; when
// there is none, the commit changed it.
func (w *walker) step(ctx context.Context, n *node) error {
	w.log.Commits++
	covers := append(n.covers, n.commit.Revision) //nolint:gocritic // the node is done with its own
	var parents []*node
	for _, revision := range n.commit.Parents {
		parent, err := w.parent(ctx, n, revision)
		if errors.Is(err, sources.ErrEmpty) {
			w.log.CutOff = true
			return nil
		}
		if err != nil {
			return err
		}
		if parent.state.key == n.state.key {
			parent.covers = covers
			w.push(parent)
			return nil
		}
		parents = append(parents, parent)
	}
	if len(parents) == 0 && n.state.absent() {
		return nil
	}
	previous, err := w.previous(ctx, n, parents)
	if err != nil {
		return err
	}
	entry := entryOf(n, parents, previous)
	entry.covers = covers
	w.log.Entries = append(w.log.Entries, entry)
	for _, parent := range parents {
		w.push(parent)
	}
	return nil
}

// parent looks at one parent of a commit. Equal trees need no look.
func (w *walker) parent(ctx context.Context, n *node, revision string) (*node, error) {
	commit, err := w.repository.Commit(ctx, revision)
	if err != nil {
		return nil, err
	}
	if commit.Tree == n.commit.Tree {
		return &node{commit: commit, address: n.address, state: n.state}, nil
	}
	state, err := w.look(ctx, commit, n.address)
	return &node{commit: commit, address: n.address, state: state}, err
}

// previous follows a machine that a commit renamed: it turns the parents to its name before, and returns that.
func (w *walker) previous(ctx context.Context, n *node, parents []*node) (*schemas.Address, error) {
	if n.state.vm == nil || n.state.vm.Settings.PreviousName.IsZero() {
		return nil, nil //nolint:nilnil // most machines never had another name
	}
	if slices.ContainsFunc(parents, func(p *node) bool { return !p.state.absent() }) {
		return nil, nil //nolint:nilnil // the annotation only stayed
	}
	address := n.state.vm.Settings.PreviousName
	found := false
	for _, parent := range parents {
		state, err := w.look(ctx, parent.commit, address)
		if err != nil {
			return nil, err
		}
		if !state.absent() {
			parent.address, parent.state, found = address, state, true
		}
	}
	if !found {
		return nil, nil //nolint:nilnil // it was never here under that name
	}
	return &address, nil
}

func (w *walker) look(ctx context.Context, commit sources.Commit, address schemas.Address) (*state, error) {
	if commit.Tree == "" {
		return &state{}, nil
	}
	snapshot, err := w.repository.Snapshot(ctx, commit.Revision)
	if err != nil {
		return nil, err
	}
	return w.viewer.look(snapshot, address), nil
}

// queue has the newest commit first.
type queue []*node

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if c := q[i].commit.Committed.Compare(q[j].commit.Committed); c != 0 {
		return c > 0
	}
	return q[i].order < q[j].order
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push adds a node, for package heap.
func (q *queue) Push(x any) {
	if n, ok := x.(*node); ok {
		*q = append(*q, n)
	}
}

// Pop removes the last node, for package heap.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}
