package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
)

// errDamaged says that the mirror lacks objects it should have, or holds them spoilt.
var errDamaged = errors.New("the git mirror is damaged")

// treeReader reads git trees for package walk. IDs are hashes in hexadecimal digits.
type treeReader struct {
	store storer.EncodedObjectStorer
}

// List returns the entries of a tree.
func (t treeReader) List(_ context.Context, dir, id string) ([]walk.Entry, error) {
	tree, err := object.GetTree(t.store, plumbing.NewHash(id))
	if err != nil {
		return nil, fmt.Errorf("%w: directory %q: %w", errDamaged, dir, err)
	}
	entries := make([]walk.Entry, len(tree.Entries))
	for i, e := range tree.Entries {
		entries[i] = walk.Entry{Name: e.Name, Kind: entryKind(e.Mode), ID: e.Hash.String()}
	}
	return entries, nil
}

func entryKind(mode filemode.FileMode) walk.Kind {
	switch mode {
	case filemode.Regular, filemode.Executable, filemode.Deprecated:
		return walk.Regular
	case filemode.Dir:
		return walk.Directory
	case filemode.Symlink:
		return walk.Symlink
	case filemode.Submodule:
		return walk.Submodule
	}
	return walk.Other
}

// Read returns a blob.
func (t treeReader) Read(_ context.Context, file string, entry walk.Entry, limit int64) ([]byte, error) {
	blob, err := t.store.EncodedObject(plumbing.BlobObject, plumbing.NewHash(entry.ID))
	if err != nil {
		return nil, fmt.Errorf("%w: file %q: %w", errDamaged, file, err)
	}
	if blob.Size() > limit {
		return nil, &walk.TooLargeError{Size: blob.Size()}
	}
	content, err := readBlob(blob)
	if err != nil {
		return nil, fmt.Errorf("%w: file %q: %w", errDamaged, file, err)
	}
	return content, nil
}

func readBlob(blob plumbing.EncodedObject) (content []byte, err error) {
	r, err := blob.Reader()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	content = make([]byte, blob.Size())
	_, err = io.ReadFull(r, content)
	return content, err
}

// subTree finds the tree of a sub-path in the tree of a commit.
func subTree(s storer.EncodedObjectStorer, commit *object.Commit, hash plumbing.Hash, dir string) (plumbing.Hash, error) {
	if dir == "" {
		return hash, nil
	}
	for _, name := range strings.Split(dir, "/") {
		tree, err := object.GetTree(s, hash)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("%w: tree %s: %w", errDamaged, hash, err)
		}
		found := false
		for _, e := range tree.Entries {
			if e.Name == name && e.Mode == filemode.Dir {
				hash, found = e.Hash, true
			}
		}
		if !found {
			return plumbing.ZeroHash, &sources.Error{
				Kind: sources.ErrEmpty,
				Op:   "reading " + commit.Hash.String()[:12],
				Err:  fmt.Errorf("there is no directory %q: %w", dir, os.ErrNotExist),
				Fix:  "correct the sub-path, or put the manifests there",
			}
		}
	}
	return hash, nil
}

// snapshot reads one commit. What is equal in prev is not read again.
func (s *Source) snapshot(ctx context.Context, st *store, hash plumbing.Hash, prev *walk.Tree) (*sources.Snapshot, *walk.Tree, error) {
	commit, err := object.GetCommit(st, hash)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: commit %s: %w", errDamaged, hash, err)
	}
	return s.snapshotOf(ctx, st, commit, commit.TreeHash, prev)
}

// snapshotOf is snapshot with another tree than the commit's own.
func (s *Source) snapshotOf(ctx context.Context, st storer.EncodedObjectStorer, commit *object.Commit, files plumbing.Hash, prev *walk.Tree) (*sources.Snapshot, *walk.Tree, error) {
	root, err := subTree(st, commit, files, s.cfg.Path)
	if err != nil {
		return nil, nil, err
	}
	tree, err := walk.Build(ctx, treeReader{st}, s.cfg.Path, root.String(), prev, walk.Options{Limits: s.cfg.Limits, Source: s.cfg.Source, Parse: s.parse})
	if err != nil {
		return nil, nil, err
	}
	if len(tree.Files()) == 0 {
		return nil, nil, &sources.Error{
			Kind: sources.ErrEmpty,
			Op:   "reading " + commit.Hash.String()[:12],
			Err:  fmt.Errorf("there is no manifest (*.yaml, *.yml, *.json) in %q", "/"+s.cfg.Path),
			Fix:  "correct the branch or the sub-path; to remove every VM on purpose, leave a gitvirt.yaml (kind: Fleet)",
		}
	}
	subject, _, _ := strings.Cut(strings.TrimLeft(commit.Message, "\n"), "\n")
	return &sources.Snapshot{
		Revision: commit.Hash.String(),
		Subject:  plain(subject),
		Author:   plain(commit.Author.Name + " <" + commit.Author.Email + ">"),
		Time:     commit.Author.When,
		Files:    tree.Files(),
	}, tree, nil
}
