package git

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/transport"

	"github.com/gitvirt/gitvirt/sources"
)

// Read returns the files of a branch by path. A branch that does not exist is an ErrEmpty. Symbolic links and submodules
// are left out.
func (p *Publisher) Read(ctx context.Context, branch string) (map[string][]byte, error) {
	files, _, err := p.ReadFolder(ctx, branch, "", "")
	return files, err
}

// ReadFolder is Read for the files below one folder ("approvals/"; "" for all), with the commit that they are of. When the
// branch is still at the commit known, it returns no files and asks the server only where the branch is.
func (p *Publisher) ReadFolder(ctx context.Context, branch, folder, known string) (files map[string][]byte, commit string, err error) {
	r := &reading{
		p: p, name: branch, branch: plumbing.NewBranchReferenceName(branch), known: known,
		wanted: func(path string) bool { return strings.HasPrefix(path, folder) },
	}
	return r.read(ctx)
}

// reading is one ReadFolder.
type reading struct {
	p *Publisher
	// name is what people call the branch.
	name   string
	branch plumbing.ReferenceName
	wanted func(path string) bool
	known  string
	commit string
	files  map[string][]byte
}

func (r *reading) read(ctx context.Context) (files map[string][]byte, commit string, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.p.cfg.Timeout)
	defer cancel()
	done, err := r.p.takeTurn(ctx)
	if err != nil {
		return nil, "", err
	}
	defer done()
	if err := r.run(ctx); err != nil {
		return nil, "", r.p.fail(ctx, "reading "+r.name, err)
	}
	return r.files, r.commit, nil
}

func (r *reading) run(ctx context.Context) error {
	m, err := newMirror(r.p.parent, r.p.display, r.name, "status")
	if err != nil {
		return err
	}
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	st, err := r.p.openMirror(m)
	if err != nil {
		return err
	}
	err = r.readTip(ctx, st)
	if cerr := st.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if !errors.Is(err, errDamaged) {
		return err
	}
	if st, err = m.create(m.dir, r.p.cfg.Limits.FileBytes); err != nil {
		return err
	}
	defer func() { _ = st.Close() }() // it was only read
	return r.readTip(ctx, st)
}

func (r *reading) readTip(ctx context.Context, st *store) error {
	tip, err := r.p.fetchTip(ctx, st, r.branch)
	if err != nil {
		return err
	}
	if tip.IsZero() {
		return &sources.Error{Kind: sources.ErrEmpty, Op: "reading " + r.name, Err: errNoBranch, Fix: "publish to it first"}
	}
	if r.commit = tip.String(); r.commit == r.known {
		return nil
	}
	r.files, err = filesOf(st, tip, r.wanted)
	return err
}

// filesOf returns the files of a commit in the mirror that are wanted.
func filesOf(st *store, commit plumbing.Hash, wanted func(path string) bool) (map[string][]byte, error) {
	root, err := commitTree(st, commit)
	if err != nil {
		return nil, err
	}
	entries, err := flatten(st, root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, e := range entries.blobs {
		if (e.Mode != filemode.Regular && e.Mode != filemode.Executable) || !wanted(name) {
			continue
		}
		blob, err := st.EncodedObject(plumbing.BlobObject, e.Hash)
		if err != nil {
			return nil, damaged(err)
		}
		if files[name], err = readBlob(blob); err != nil {
			return nil, damaged(err)
		}
	}
	return files, nil
}

// openMirror opens the publisher's mirror; one of too many packs is dropped, to be fetched again without its history.
func (p *Publisher) openMirror(m *mirror) (*store, error) {
	st, err := m.open(p.cfg.Limits.FileBytes)
	if err != nil {
		return nil, err
	}
	if st.packs() <= maxPacks {
		return st, nil
	}
	if err := st.Close(); err != nil {
		return nil, err
	}
	return m.create(m.dir, p.cfg.Limits.FileBytes)
}

// fetchTip brings the branch's tip into the mirror: the first time without history, later what is new. It returns zero
// when the branch does not exist.
func (p *Publisher) fetchTip(ctx context.Context, st *store, branch plumbing.ReferenceName) (plumbing.Hash, error) {
	from, refs, err := p.upload(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return plumbing.ZeroHash, nil
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	defer func() { _ = from.Close() }() // what matters of it was read
	if head, _, err := branchHead(refs, ""); err == nil && head == branch {
		return plumbing.ZeroHash, &accessError{ErrDefaultBranch, "name another branch, such as gitvirt/status"}
	}
	tip, ok := refs.References[string(branch)]
	if !ok {
		return plumbing.ZeroHash, nil
	}
	if _, err := commitTree(st, tip); err == nil {
		return tip, nil
	}
	r := request{wants: []plumbing.Hash{tip}, depth: 1, limit: p.cfg.FetchBytes}
	if known, err := st.Reference(branch); err == nil {
		if _, err := commitTree(st, known.Hash()); err == nil {
			r.known, r.depth = []plumbing.Hash{known.Hash()}, 0
		}
	}
	if err := download(ctx, from, refs, st, r); err != nil {
		if ctx.Err() == nil && len(r.known) > 0 {
			return tip, damaged(err) // perhaps only our history does not fit theirs any more
		}
		return tip, err
	}
	if err := point(st, branch, tip); err != nil {
		return tip, damaged(err)
	}
	return tip, nil
}

// commitTree returns the tree of a commit in the mirror.
func commitTree(st *store, commit plumbing.Hash) (plumbing.Hash, error) {
	c, err := object.GetCommit(st, commit)
	if err != nil {
		return plumbing.ZeroHash, damaged(err)
	}
	return c.TreeHash, nil
}

// maxStatusFiles and maxStatusDepth bound the branch that a Publisher reads, which others may write.
const (
	maxStatusFiles = 1_000_000
	maxStatusDepth = 64
)

// flat is a tree without its directories: everything else by path, and the hashes of the directories.
type flat struct {
	blobs map[string]object.TreeEntry
	trees map[plumbing.Hash]bool
}

func flatten(st *store, root plumbing.Hash) (flat, error) {
	f := flat{blobs: map[string]object.TreeEntry{}, trees: map[plumbing.Hash]bool{}}
	if root.IsZero() {
		return f, nil
	}
	return f, f.add(st, "", root, 0)
}

func (f flat) add(st *store, dir string, hash plumbing.Hash, depth int) error {
	if depth > maxStatusDepth || len(f.blobs) > maxStatusFiles {
		return &sources.Error{
			Kind: sources.ErrLimit, Op: "reading the branch",
			Err: fmt.Errorf("it has more than %d files or %d levels", maxStatusFiles, maxStatusDepth),
			Fix: "use a branch of its own for the status",
		}
	}
	tree, err := object.GetTree(st, hash)
	if err != nil {
		return damaged(err)
	}
	f.trees[hash] = true
	for _, e := range tree.Entries {
		name := path.Join(dir, e.Name)
		if e.Mode == filemode.Dir {
			if err := f.add(st, name, e.Hash, depth+1); err != nil {
				return err
			}
			continue
		}
		f.blobs[name] = e
	}
	return nil
}
