// Package reconcilertest has stateful fakes of what a reconciler drives: a repository, a host and a status branch. They
// behave as the real ones do, and can be made to fail.
package reconcilertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/several"
)

// Repository is a source of manifests in memory. It is safe for concurrent use.
type Repository struct {
	// source is what a Fleet calls it; empty for the repository that the Fleet is in.
	source   string
	mu       sync.Mutex
	files    map[string]string
	parsed   map[string]*schemas.File
	commits  int
	snapshot *sources.Snapshot
	last     *sources.Snapshot
	err      error
	hang     bool
	polls    int
	lastErr  error
}

// NewRepository returns a repository whose first commit holds files, by path.
func NewRepository(files map[string]string) *Repository { return newRepository("", files) }

func newRepository(source string, files map[string]string) *Repository {
	r := &Repository{source: source, files: map[string]string{}, parsed: map[string]*schemas.File{}, lastErr: fmt.Errorf("nothing was fetched yet: %w", sources.ErrUnreadable)}
	r.Commit("the first commit", files)
	return r
}

// Commit writes files; an empty content removes one. It returns the new revision.
func (r *Repository) Commit(subject string, files map[string]string) string {
	return r.commit(subject, files, false)
}

// ForcePush is Commit on a rewritten history.
func (r *Repository) ForcePush(subject string, files map[string]string) string {
	return r.commit(subject, files, true)
}

func (r *Repository) commit(subject string, files map[string]string, rewritten bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var changed []string
	for path, content := range files {
		changed = append(changed, path)
		if content == "" {
			delete(r.files, path)
			delete(r.parsed, path)
			continue
		}
		r.files[path] = content
		r.parsed[path] = schemas.ParseFrom(r.source, path, []byte(content))
	}
	slices.Sort(changed)
	r.commits++
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", r.commits, r.source, subject))
	next := &sources.Snapshot{
		Revision: hex.EncodeToString(sum[:])[:40], Subject: subject, Author: "A <a@example.org>", Time: time.Unix(1_700_000_000, 0).UTC(),
		Changed: changed,
	}
	if rewritten && r.snapshot != nil {
		next.Rewritten = r.snapshot.Revision
	}
	for _, path := range slices.Sorted(maps.Keys(r.parsed)) {
		next.Files = append(next.Files, r.parsed[path])
	}
	r.snapshot = next
	return next.Revision
}

// Fail makes polls fail with err; nil ends that.
func (r *Repository) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// Hang makes polls hang until their context ends.
func (r *Repository) Hang(hang bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hang = hang
}

// Fetched makes the present revision the one that an earlier process has fetched.
func (r *Repository) Fetched() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.lastErr = r.snapshot, nil
}

// Revision returns the present revision.
func (r *Repository) Revision() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snapshot.Revision
}

// Polls returns how often the repository was asked.
func (r *Repository) Polls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.polls
}

// Poll implements reconciler.Source.
func (r *Repository) Poll(ctx context.Context) (*sources.Snapshot, error) {
	r.mu.Lock()
	r.polls++
	snapshot, err, hang := r.snapshot, r.err, r.hang
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, &sources.Error{Kind: sources.ErrUnreadable, Source: "fake", Op: "polling", Err: context.Cause(ctx)}
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last, r.lastErr = snapshot, nil
	return snapshot, nil
}

// Last implements reconciler.LastSource.
func (r *Repository) Last(context.Context) (*sources.Snapshot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, r.lastErr
}

// Close implements several.Repository.
func (r *Repository) Close() error { return nil }

// Others are the repositories that a Fleet names, by name. It is a several.Opener.
type Others map[string]*Repository

// Add makes one whose first commit holds files, by path.
func (o Others) Add(name string, files map[string]string) *Repository {
	o[name] = newRepository(name, files)
	return o[name]
}

// State implements several.Opener.
func (o Others) State(*schemas.FleetSource) string { return "" }

// Open implements several.Opener.
func (o Others) Open(source *schemas.FleetSource) (several.Repository, error) {
	if found := o[source.Name]; found != nil {
		return found, nil
	}
	return nil, &sources.Error{Kind: sources.ErrEmpty, Source: source.Git.URL, Op: "opening"}
}
