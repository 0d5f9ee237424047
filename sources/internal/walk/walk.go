// Package walk turns a tree of directories (a git tree, a folder) into the ordered, parsed files of a snapshot. It
// holds what all sources share: which files are manifests, the ignore files, the limits, parallel parsing, and the
// reuse of everything that did not change since an earlier Tree. It knows neither git nor a file system.
package walk

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// Kind is what an Entry is.
type Kind int

// The kinds of entries. Other is anything that can hold no manifest, such as a socket.
const (
	Other Kind = iota
	Regular
	Directory
	Symlink
	Submodule
)

// Entry is one name in a directory.
type Entry struct {
	Name string
	Kind Kind
	// ID identifies the content: equal IDs at one path mean equal content, so that what was read before is used
	// again. An empty ID means unknown, and is never used again.
	ID string
}

// Reader reads the tree. Its methods are called by one goroutine at a time.
type Reader interface {
	// List returns the entries of a directory in any order. dir is "" for the root.
	List(ctx context.Context, dir, id string) ([]Entry, error)
	// Read returns a file's content, or TooLargeError without having held it in memory. The caller owns the result.
	Read(ctx context.Context, file string, entry Entry, limit int64) ([]byte, error)
}

// TooLargeError says that a file is larger than the limit.
type TooLargeError struct {
	// Size is in bytes.
	Size int64
}

// Error tells the size.
func (e *TooLargeError) Error() string { return fmt.Sprintf("%d bytes are too large", e.Size) }

// IgnoreFile is the name of the ignore files.
const IgnoreFile = ".gitvirtignore"

// entriesPerFile bounds how many names are looked at: this many for each manifest that the limits allow. A hostile
// repository can name 10^16 files in a few objects, none of which is a manifest.
const entriesPerFile = 20

// Options say how a tree is read.
type Options struct {
	Limits sources.Limits
	// Source is what a Fleet calls the repository, as in schemas.File; Parse sets the same.
	Source string
	Parse  func(path string, content []byte) *schemas.File
	// Digest, when set, is told the content of every manifest that is read, for a source that has no hash of it.
	Digest func(content []byte) string
	// Workers is how many files are parsed at the same time; 0 means GOMAXPROCS.
	Workers int
}

// Tree is a complete tree of parsed files. It is immutable and may be shared.
type Tree struct {
	root    *node
	files   []*schemas.File
	digests []string // of files
}

// Files returns the files ordered by path. The caller must not change the slice.
func (t *Tree) Files() []*schemas.File { return t.files }

// node is one directory.
type node struct {
	id     string
	ignore string  // the key of the ignore patterns it was read under
	leaves []*leaf // ordered as full paths are: a directory as if its name ended in "/"
	files  int     // in it and below
}

// leaf is a manifest (file is set once it is parsed) or a directory (dir is set).
type leaf struct {
	name   string
	id     string
	file   *schemas.File
	digest string
	dir    *node
}

// job is a file that has to be read and parsed.
type job struct {
	leaf  *leaf
	old   *leaf // what was there before, or nil
	path  string
	entry Entry
}

// Build reads the tree under root, which is the sub-path ("" for everything) whose directory has the ID id. What is
// equal in prev, an earlier Tree of the same root (nil at first), is not read again.
func Build(ctx context.Context, reader Reader, root, id string, prev *Tree, opts Options) (*Tree, error) {
	opts.Limits = opts.Limits.WithDefaults()
	w := &walker{reader: reader, opts: opts}
	var old *node
	if prev != nil {
		old = prev.root
	}
	top, err := w.directory(ctx, root, id, old, ignores{}, 0)
	if err != nil {
		return nil, err
	}
	if err := parseAll(ctx, reader, w.jobs, opts); err != nil {
		return nil, err
	}
	tree := &Tree{root: top, files: make([]*schemas.File, 0, top.files), digests: make([]string, 0, top.files)}
	var weight int64
	top.each(func(l *leaf) {
		weight += l.file.Weight()
		tree.files = append(tree.files, l.file)
		tree.digests = append(tree.digests, l.digest)
	})
	if err := opts.checkWeight(weight); err != nil {
		return nil, err
	}
	return tree, nil
}

// walker collects the jobs of one Build and counts against the limits.
type walker struct {
	reader Reader
	opts   Options
	jobs   []job
	files  int
	names  int
}

func (w *walker) directory(ctx context.Context, dir, id string, old *node, outer ignores, depth int) (*node, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if depth > w.opts.Limits.Depth {
		return nil, limitError(fmt.Sprintf("%q is more than %d directories deep", dir, w.opts.Limits.Depth),
			"move the manifests up, read a sub-path, or name the directory in a "+IgnoreFile)
	}
	if old != nil && id != "" && old.id == id && old.ignore == outer.key {
		return old, w.count(old.files, 1)
	}
	entries, err := w.reader.List(ctx, dir, id)
	if err != nil {
		return nil, err
	}
	if err := w.count(0, len(entries)); err != nil {
		return nil, err
	}
	patterns, err := w.ignoreFile(ctx, dir, entries, outer)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, compareEntries)
	n := &node{id: id, ignore: outer.key}
	known := cursor{}
	if old != nil {
		known.leaves = old.leaves
	}
	for i, e := range entries {
		if i > 0 && compareEntries(entries[i-1], e) == 0 {
			return nil, fmt.Errorf("the tree holds %q twice in %q", e.Name, dir)
		}
		file := path.Join(dir, e.Name)
		if strings.HasPrefix(e.Name, ".") || patterns.match(file, e.Kind == Directory) {
			continue
		}
		l, err := w.leaf(ctx, file, e, known.find(e), patterns, depth)
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		n.leaves = append(n.leaves, l)
		if l.dir != nil {
			n.files += l.dir.files
			continue
		}
		n.files++
		if err := w.count(1, 0); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// leaf returns what one entry becomes, nil when it is no manifest; old is what was there before, or nil.
func (w *walker) leaf(ctx context.Context, file string, e Entry, old *leaf, patterns ignores, depth int) (*leaf, error) {
	if strings.ContainsAny(e.Name, "/\x00") || e.Name == "" {
		return nil, fmt.Errorf("the tree holds the malformed name %q in %q", e.Name, path.Dir(file))
	}
	switch e.Kind {
	case Directory:
		var before *node
		if old != nil {
			before = old.dir
		}
		below, err := w.directory(ctx, file, e.ID, before, patterns, depth+1)
		if err != nil {
			return nil, err
		}
		return &leaf{name: e.Name, id: e.ID, dir: below}, nil
	case Symlink, Submodule, Regular:
		if e.Kind == Regular && !manifest(e.Name) {
			return nil, nil
		}
		id := e.ID
		if id != "" && e.Kind != Regular {
			id = fmt.Sprintf("%d:%s", e.Kind, id)
		}
		if old != nil && old.file != nil && id != "" && old.id == id {
			return old, nil
		}
		l := &leaf{name: e.Name, id: id, digest: id}
		switch e.Kind {
		case Symlink:
			l.file = symlinkFile(schemas.Position{Source: w.opts.Source, File: file})
		case Submodule:
			l.file = submoduleFile(schemas.Position{Source: w.opts.Source, File: file})
		default:
			w.jobs = append(w.jobs, job{leaf: l, old: old, path: file, entry: e})
		}
		return l, nil
	}
	return nil, nil
}

// count adds to what was seen and enforces the limits.
func (w *walker) count(files, names int) error {
	w.files += files
	w.names += names
	limit := w.opts.Limits.Files
	if w.files > limit {
		return limitError(fmt.Sprintf("there are more than %d manifests", limit),
			"split the repository, read a sub-path, or name what is no manifest in a "+IgnoreFile)
	}
	if w.names > limit*entriesPerFile {
		return limitError(fmt.Sprintf("there are more than %d names in the tree", limit*entriesPerFile),
			"read a sub-path, or name what is no manifest in a "+IgnoreFile)
	}
	return nil
}

func limitError(what, fix string) error {
	return &sources.Error{Kind: sources.ErrLimit, Op: "reading the tree", Err: errors.New(what), Fix: fix}
}

// cursor finds leaves by entry in their common order.
type cursor struct {
	leaves []*leaf
}

func (c *cursor) find(e Entry) *leaf {
	want := sortKey(e.Name, e.Kind == Directory)
	for len(c.leaves) > 0 {
		l := c.leaves[0]
		order := strings.Compare(sortKey(l.name, l.dir != nil), want)
		if order > 0 {
			return nil
		}
		c.leaves = c.leaves[1:]
		if order == 0 {
			return l
		}
	}
	return nil
}

func compareEntries(a, b Entry) int {
	return strings.Compare(sortKey(a.Name, a.Kind == Directory), sortKey(b.Name, b.Kind == Directory))
}

// sortKey makes names compare as the full paths of the files do.
func sortKey(name string, dir bool) string {
	if dir {
		return name + "/"
	}
	return name
}

// each calls f for every file below n, in order.
func (n *node) each(f func(l *leaf)) {
	for _, l := range n.leaves {
		if l.dir != nil {
			l.dir.each(f)
			continue
		}
		f(l)
	}
}

// manifest reports whether a file of this name is read.
func manifest(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// Changed lists the paths in which two trees differ, ordered.
func Changed(before, after *Tree) []string {
	changed := []string{}
	i, j := 0, 0
	for i < len(before.files) || j < len(after.files) {
		switch {
		case j == len(after.files) || i < len(before.files) && before.files[i].Path < after.files[j].Path:
			changed = append(changed, before.files[i].Path)
			i++
		case i == len(before.files) || after.files[j].Path < before.files[i].Path:
			changed = append(changed, after.files[j].Path)
			j++
		default:
			if before.digests[i] != after.digests[j] {
				changed = append(changed, after.files[j].Path)
			}
			i++
			j++
		}
	}
	return changed
}

// Digests calls f with the path and the digest of every file, in order. The digest stands for the content, and for
// what is not read, such as a symbolic link, for what it is.
func (t *Tree) Digests(f func(path, digest string)) {
	for i, file := range t.files {
		f(file.Path, t.digests[i])
	}
}
