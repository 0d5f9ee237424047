package git

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"
)

// builder holds the objects that a commit adds to what its base has.
type builder struct {
	root   plumbing.Hash
	base   flat
	added  *memory.Storage
	hashes []plumbing.Hash
}

// build makes the tree that has exactly files among the owned paths and everything else from the tree root (zero: none).
func build(st *store, root plumbing.Hash, owned func(string) bool, files map[string][]byte) (*builder, error) {
	base, err := flatten(st, root)
	if err != nil {
		return nil, err
	}
	b := &builder{base: base, added: memory.NewStorage()}
	have := make(map[plumbing.Hash]bool, len(base.blobs))
	entries := make(map[string]object.TreeEntry, len(base.blobs))
	for name, e := range base.blobs {
		have[e.Hash] = true
		if !owned(name) {
			entries[name] = e
		}
	}
	for name, content := range files {
		hash := plumbing.ComputeHash(plumbing.BlobObject, content)
		entries[name] = object.TreeEntry{Mode: filemode.Regular, Hash: hash}
		if have[hash] {
			continue
		}
		have[hash] = true
		blob := b.added.NewEncodedObject()
		blob.SetType(plumbing.BlobObject)
		if err := write(blob, content); err != nil {
			return nil, err
		}
		if err := b.add(blob); err != nil {
			return nil, err
		}
	}
	if b.root, err = b.trees(entries); err != nil {
		return nil, err
	}
	return b, nil
}

func write(o plumbing.EncodedObject, content []byte) error {
	w, err := o.Writer()
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return err
	}
	return w.Close()
}

func (b *builder) add(o plumbing.EncodedObject) error {
	hash, err := b.added.SetEncodedObject(o)
	if err == nil {
		b.hashes = append(b.hashes, hash)
	}
	return err
}

// trees makes the directories, the deepest first, and returns the root.
func (b *builder) trees(entries map[string]object.TreeEntry) (plumbing.Hash, error) {
	dirs := map[string][]object.TreeEntry{"": nil}
	for name, e := range entries {
		dir := ""
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			dir = name[:i]
		}
		e.Name = path.Base(name)
		dirs[dir] = append(dirs[dir], e)
		for d := dir; d != ""; d = parent(d) {
			if _, clash := entries[d]; clash {
				return plumbing.ZeroHash, fmt.Errorf("%q is both a file and a directory (of %q); remove one of them from the branch", d, name)
			}
			if _, ok := dirs[parent(d)]; !ok {
				dirs[parent(d)] = nil
			}
		}
	}
	names := make([]string, 0, len(dirs))
	for d := range dirs {
		names = append(names, d)
	}
	// A directory is longer than its parent, so the longest come first.
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
	for _, d := range names {
		hash, err := b.tree(dirs[d])
		if err != nil {
			return plumbing.ZeroHash, fmt.Errorf("building directory %q: %w", d, err)
		}
		if d == "" {
			return hash, nil
		}
		dirs[parent(d)] = append(dirs[parent(d)], object.TreeEntry{Name: path.Base(d), Mode: filemode.Dir, Hash: hash})
	}
	return plumbing.ZeroHash, nil
}

func parent(dir string) string {
	if i := strings.LastIndexByte(dir, '/'); i >= 0 {
		return dir[:i]
	}
	return ""
}

func (b *builder) tree(entries []object.TreeEntry) (plumbing.Hash, error) {
	slices.SortFunc(entries, func(x, y object.TreeEntry) int {
		return strings.Compare(treeKey(x), treeKey(y))
	})
	o := b.added.NewEncodedObject()
	o.SetType(plumbing.TreeObject)
	if err := (&object.Tree{Entries: entries}).Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	hash := o.Hash()
	if b.base.trees[hash] {
		return hash, nil
	}
	return hash, b.add(o)
}

// treeKey orders the entries of a tree as git does.
func treeKey(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

func (b *builder) commit(base plumbing.Hash, message string, author Author, now time.Time) (plumbing.Hash, error) {
	if author.Name == "" {
		author.Name = "gitvirt"
	}
	if author.Email == "" {
		author.Email = "gitvirt@localhost"
	}
	who := object.Signature{Name: author.Name, Email: author.Email, When: now}
	if !strings.HasSuffix(message, "\n") {
		message += "\n"
	}
	c := &object.Commit{Author: who, Committer: who, Message: message, TreeHash: b.root}
	if !base.IsZero() {
		c.ParentHashes = []plumbing.Hash{base}
	}
	o := b.added.NewEncodedObject()
	if err := c.Encode(o); err != nil {
		return plumbing.ZeroHash, fmt.Errorf("building the commit: %w", err)
	}
	return o.Hash(), b.add(o)
}

// pack encodes the added objects.
func (b *builder) pack() ([]byte, error) {
	var buf bytes.Buffer
	slices.SortFunc(b.hashes, func(x, y plumbing.Hash) int { return bytes.Compare(x[:], y[:]) })
	if _, err := packfile.NewEncoder(&buf, b.added, false).Encode(slices.Compact(b.hashes), 0); err != nil {
		return nil, fmt.Errorf("packing the objects: %w", err)
	}
	return buf.Bytes(), nil
}

// checkPath refuses what git refuses in a tree.
func checkPath(name string) error {
	if name == "" || strings.ContainsRune(name, 0) || path.Clean("/"+name) != "/"+name {
		return fmt.Errorf("%q is not a path in a repository", name)
	}
	for _, part := range strings.Split(name, "/") {
		if strings.EqualFold(part, ".git") || part == "." || part == ".." {
			return fmt.Errorf("%q is not a path in a repository", name)
		}
	}
	return nil
}
