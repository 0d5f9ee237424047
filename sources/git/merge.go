package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/diff3"
)

// Merge returns what the files would be if head were merged into base, or why they cannot be merged by themselves. Both are full hashes of
// commits, as Heads returns them. Nothing is fetched, written or pushed: the merged files exist in memory only. The snapshot's Revision and
// what else is a commit's are those of head.
//
// It is git's three-way merge of each file with the commit that both have in common, without looking for renamed files. Where histories cross, so
// that there are several such commits, these are merged first, as git does; a file on which they do not agree is then in conflict
// unless both sides have it alike. Branches without a common commit are not merged. Files that are not read as manifests count as
// well, because no forge merges around them.
func (s *Source) Merge(ctx context.Context, base, head string) (*sources.Snapshot, []sources.Conflict, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot, conflicts, err := s.merge(ctx, base, head)
	if err != nil {
		s.damaged = s.damaged || errors.Is(err, errDamaged)
		return nil, nil, s.fail(ctx, fmt.Sprintf("merging %.12s into %.12s", head, base), err)
	}
	return snapshot, conflicts, nil
}

func (s *Source) merge(ctx context.Context, base, head string) (*sources.Snapshot, []sources.Conflict, error) {
	unlock, err := s.mirror.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	st, err := s.mirror.open(s.cfg.Limits.FileBytes)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = st.Close() }() // it was only read
	var commits [2]*object.Commit
	for i, revision := range []string{base, head} {
		if commits[i], err = object.GetCommit(st, plumbing.NewHash(revision)); err != nil {
			return nil, nil, fmt.Errorf("%.12s was not fetched: %w", revision, err)
		}
	}
	m := &treeMerger{ctx: ctx, store: &overlay{store: st, made: map[plumbing.Hash]plumbing.EncodedObject{}}, limit: s.cfg.Limits.FileBytes}
	tree, err := m.commits(commits[0], commits[1], 0)
	if err != nil || len(m.conflicts) > 0 {
		return nil, m.conflicts, err
	}
	prev := s.known()
	snapshot, read, err := s.snapshotOf(ctx, m.store, commits[1], tree, prev)
	if err == nil && prev == nil {
		s.other = read // the next merge has most in common with this one
	}
	return snapshot, nil, err
}

// overlay is a mirror with objects that are not written to it.
type overlay struct {
	*store
	made map[plumbing.Hash]plumbing.EncodedObject
}

// EncodedObject implements storer.EncodedObjectStorer.
func (o *overlay) EncodedObject(kind plumbing.ObjectType, hash plumbing.Hash) (plumbing.EncodedObject, error) {
	if made, ok := o.made[hash]; ok && made.Type() == kind {
		return made, nil
	}
	return o.store.EncodedObject(kind, hash)
}

func (o *overlay) put(kind plumbing.ObjectType, content []byte) (plumbing.Hash, error) {
	made := &plumbing.MemoryObject{}
	made.SetType(kind)
	if _, err := made.Write(content); err != nil {
		return plumbing.ZeroHash, err
	}
	o.made[made.Hash()] = made
	return made.Hash(), nil
}

// maxConflicts is how many are told; a branch of another project has thousands.
const maxConflicts = 100

// treeMerger merges trees.
type treeMerger struct {
	ctx   context.Context //nolint:containedctx // it lives as long as one call
	store *overlay
	// limit is the size in bytes above which a file is not merged line by line.
	limit     int64
	conflicts []sources.Conflict
	// virtual says that what is merged is itself the base of a merge: files in conflict are made ones that nobody has.
	virtual bool
}

func (m *treeMerger) conflict(file, reason string) {
	if len(m.conflicts) < maxConflicts {
		m.conflicts = append(m.conflicts, sources.Conflict{Path: plain(file), Reason: reason})
	}
}

// maxCrossings is how deep histories may cross.
const maxCrossings = 8

// commits merges two commits and returns the tree.
func (m *treeMerger) commits(ours, theirs *object.Commit, depth int) (plumbing.Hash, error) {
	bases, err := mergeBases(m.ctx, m.store, ours, theirs)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	switch {
	case len(bases) == 0 && depth == 0:
		m.conflict("", "the branches have no commit in common")
		return plumbing.ZeroHash, nil
	case len(bases) == 0:
		return m.trees("", tip{}, dirTip(ours.TreeHash), dirTip(theirs.TreeHash))
	case len(bases) > 1 && depth >= maxCrossings:
		m.conflict("", "the histories of the branches cross too often")
		return plumbing.ZeroHash, nil
	}
	base := bases[0].TreeHash
	for _, other := range bases[1:] {
		inner := &treeMerger{ctx: m.ctx, store: m.store, limit: m.limit, virtual: true}
		// The bases of a base and of what was merged of the others are nearly always those of it and the first.
		below, err := inner.commits(bases[0], other, depth+1)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if len(bases) == 2 {
			base = below
			break
		}
		if base, err = inner.trees("", dirTip(bases[0].TreeHash), dirTip(base), dirTip(below)); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	return m.trees("", dirTip(base), dirTip(ours.TreeHash), dirTip(theirs.TreeHash))
}

// tip is what one name is in one tree: nothing, a file (of any mode) or a directory.
type tip struct {
	mode filemode.FileMode
	hash plumbing.Hash
}

func dirTip(hash plumbing.Hash) tip { return tip{filemode.Dir, hash} }

// file and dir are what a tip is, and nothing where it is the other.
func (t tip) file() tip {
	if t.mode == filemode.Dir {
		return tip{}
	}
	return t
}

func (t tip) dir() tip {
	if t.mode != filemode.Dir {
		return tip{}
	}
	return t
}

func (t tip) none() bool { return t == tip{} }

// trees merges directories, any of which may be none, and returns the tree, which is zero when nothing is left.
func (m *treeMerger) trees(dir string, base, ours, theirs tip) (plumbing.Hash, error) {
	switch {
	case ours == theirs, base == theirs:
		return ours.hash, nil
	case base == ours:
		return theirs.hash, nil
	}
	if err := m.ctx.Err(); err != nil {
		return plumbing.ZeroHash, err
	}
	var sides [3]map[string]tip
	names := map[string]bool{}
	for i, side := range []tip{base, ours, theirs} {
		sides[i] = map[string]tip{}
		if side.none() {
			continue
		}
		tree, err := object.GetTree(m.store, side.hash)
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("%w: directory %q: %w", errDamaged, dir, err)
		}
		for _, entry := range tree.Entries {
			sides[i][entry.Name] = tip{entry.Mode, entry.Hash}
			names[entry.Name] = true
		}
	}
	merged := &object.Tree{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		entry, err := m.entry(path.Join(dir, name), sides[0][name], sides[1][name], sides[2][name])
		if err != nil {
			return plumbing.ZeroHash, err
		}
		if !entry.none() {
			merged.Entries = append(merged.Entries, object.TreeEntry{Name: name, Mode: entry.mode, Hash: entry.hash})
		}
	}
	return m.write(merged)
}

func (m *treeMerger) write(tree *object.Tree) (plumbing.Hash, error) {
	if len(tree.Entries) == 0 {
		return plumbing.ZeroHash, nil
	}
	slices.SortFunc(tree.Entries, func(a, b object.TreeEntry) int { return cmp.Compare(treeName(a), treeName(b)) })
	var made plumbing.MemoryObject
	if err := tree.Encode(&made); err != nil {
		return plumbing.ZeroHash, fmt.Errorf("%w: %w", errDamaged, err)
	}
	m.store.made[made.Hash()] = &made
	return made.Hash(), nil
}

// treeName is what git orders the entries of a tree by.
func treeName(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// entry merges what one name is.
func (m *treeMerger) entry(file string, base, ours, theirs tip) (tip, error) {
	switch {
	case ours == theirs, base == theirs:
		return ours, nil
	case base == ours:
		return theirs, nil
	}
	leaf, err := m.file(file, base.file(), ours.file(), theirs.file())
	if err != nil {
		return tip{}, err
	}
	below, err := m.trees(file, base.dir(), ours.dir(), theirs.dir())
	if err != nil || below.IsZero() {
		return leaf, err
	}
	if !leaf.none() {
		m.conflict(file, "it is a file on one side and a folder on the other")
		if m.virtual {
			return m.nobodys(file)
		}
	}
	return dirTip(below), nil
}

// file merges three files, any of which may be none.
func (m *treeMerger) file(file string, base, ours, theirs tip) (tip, error) {
	switch {
	case ours == theirs, base == theirs:
		return ours, nil
	case base == ours:
		return theirs, nil
	case ours.none() || theirs.none():
		return m.undecided(file, "one side removed it and the other changed it")
	case base.none():
		return m.undecided(file, "both sides added it, with different content")
	}
	mode, ok := mergeModes(base.mode, ours.mode, theirs.mode)
	if !ok {
		return m.undecided(file, "both sides changed it, and one of them made something else of it than a file")
	}
	hash, reason, err := m.content(file, base.hash, ours.hash, theirs.hash)
	if err != nil {
		return tip{}, err
	}
	if reason != "" {
		return m.undecided(file, reason)
	}
	return tip{mode, hash}, nil
}

// undecided tells a conflict.
func (m *treeMerger) undecided(file, reason string) (tip, error) {
	m.conflict(file, reason)
	if m.virtual {
		return m.nobodys(file)
	}
	return tip{}, nil
}

// nobodys is a file that neither side has, so that any change of it is in conflict with it.
func (m *treeMerger) nobodys(file string) (tip, error) {
	hash, err := m.store.put(plumbing.BlobObject, []byte("\x00no common version of "+file))
	return tip{filemode.Regular, hash}, err
}

// mergeModes merges modes of plain files; links and submodules are not merged.
func mergeModes(base, ours, theirs filemode.FileMode) (filemode.FileMode, bool) {
	for _, mode := range []filemode.FileMode{base, ours, theirs} {
		if entryKind(mode) != entryKind(filemode.Regular) {
			return 0, false
		}
	}
	if base == ours {
		return theirs, true
	}
	return ours, true // where both changed it, there is only one other
}

// content merges blobs; reason is why it cannot.
func (m *treeMerger) content(file string, base, ours, theirs plumbing.Hash) (merged plumbing.Hash, reason string, err error) {
	switch {
	case ours == theirs, base == theirs:
		return ours, "", nil
	case base == ours:
		return theirs, "", nil
	}
	var contents [3][]byte
	for i, hash := range []plumbing.Hash{base, ours, theirs} {
		blob, err := m.store.EncodedObject(plumbing.BlobObject, hash)
		if err != nil {
			return plumbing.ZeroHash, "", fmt.Errorf("%w: file %q: %w", errDamaged, file, err)
		}
		if blob.Size() > m.limit {
			return plumbing.ZeroHash, "both sides changed it, and it is too large to be merged here", nil
		}
		if contents[i], err = readBlob(blob); err != nil {
			return plumbing.ZeroHash, "", fmt.Errorf("%w: file %q: %w", errDamaged, file, err)
		}
	}
	text, clean := diff3.Merge(contents[0], contents[1], contents[2])
	if !clean {
		if slices.ContainsFunc(contents[:], diff3.Binary) {
			return plumbing.ZeroHash, "both sides changed it, and it is no text", nil
		}
		return plumbing.ZeroHash, "both sides changed the same lines", nil
	}
	merged, err = m.store.put(plumbing.BlobObject, text)
	return merged, "", err
}
