package git

import (
	"context"
	"errors"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
)

// History reads the commits of a repository while Browse holds its mirror. It is not safe for concurrent use.
type History struct {
	source *Source
	store  *store
	head   string
	// last is the tree that was read last: neighbours in history have most in common.
	last *walk.Tree
}

// Browse fetches the branches and tags, looks rev up ("" is the branch of this source) and lets look read the history
// from there, from the mirror alone. Nobody else can use the mirror meanwhile.
func (s *Source) Browse(ctx context.Context, rev string, look func(*History) error) error {
	snapshot, err := s.At(ctx, rev)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	op := "reading the history of " + snapshot.Revision[:12]
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	defer unlock()
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	defer func() { _ = st.Close() }() // it was only read
	return look(&History{source: s, store: st, head: snapshot.Revision, last: s.other})
}

// Head is the commit that the history is read from.
func (h *History) Head() string { return h.head }

// Branch is the commit of a branch of the remote, or "" when there is no such branch.
func (h *History) Branch(name string) string {
	reference, err := h.store.Reference(plumbing.NewBranchReferenceName(name))
	if err != nil {
		return ""
	}
	return reference.Hash().String()
}

// Commit reads one commit. A commit that the mirror does not have, as in a clone that is cut off, is an ErrEmpty.
func (h *History) Commit(ctx context.Context, revision string) (sources.Commit, error) {
	commit, err := object.GetCommit(h.store, plumbing.NewHash(revision))
	if err != nil {
		return sources.Commit{}, h.fail(ctx, revision, err)
	}
	subject, _, _ := strings.Cut(strings.TrimLeft(commit.Message, "\n"), "\n")
	out := sources.Commit{
		Revision: commit.Hash.String(), Subject: plain(subject), Author: plain(commit.Author.Name + " <" + commit.Author.Email + ">"),
		Time: commit.Author.When, Committed: commit.Committer.When,
	}
	for _, parent := range commit.ParentHashes {
		out.Parents = append(out.Parents, parent.String())
	}
	switch tree, err := subTree(h.store, commit, commit.TreeHash, h.source.cfg.Path); {
	case err == nil:
		out.Tree = tree.String()
	case !errors.Is(err, sources.ErrEmpty):
		return out, h.fail(ctx, revision, err)
	}
	return out, nil
}

// Snapshot reads the manifests of one commit. A commit without any is a Snapshot without files.
func (h *History) Snapshot(ctx context.Context, revision string) (*sources.Snapshot, error) {
	snapshot, tree, err := h.source.snapshot(ctx, h.store, plumbing.NewHash(revision), h.last)
	switch {
	case errors.Is(err, sources.ErrEmpty):
		return &sources.Snapshot{Revision: revision}, nil
	case err != nil:
		return nil, h.fail(ctx, revision, err)
	}
	h.last = tree
	return snapshot, nil
}

// File reads a file of a commit, whatever the source's sub-path is: an ID that changes with the content, and a function
// that reads it. The ID is empty when the commit does not have the file.
func (h *History) File(ctx context.Context, revision, path string) (id string, read func() ([]byte, error), err error) {
	commit, err := object.GetCommit(h.store, plumbing.NewHash(revision))
	if err != nil {
		return "", nil, h.fail(ctx, revision, err)
	}
	tree, err := commit.Tree()
	if err != nil {
		return "", nil, h.fail(ctx, revision, err)
	}
	entry, err := tree.FindEntry(path)
	if errors.Is(err, object.ErrEntryNotFound) || errors.Is(err, object.ErrDirectoryNotFound) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, h.fail(ctx, revision, err)
	}
	return entry.Hash.String(), func() ([]byte, error) {
		content, err := treeReader{h.store}.Read(ctx, path, walk.Entry{ID: entry.Hash.String()}, h.source.cfg.Limits.FileBytes)
		if err != nil {
			return nil, h.fail(ctx, revision, err)
		}
		return content, nil
	}, nil
}

func (h *History) fail(ctx context.Context, revision string, err error) error {
	if errors.Is(err, plumbing.ErrObjectNotFound) {
		err = &sources.Error{Kind: sources.ErrEmpty, Err: err, Fix: "the history is cut off there; clone the repository without --depth"}
	}
	return h.source.fail(ctx, "reading commit "+revision[:min(12, len(revision))], err)
}

// Folder reads the files right below a folder of a commit, by path, the last by name when there are more than limit.
func (h *History) Folder(ctx context.Context, revision, folder string, limit int) (map[string][]byte, error) {
	commit, err := object.GetCommit(h.store, plumbing.NewHash(revision))
	if err != nil {
		return nil, h.fail(ctx, revision, err)
	}
	root, err := commit.Tree()
	if err != nil {
		return nil, h.fail(ctx, revision, err)
	}
	tree, err := root.Tree(strings.Trim(folder, "/"))
	if errors.Is(err, object.ErrDirectoryNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, h.fail(ctx, revision, err)
	}
	files := map[string][]byte{}
	for i := len(tree.Entries) - 1; i >= 0 && len(files) < limit; i-- {
		entry := tree.Entries[i]
		if entryKind(entry.Mode) != walk.Regular {
			continue
		}
		content, err := treeReader{h.store}.Read(ctx, entry.Name, walk.Entry{ID: entry.Hash.String()}, h.source.cfg.Limits.FileBytes)
		if err != nil {
			return nil, h.fail(ctx, revision, err)
		}
		files[strings.Trim(folder, "/")+"/"+entry.Name] = content
	}
	return files, nil
}
