package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"github.com/gitvirt/gitvirt/backoff"
)

// Publisher writes files to a branch that others may write to as well: the status branch. It is safe for concurrent
// use; calls wait for each other.
//
// Its mirror holds only that branch, without history before the first fetch, and may be deleted at any time.
type Publisher struct {
	*connector
	parent string
	now    func() time.Time
	// turn holds whoever talks to the server.
	turn chan struct{}
}

// takeTurn waits for the calls before this one, and not longer than until ctx ends.
func (p *Publisher) takeTurn(ctx context.Context) (done func(), err error) {
	select {
	case p.turn <- struct{}{}:
		return func() { <-p.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for other calls to %s: %w", p.display, context.Cause(ctx))
	}
}

// Author signs the commits of a Publisher; what it does not say is "gitvirt" and "gitvirt@localhost", which is the controller.
type Author struct {
	// Name and Email are as in git's user.name and user.email.
	Name, Email string
}

// Result tells what Publish did.
type Result struct {
	// Commit is the branch's tip afterwards, which is ours if Changed.
	Commit string
	// Changed is false when the branch already held the files.
	Changed bool
	// Attempts counts the pushes; more than one means that somebody else pushed at the same time. 0 if not Changed.
	Attempts int
}

// ErrRefused says that the server took our objects and refuses the branch, though nobody else has moved it: a
// protected branch or a hook. It comes with sources.ErrAuth.
var ErrRefused = errors.New("the server refuses the push")

// ErrDefaultBranch says that the branch is the one that the repository's HEAD names: where people keep what they wrote,
// and a Publisher replaces what it owns. It comes with sources.ErrAuth.
var ErrDefaultBranch = errors.New("the repository's default branch is not for status files")

// maxRefusals is how often in a row a push may fail on a branch that does not move before it is called refused. Once
// or twice is a lock that somebody else holds.
const maxRefusals = 6

// NewPublisher checks the configuration. Branch, Path and Limits.Files of cfg are not used.
func NewPublisher(cfg Config, opts ...Option) (*Publisher, error) {
	o := newOptions(opts)
	cfg.Branch, cfg.Path = "", ""
	ep, err := newEndpoint(cfg, o.getenv)
	if err != nil {
		return nil, fmt.Errorf("git publisher: %w", err)
	}
	c, err := newConnector(ep)
	if err != nil {
		return nil, fmt.Errorf("git publisher: %w", err)
	}
	return &Publisher{connector: c, parent: ep.cfg.Dir, now: o.now, turn: make(chan struct{}, 1)}, nil
}

// String names the repository, without credentials.
func (p *Publisher) String() string { return p.display }

// Close releases connections.
func (p *Publisher) Close() error {
	p.close()
	return nil
}

// Publish makes the branch hold exactly files among the paths for which owned is true, and leaves all other paths as they
// are. The branch is made (without a parent) when it does not exist. It commits only when something changes, pushes
// without force, and begins again on the new tip when somebody else was faster, until ctx ends.
func (p *Publisher) Publish(ctx context.Context, branch string, owned func(path string) bool, files map[string][]byte, message string, author Author) (Result, error) {
	w := &writer{
		p: p, name: branch, branch: plumbing.NewBranchReferenceName(branch), owned: owned, files: files, message: message, author: author,
		fix: "allow gitvirt's user to push to this branch, or name another status branch",
	}
	return w.publish(ctx)
}

func (w *writer) publish(ctx context.Context) (Result, error) {
	done, err := w.p.takeTurn(ctx)
	if err != nil {
		return Result{}, err
	}
	defer done()
	result, err := w.tryAgain(ctx)
	if err != nil {
		return result, w.p.fail(ctx, "publishing to "+w.name, err)
	}
	return result, nil
}

// tryAgain publishes, again and again while others are faster.
func (w *writer) tryAgain(ctx context.Context) (Result, error) {
	for path := range w.files {
		if err := checkPath(path); err != nil {
			return Result{}, err
		}
	}
	m, err := newMirror(w.p.parent, w.p.display, w.name, "status")
	if err != nil {
		return Result{}, err
	}
	unlock, err := m.lock(ctx)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	w.mirror = m
	defer w.close()
	retry := backoff.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	refusals, last := 0, plumbing.ZeroHash
	for {
		// The time limit is for one attempt; ctx says when to give up.
		attempt, cancel := context.WithTimeout(ctx, w.p.cfg.Timeout)
		result, base, err := w.attempt(attempt)
		if err != nil && attempt.Err() != nil {
			err = w.p.fail(attempt, "publishing to "+w.name, err)
		}
		cancel()
		if err == nil {
			return result, nil
		}
		var lost *lostRace
		if !errors.As(err, &lost) || ctx.Err() != nil {
			return result, err
		}
		if base != last {
			refusals, last = 0, base
		}
		if refusals++; refusals >= maxRefusals {
			return result, &accessError{fmt.Errorf("%w: %w", ErrRefused, err), w.fix}
		}
		if err := backoff.Wait(ctx, nil, retry.Next()); err != nil {
			return result, fmt.Errorf("%w (the last attempt: %w)", err, lost)
		}
	}
}

// lostRace says that the branch was not at base any more, or was locked, when the push arrived.
type lostRace struct{ err error }

func (e *lostRace) Error() string { return e.err.Error() }
func (e *lostRace) Unwrap() error { return e.err }

// writer is one Publish.
type writer struct {
	p *Publisher
	// name is what people call the branch; fix says what to do when it is refused.
	name, fix string
	mirror    *mirror
	store     *store
	branch    plumbing.ReferenceName
	owned     func(string) bool
	files     map[string][]byte
	message   string
	author    Author
	pushes    int
}

func (w *writer) close() {
	if w.store != nil {
		_ = w.store.Close() // it was read, and what was written to it is only a cache
	}
}

// attempt builds on the branch's present tip and pushes. base is that tip.
func (w *writer) attempt(ctx context.Context) (result Result, base plumbing.Hash, err error) {
	to, refs, err := w.p.receive(ctx)
	if err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	defer func() { _ = to.Close() }() // the report says what happened
	base, root, err := w.baseTree(ctx, refs.References[string(w.branch)])
	if err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	built, err := build(w.store, root, w.owned, w.files)
	if err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	if built.root == root || base.IsZero() && len(w.files) == 0 {
		return Result{Commit: tipName(base), Attempts: w.pushes}, base, nil
	}
	commit, err := built.commit(base, w.message, w.author, w.p.now())
	if err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	pack, err := built.pack()
	if err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	w.pushes++
	if err := w.push(ctx, to, refs, base, commit, pack); err != nil {
		return Result{Attempts: w.pushes}, base, err
	}
	// The push stands whether or not the mirror remembers it; what it lacks is fetched next time.
	if err := w.remember(commit, pack); err != nil {
		w.drop()
	}
	return Result{Commit: commit.String(), Changed: true, Attempts: w.pushes}, base, nil
}

func tipName(tip plumbing.Hash) string {
	if tip.IsZero() {
		return ""
	}
	return tip.String()
}

// remember keeps what was pushed, so that the next Publish needs no fetch.
func (w *writer) remember(commit plumbing.Hash, pack []byte) error {
	if err := packfile.UpdateObjectStorage(w.store.Storage, bytes.NewReader(pack)); err != nil {
		return err
	}
	return point(w.store, w.branch, commit)
}

// push sends the new objects and moves the branch from base to commit. The server compares and swaps.
func (w *writer) push(ctx context.Context, to pusher, refs *packp.AdvRefs, base, commit plumbing.Hash, pack []byte) error {
	req := packp.NewReferenceUpdateRequestFromCapabilities(refs.Capabilities)
	said := &tail{}
	if refs.Capabilities.Supports(capability.Sideband64k) {
		req.Progress = said
		if err := req.Capabilities.Set(capability.Sideband64k); err != nil {
			return err
		}
	}
	req.Commands = []*packp.Command{{Name: w.branch, Old: base, New: commit}}
	req.Packfile = io.NopCloser(bytes.NewReader(pack))
	report, err := to.ReceivePack(ctx, req)
	if err == nil {
		return nil
	}
	if report == nil {
		return err // it never came to a decision
	}
	if text := plain(said.String()); text != "" {
		err = fmt.Errorf("%w (%s)", err, text)
	}
	return &lostRace{err}
}

// baseTree returns the branch's tip and its tree, fetching it when the mirror lacks the tip that was offered.
func (w *writer) baseTree(ctx context.Context, offered plumbing.Hash) (tip, root plumbing.Hash, err error) {
	if w.store == nil {
		if w.store, err = w.p.openMirror(w.mirror); err != nil {
			return offered, root, err
		}
	}
	if offered.IsZero() {
		return offered, root, nil
	}
	if root, err = commitTree(w.store, offered); err == nil {
		return offered, root, nil
	}
	tip, err = w.p.fetchTip(ctx, w.store, w.branch)
	if errors.Is(err, errDamaged) {
		w.drop()
		tip, err = w.p.fetchTip(ctx, w.store, w.branch)
	}
	if err != nil || tip.IsZero() {
		return tip, root, err
	}
	root, err = commitTree(w.store, tip)
	return tip, root, err
}

// drop replaces the mirror by an empty one: it is nothing but a cache.
func (w *writer) drop() {
	w.close()
	st, err := w.mirror.create(w.mirror.dir, w.p.cfg.Limits.FileBytes)
	if err != nil {
		st = nil // the next attempt opens it and tells why it cannot
	}
	w.store = st
}
