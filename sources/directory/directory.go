// Package directory reads manifests from a plain folder: for dry runs, tests, and hosts without git. It has the same
// contract as sources/git and no network; it watches nothing, its caller polls.
package directory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
	"github.com/gitvirt/gitvirt/sources/internal/walk"
)

// Option adjusts a Source.
type Option func(*Source)

// WithParse replaces schemas.Parse.
func WithParse(parse func(path string, content []byte) *schemas.File) Option {
	return func(s *Source) { s.parse = parse }
}

// WithNow replaces time.Now.
func WithNow(now func() time.Time) Option { return func(s *Source) { s.now = now } }

// Source reads one folder. It is safe for concurrent use.
type Source struct {
	dir    string
	limits sources.Limits
	parse  func(string, []byte) *schemas.File
	now    func() time.Time

	mu      sync.Mutex
	current *sources.Snapshot
	tree    *walk.Tree
}

// Open names the folder; it is read by Poll. Zero fields of limits mean their defaults.
func Open(dir string, limits sources.Limits, opts ...Option) (*Source, error) {
	if dir == "" {
		return nil, errors.New("directory source: no directory is given")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("directory source: %w", err)
	}
	s := &Source{dir: abs, limits: limits.WithDefaults(), parse: schemas.Parse, now: time.Now}
	for _, opt := range opts {
		opt(s)
	}
	return s, nil
}

// String returns the folder.
func (s *Source) String() string { return s.dir }

// Close does nothing; it makes a Source interchangeable with that of sources/git.
func (s *Source) Close() error { return nil }

// Last returns what the last Poll read, or polls.
func (s *Source) Last(ctx context.Context) (*sources.Snapshot, error) {
	s.mu.Lock()
	current := s.current
	s.mu.Unlock()
	if current != nil {
		return current, nil
	}
	return s.Poll(ctx)
}

// Poll reads the folder and returns the same pointer as before when nothing changed. Files whose size, times and inode
// are as before are not read again. A symbolic link in the folder's own path is followed, one inside it is not.
func (s *Source) Poll(ctx context.Context) (*sources.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	root, err := os.OpenRoot(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.fail(&sources.Error{Kind: sources.ErrEmpty, Op: "reading the directory", Err: err, Fix: "correct the path"})
	}
	if err != nil {
		return nil, s.fail(err)
	}
	defer func() { _ = root.Close() }() // it was only read
	tree, err := walk.Build(ctx, folder{root: root, now: s.now}, "", "", s.tree, walk.Options{Limits: s.limits, Parse: s.parse, Digest: digest})
	if err != nil {
		return nil, s.fail(err)
	}
	if len(tree.Files()) == 0 {
		return nil, s.fail(&sources.Error{
			Kind: sources.ErrEmpty, Op: "reading the directory",
			Err: errors.New("there is no manifest (*.yaml, *.yml, *.json)"),
			Fix: "name another directory; to remove every VM on purpose, leave a gitvirt.yaml (kind: Fleet)",
		})
	}
	hash := sha256.New()
	tree.Digests(func(path, content string) { fmt.Fprintf(hash, "%d:%s%s\n", len(path), path, content) })
	revision := "sha256:" + hex.EncodeToString(hash.Sum(nil))
	if s.current != nil && s.current.Revision == revision {
		s.tree = tree
		return s.current, nil
	}
	snapshot := &sources.Snapshot{Revision: revision, Files: tree.Files()}
	if s.current != nil {
		snapshot.Changed = walk.Changed(s.tree, tree)
	}
	s.current, s.tree = snapshot, tree
	return snapshot, nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func (s *Source) fail(err error) error {
	var known *sources.Error
	if errors.As(err, &known) {
		told := *known
		told.Source = s.dir
		return &told
	}
	out := &sources.Error{Kind: sources.ErrUnreadable, Source: s.dir, Op: "reading the directory", Err: err}
	if errors.Is(err, fs.ErrPermission) {
		out.Kind, out.Fix = sources.ErrAuth, "make the directory readable to gitvirt"
	}
	return out
}

// folder reads the file system for package walk. os.Root keeps it inside, whatever is exchanged for a link meanwhile.
type folder struct {
	root *os.Root
	now  func() time.Time
}

// settled is the age from which a file's times tell whether it was written again: clocks of file systems are coarse.
const settled = 2 * time.Second

// List returns the entries of a folder.
func (f folder) List(_ context.Context, dir, _ string) ([]walk.Entry, error) {
	if dir == "" {
		dir = "."
	}
	handle, err := f.root.Open(dir)
	if err != nil {
		return nil, err
	}
	found, err := handle.ReadDir(-1)
	if err = errors.Join(err, handle.Close()); err != nil {
		return nil, err
	}
	entries := make([]walk.Entry, 0, len(found))
	for _, d := range found {
		e := walk.Entry{Name: d.Name()}
		switch {
		case d.Type().IsRegular():
			e.Kind = walk.Regular
			if e.ID, err = f.id(d); errors.Is(err, fs.ErrNotExist) {
				continue // it went away since
			}
			if err != nil {
				return nil, err
			}
		case d.IsDir():
			e.Kind = walk.Directory
		case d.Type()&fs.ModeSymlink != 0:
			e.Kind, e.ID = walk.Symlink, "link"
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// id stands for the content of a file that has not been written lately.
func (f folder) id(d fs.DirEntry) (string, error) {
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", nil
	}
	changed := time.Unix(stat.Ctim.Unix())
	if f.now().Sub(changed) < settled || f.now().Sub(info.ModTime()) < settled {
		return "", nil
	}
	return fmt.Sprintf("%d-%d-%d-%d-%d", stat.Dev, stat.Ino, info.Size(), info.ModTime().UnixNano(), changed.UnixNano()), nil
}

// Read returns a file's content.
func (f folder) Read(_ context.Context, file string, _ walk.Entry, limit int64) (content []byte, err error) {
	// O_NONBLOCK: a fifo that has taken the file's place does not stop us.
	handle, err := f.root.OpenFile(file, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, handle.Close()) }()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a plain file any more")
	}
	if info.Size() > limit {
		return nil, &walk.TooLargeError{Size: info.Size()}
	}
	content, err = io.ReadAll(io.LimitReader(handle, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, &walk.TooLargeError{Size: int64(len(content))}
	}
	return content, err
}
