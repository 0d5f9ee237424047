package branches

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/sources"
)

func sameHeads(a, b *sources.Heads) bool {
	return a.Branch == b.Branch && a.Base == b.Base && maps.Equal(a.Refs, b.Refs)
}

// remembered is how long a branch that is gone is known.
const remembered = time.Hour

// take makes pull requests of where the branches are now, for the first time or again. The caller holds mu.
func (b *Branches) take(heads *sources.Heads, first bool) {
	now := b.config.Clock.Now()
	for ref, p := range b.plans {
		if p.theirs && heads.Seen[ref] != p.commit {
			delete(b.plans, ref) // they have removed it, or written something else
		}
	}
	for ref, hash := range heads.Seen {
		if b.plans[ref] == nil {
			b.plans[ref] = &plan{commit: hash}
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(heads.Refs)) {
		name, hash, state := strings.TrimPrefix(ref, "refs/heads/"), heads.Refs[ref], forges.Open
		if b.merged[hash] {
			state = forges.Merged
		}
		if b.byName[name] == nil && state != forges.Open && b.plans[Prefix+name] == nil {
			continue // nothing was ever shown of it
		}
		b.see(name, hash, state, heads.Branch, now)
	}
	for name, one := range b.byName {
		if _, there := heads.Refs["refs/heads/"+name]; !there && one.State == forges.Open {
			b.see(name, one.Head, forges.Closed, heads.Branch, now)
		}
		if p := b.plans[one.ref()]; one.State != forges.Open && now.Sub(one.Updated) > remembered && p.text() == "" && (p == nil || p.next == nil) {
			delete(b.pulls, one.Number)
			delete(b.byName, name)
			delete(b.plans, one.ref())
		}
	}
	if !first {
		return
	}
	// Plans of branches that went while nobody looked, or that are not planned any more.
	for _, ref := range slices.Sorted(maps.Keys(heads.Seen)) {
		if name := strings.TrimPrefix(ref, Prefix); b.byName[name] == nil {
			b.see(name, heads.Seen[ref], forges.Closed, heads.Branch, now)
		}
	}
}

// see takes what is so of one branch. The caller holds mu.
func (b *Branches) see(name, head string, state forges.State, base string, now time.Time) {
	one := b.byName[name]
	if one == nil {
		b.last++
		one = &branch{PullRequest: forges.PullRequest{Number: b.last, Title: name, Author: Account, Base: base}}
		b.byName[name], b.pulls[one.Number] = one, one
	}
	if one.Head != head || one.State != state || one.Base != base {
		one.Head, one.State, one.Base, one.Updated = head, state, base, now
	}
}

// changed lists what was updated at a time or later, and for a zero time what is open. The caller holds mu.
func (b *Branches) changed(since time.Time) []forges.PullRequest {
	var list []forges.PullRequest
	for _, one := range b.pulls {
		if since.IsZero() && one.State == forges.Open || !since.IsZero() && !one.Updated.Before(since) {
			list = append(list, one.PullRequest)
		}
	}
	slices.SortFunc(list, func(x, y forges.PullRequest) int {
		return cmp.Or(y.Updated.Compare(x.Updated), cmp.Compare(y.Number, x.Number))
	})
	return list
}

// Heads implements previews.Source: Changed has asked and fetched already.
func (b *Branches) Heads(context.Context, []string) (*sources.Heads, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.heads == nil {
		return nil, errors.New("the branches were not looked at yet")
	}
	return b.heads, nil
}

// Merge implements previews.Source.
func (b *Branches) Merge(ctx context.Context, base, head string) (*sources.Snapshot, []sources.Conflict, error) {
	return b.repository.Merge(ctx, base, head)
}

// Name implements forges.Forge.
func (b *Branches) Name() string { return b.repository.String() }

// Account implements forges.Forge.
func (b *Branches) Account(context.Context) (string, error) { return Account, nil }

// find returns a branch by its number. The caller holds mu.
func (b *Branches) find(number int) (*branch, error) {
	if one := b.pulls[number]; one != nil {
		return one, nil
	}
	return nil, fmt.Errorf("branch number %d: %w", number, forges.ErrNotFound)
}

// PullRequest implements forges.Forge.
func (b *Branches) PullRequest(_ context.Context, number int) (forges.PullRequest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return forges.PullRequest{}, err
	}
	return one.PullRequest, nil
}

// HeadRef implements forges.Forge.
func (b *Branches) HeadRef(number int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return ""
	}
	return "refs/heads/" + one.Title
}

// CommentLimit implements forges.Forge.
func (b *Branches) CommentLimit() int { return planBytes }

var fullHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// SetStatus implements forges.Forge. A status goes with the plan that is written next: one that is pending is in nobody's repository.
func (b *Branches) SetStatus(_ context.Context, commit string, status forges.Status) error {
	if !fullHash.MatchString(commit) || status.Context == "" || status.State == "" {
		return fmt.Errorf("%w: a status of %q in the state %q", forges.ErrRefused, commit, status.State)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.pulls {
		if one.Head == commit {
			one.told, one.of = status, commit
		}
	}
	return nil
}

// Statuses implements forges.Forge, as far as this process knows.
func (b *Branches) Statuses(_ context.Context, commit string) ([]forges.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, one := range b.pulls {
		if one.of == commit {
			told := one.told
			told.Annotations = nil
			return []forges.Status{told}, nil
		}
	}
	return nil, nil
}

// Permission implements forges.Forge: whoever may push needs none.
func (b *Branches) Permission(context.Context, string) (forges.Permission, error) {
	return forges.NoPermission, nil
}

// Hook implements forges.Forge: nobody sends any.
func (b *Branches) Hook(http.Header, []byte, string) (forges.Event, error) {
	return forges.Event{}, fmt.Errorf("%w: a plain git server sends no webhooks", forges.ErrRefused)
}
