// Package trust decides whether a commit may be applied: whether it is signed by somebody whose signature counts, and
// whether it follows what was trusted before (docs/adr/0050).
//
// What counts is judged from outside in: the keys that the controller was given (Anchor) count always, those of the Fleet
// as they were in the revision that was trusted before. A commit that changes the Fleet's keys is therefore judged by
// the keys without it. The verdict depends on the anchor and the history alone; what was trusted last (Standing) only
// makes it shorter, and shows a branch that goes back.
//
// It reads commits through History and knows neither go-git nor a remote; which revision stays in force when one is
// refused says its caller.
package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/signers"
)

// History gives what a verdict is made of.
type History interface {
	// Commit returns a commit by its full hash, or ErrMissing.
	Commit(hash string) (*Commit, error)
	// Trust returns what the Fleet of a commit says of trust; nil when it says nothing.
	Trust(ctx context.Context, hash string) (*schemas.FleetTrust, error)
}

// ErrMissing says that a history does not have a commit.
var ErrMissing = errors.New("the commit is not in the history")

// Anchor is what the controller was given to trust.
type Anchor struct {
	// Signers always count. Without any nothing is trusted.
	Signers *signers.Set
	// Since, a full hash, is trusted whoever signed it, and so is its history; "" is none.
	Since string
	// All says that every commit after one that is trusted has to be signed, also where no Fleet says so.
	All bool
}

// Standing is what was trusted last, and what holds after it.
type Standing struct {
	// Revision is a full hash; "" says that nothing was trusted yet.
	Revision string
	signers  *signers.Set
	// all says that every commit has to be signed.
	all bool
}

// After is the standing at a commit that is trusted, whose Fleet says trust. In doubt what held before goes on to hold.
func (a *Anchor) After(before Standing, revision string, trust *schemas.FleetTrust) Standing {
	switch {
	case trust == nil:
		return Standing{Revision: revision, signers: a.Signers, all: a.All}
	case !trust.Doubt:
		return Standing{Revision: revision, signers: signers.Join(a.Signers, trust.Signers()), all: a.All || trust.Signatures == schemas.SignaturesAll}
	case before.signers == nil:
		return Standing{Revision: revision, signers: a.Signers, all: true} // nobody knows more
	}
	return Standing{Revision: revision, signers: before.signers, all: before.all}
}

// Refused says which commit is not trusted, and why.
type Refused struct {
	// Commit is what is wrong; Head is what was to be applied, which may be another one.
	Commit, Head string
	// Subject and Author are the commit's, as it says itself.
	Subject, Author string
	// Reason completes "commit X ...", Fix says what to do about it.
	Reason, Fix string
}

// Error names the commit, who made it and why it is refused.
func (r *Refused) Error() string {
	text := fmt.Sprintf("commit %.12s", r.Commit)
	if r.Subject != "" || r.Author != "" {
		text += fmt.Sprintf(" (%q by %s)", r.Subject, cmp.Or(r.Author, "nobody"))
	}
	return text + " " + r.Reason
}

// Why says in a few words why Head is refused.
func (r *Refused) Why() string {
	if r.Commit == r.Head {
		return "it " + r.Reason
	}
	return fmt.Sprintf("commit %.12s %s", r.Commit, r.Reason)
}

// Judge decides about the commits of one branch.
type Judge struct {
	anchor Anchor
	now    func() time.Time
}

// New returns a Judge.
func New(anchor Anchor, now func() time.Time) *Judge { return &Judge{anchor: anchor, now: now} }

// Anchor is what the Judge was given.
func (j *Judge) Anchor() *Anchor { return &j.anchor }

// noKeys is what is said where the Fleet wants signatures and the controller has nothing to begin with.
const (
	noKeys    = "wants signed commits (spec.trust), and the controller was given no keys to begin with"
	noKeysFix = "start it with --trusted-keys FILE: keys in the repository alone could be exchanged by whoever can push"
)

// Unanchored refuses a revision whose Fleet wants signatures, for a controller without keys.
func (j *Judge) Unanchored(head *Commit, hash string, fleet *schemas.FleetTrust) error {
	if j.anchor.Signers.Len() > 0 || fleet == nil {
		return nil
	}
	return refused(head, hash, hash, noKeys, noKeysFix)
}

// Enforces reports whether commits have to be signed at all.
func (j *Judge) Enforces() bool { return j.anchor.Signers.Len() > 0 }

// Head decides whether head may be applied after last, and returns what held before head: see Anchor.After. Errors are
// *Refused, or those of History.
func (j *Judge) Head(ctx context.Context, history History, last Standing, head string) (Standing, error) {
	w := &walk{history: history, nodes: map[string]*node{}}
	last, err := j.begin(ctx, w, last)
	if err != nil {
		return Standing{}, err
	}
	if head == last.Revision {
		return last, nil
	}
	between, err := w.since(ctx, head, last.Revision)
	if err != nil {
		return Standing{}, err
	}
	if len(between) == 0 {
		commit, err := history.Commit(head)
		if err != nil {
			return Standing{}, err
		}
		return Standing{}, refused(commit, head, head, fmt.Sprintf("is older than %.12s, which was trusted before: the branch went back", last.Revision),
			"undo changes with git revert and a signed commit, and push the branch as it was")
	}
	v := &verdict{judge: j, walk: w, between: between, seen: map[string]bool{}, standing: last, head: head}
	if last.Revision != "" {
		v.now = j.now() // commits that are new now
	}
	for _, hash := range w.mainline(head, between) {
		if err := ctx.Err(); err != nil {
			return Standing{}, err
		}
		if err := v.next(ctx, hash); err != nil {
			return Standing{}, err
		}
	}
	return v.standing, nil
}

// begin is where the judgement starts: what was trusted last if it is still to be found, or the anchor's commit.
func (j *Judge) begin(ctx context.Context, w *walk, last Standing) (Standing, error) {
	if last.Revision != "" {
		switch _, err := w.node(last.Revision); {
		case errors.Is(err, ErrMissing):
			last = Standing{} // the history was replaced: everything has to be looked at
		case err != nil:
			return Standing{}, err
		}
	}
	if since := j.anchor.Since; since != "" {
		if _, err := w.node(since); err != nil {
			return Standing{}, fmt.Errorf("looking up --trusted-since: %w", err)
		}
		if last.Revision != "" {
			newer, err := w.since(ctx, since, last.Revision)
			if err != nil {
				return Standing{}, fmt.Errorf("looking up --trusted-since: %w", err)
			}
			if len(newer) > 0 {
				last = Standing{}
			}
		}
		if last.Revision == "" {
			last = Standing{Revision: since}
		}
	}
	if last.Revision != "" && last.signers == nil {
		fleet, err := w.history.Trust(ctx, last.Revision)
		if err != nil {
			return Standing{}, fmt.Errorf("reading the keys of %.12s, which was trusted last: %w", last.Revision, err)
		}
		return j.anchor.After(Standing{}, last.Revision, fleet), nil
	}
	if last.Revision == "" {
		last.signers = j.anchor.Signers
	}
	return last, nil
}

// verdict goes along the first parents, the oldest first.
type verdict struct {
	judge   *Judge
	walk    *walk
	between map[string]bool
	seen    map[string]bool
	// standing is what holds before the next commit.
	standing Standing
	head     string
	// now is zero for commits of the past.
	now time.Time
}

// next looks at one commit of the branch, with what it merges.
func (v *verdict) next(ctx context.Context, hash string) error {
	v.seen[hash] = true
	strict := v.standing.all || hash == v.head
	err := v.check(hash, hash == v.head)
	if v.standing.all {
		for _, merged := range v.walk.merged(hash, v.between, v.seen) {
			if err == nil {
				err = v.check(merged, false)
			}
		}
	}
	var refusal *Refused
	switch {
	case errors.As(err, &refusal) && !strict:
		return nil // neither trusted nor asked for
	case err != nil:
		return err
	case hash == v.head:
		return nil // its caller reads its Fleet
	}
	fleet, err := v.walk.history.Trust(ctx, hash)
	if err != nil {
		return err
	}
	v.standing = v.judge.anchor.After(v.standing, hash, fleet)
	return nil
}

// check checks the signature of one commit. What is to be applied has to be signed by keys that hold now.
func (v *verdict) check(hash string, isHead bool) error {
	commit, err := v.walk.history.Commit(hash)
	if err != nil {
		return err
	}
	times := signers.Times{Made: commit.Committed, Now: v.now}
	if isHead {
		times.Now = v.judge.now()
	}
	_, err = v.standing.signers.Verify(commit.Payload, commit.Signature, times)
	var refusal *signers.Refusal
	if errors.As(err, &refusal) {
		return refused(commit, hash, v.head, refusal.Reason, refusal.Fix)
	}
	return err
}

func refused(commit *Commit, hash, head, reason, fix string) *Refused {
	r := &Refused{Commit: hash, Head: head, Subject: commit.Subject, Author: commit.Author, Reason: reason, Fix: fix}
	if hash != head {
		r.Reason += fmt.Sprintf(", and %.12s stands on it", head)
		r.Fix = "every commit has to be signed (spec.trust.signatures: all); sign it anew (git rebase --exec 'git commit --amend --no-edit -S'), or leave it out, and push again"
	}
	return r
}
