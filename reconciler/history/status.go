package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// StatusBranch has the commits of the status branch.
type StatusBranch interface {
	Commit(ctx context.Context, revision string) (sources.Commit, error)
	// File returns an ID that changes with the content ("" for no such file) and a function that reads it.
	File(ctx context.Context, revision, path string) (id string, read func() ([]byte, error), err error)
	// Folder returns the files right below a folder, the last by name.
	Folder(ctx context.Context, revision, folder string, limit int) (map[string][]byte, error)
}

// The bounds of what is read of a status branch.
const (
	maxStatusCommits = 5_000
	maxApprovals     = 2_000
)

// Observe adds what a status branch at a revision says: when each commit was first seen applied, and who approved it.
func (l *Log) Observe(ctx context.Context, branch StatusBranch, revision string) error {
	if revision == "" || len(l.Entries) == 0 {
		return nil
	}
	applied, err := l.applied(ctx, branch, revision)
	if err != nil {
		return fmt.Errorf("reading the status branch: %w", err)
	}
	files, err := branch.Folder(ctx, revision, status.ApprovalFolder, maxApprovals)
	if err != nil {
		return fmt.Errorf("reading the approvals: %w", err)
	}
	approvals, _ := status.ReadApprovals(files) // what cannot be read approves nothing, and is the controller's to tell
	for i := range l.Entries {
		entry := &l.Entries[i]
		for _, covered := range entry.covers {
			if at, ok := applied[covered]; ok && (entry.Applied.IsZero() || at.Before(entry.Applied)) {
				entry.Applied = at
			}
		}
		for _, approval := range approvals {
			if slices.Contains(entry.covers, sources.CommitOf(approval.Revision)) && slices.ContainsFunc(approval.Steps, func(s status.ApprovedStep) bool { return l.named(s.Address) }) {
				entry.Approvals = append(entry.Approvals, Approval{By: status.OneLine(approval.By), At: approval.At.UTC(), Plan: status.OneLine(approval.Plan)})
			}
		}
	}
	return nil
}

// names are what the machine was called, the present name first.
func (l *Log) names() []schemas.Address {
	names := []schemas.Address{l.Address}
	for i := range l.Entries {
		if previous := l.Entries[i].Previous; previous != nil {
			names = append(names, *previous)
		}
	}
	return names
}

func (l *Log) named(address schemas.Address) bool {
	return slices.ContainsFunc(l.names(), func(name schemas.Address) bool {
		return name.Namespace == address.Namespace && name.Name == address.Name
	})
}

// applied returns when each revision was first said to be applied to the machine. It walks back until all entries have
// their time or the oldest entry is older than the branch's commit.
func (l *Log) applied(ctx context.Context, branch StatusBranch, revision string) (map[string]time.Time, error) {
	oldest := l.Entries[len(l.Entries)-1].Time
	first := map[string]time.Time{}
	seen := map[string]string{} // what the file of an ID says was applied
	for range maxStatusCommits {
		commit, err := branch.Commit(ctx, revision)
		if errors.Is(err, sources.ErrEmpty) {
			return first, nil
		}
		if err != nil {
			return nil, err
		}
		for _, name := range l.names() {
			observed, err := l.observed(ctx, branch, revision, name, seen)
			if err != nil {
				return nil, err
			}
			if observed != "" {
				first[observed] = commit.Time.UTC()
			}
		}
		if len(commit.Parents) == 0 || commit.Time.Before(oldest) {
			return first, nil
		}
		revision = commit.Parents[0]
	}
	return first, nil
}

// observed is the revision that a status file says was applied last; "" when there is none that can be read.
func (l *Log) observed(ctx context.Context, branch StatusBranch, revision string, name schemas.Address, seen map[string]string) (string, error) {
	path, ok := status.Path(name)
	if !ok {
		return "", nil
	}
	id, read, err := branch.File(ctx, revision, path)
	if err != nil || id == "" {
		return "", err
	}
	observed, known := seen[id]
	if !known {
		content, err := read()
		if err != nil {
			return "", err
		}
		if vm, err := status.Parse(content); err == nil {
			observed = vm.ObservedRevision
		}
		seen[id] = observed
	}
	return observed, nil
}
