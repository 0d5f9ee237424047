package git

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/storage/filesystem"

	"github.com/gitvirt/gitvirt/backoff"
)

// objectCache bounds what go-git keeps of the objects it has read, in bytes: mostly the bases of deltas.
const objectCache = 24 << 20

// mirror is a bare repository in a folder of ours, with what was fetched. It is only used while it is locked.
type mirror struct {
	dir string // DIR/HASH.git; the lock is DIR/HASH.lock
}

// newMirror names the mirror for purpose and makes its parent folder.
func newMirror(parent string, parts ...string) (*mirror, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder for git mirrors: %w", err)
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return &mirror{dir: filepath.Join(parent, hex.EncodeToString(sum[:10])+".git")}, nil
}

// lock keeps other processes that share the folder away from the mirror until unlock is called.
func (m *mirror) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(strings.TrimSuffix(m.dir, ".git")+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the git mirror: %w", err)
	}
	retry := backoff.Backoff{Min: 5 * time.Millisecond, Max: 100 * time.Millisecond}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking the git mirror: %w", err), f.Close())
		}
		if err := backoff.Wait(ctx, nil, retry.Next()); err != nil {
			return nil, errors.Join(fmt.Errorf("waiting for another process to release the git mirror %s: %w", m.dir, err), f.Close())
		}
	}
}

// exists reports whether there is anything fetched.
func (m *mirror) exists() bool {
	_, err := os.Stat(filepath.Join(m.dir, "HEAD"))
	return err == nil
}

// store is an open mirror.
type store struct {
	*filesystem.Storage
	dir string
}

// open opens the mirror, or makes an empty one.
func (m *mirror) open(limit int64) (*store, error) {
	m.discard()
	if !m.exists() {
		return m.create(m.dir, limit)
	}
	if err := tidy(m.dir); err != nil {
		return nil, err
	}
	return openStore(m.dir, limit), nil
}

// fresh makes an empty mirror beside the damaged one. commit puts it in its place; discard drops it.
func (m *mirror) fresh(limit int64) (*store, error) {
	m.discard()
	return m.create(m.dir+".new", limit)
}

func (m *mirror) create(dir string, limit int64) (*store, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("clearing the git mirror: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the git mirror: %w", err)
	}
	s := openStore(dir, limit)
	if err := s.Init(); err != nil {
		return nil, fmt.Errorf("making the git mirror: %w", err)
	}
	config, err := s.Config()
	if err != nil {
		return nil, fmt.Errorf("making the git mirror: %w", err)
	}
	config.Core.IsBare = true
	if err := s.SetConfig(config); err != nil {
		return nil, fmt.Errorf("making the git mirror: %w", err)
	}
	// HEAD comes last: without it the mirror does not exist.
	if err := s.SetReference(plumbing.NewSymbolicReference(plumbing.HEAD, "refs/heads/main")); err != nil {
		return nil, fmt.Errorf("making the git mirror: %w", err)
	}
	return s, nil
}

// commit replaces the mirror by the fresh one. A process that is killed between the two steps leaves no mirror, which
// the next one fetches again.
func (m *mirror) commit() error {
	old := m.dir + ".old"
	if err := os.RemoveAll(old); err != nil {
		return fmt.Errorf("replacing the git mirror: %w", err)
	}
	if err := os.Rename(m.dir, old); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("replacing the git mirror: %w", err)
	}
	if err := os.Rename(m.dir+".new", m.dir); err != nil {
		return fmt.Errorf("replacing the git mirror: %w", err)
	}
	return os.RemoveAll(old)
}

// discard drops what a fresh mirror that was not finished, or the one it replaced, leaves.
func (m *mirror) discard() {
	// What cannot be removed now is removed by the next fresh or commit, which report it.
	_ = os.RemoveAll(m.dir + ".new")
	_ = os.RemoveAll(m.dir + ".old")
}

// tidy removes what a killed fetch leaves: half-written packs, and an index whose pack was never put in place (go-git
// would take that index, perhaps cut short, for the next pack of that name).
func tidy(dir string) error {
	packs := filepath.Join(dir, "objects", "pack")
	entries, err := os.ReadDir(packs)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("opening the git mirror: %w", err)
	}
	have := map[string]bool{}
	for _, e := range entries {
		have[e.Name()] = true
	}
	for _, e := range entries {
		name := e.Name()
		orphan := strings.HasSuffix(name, ".idx") && !have[strings.TrimSuffix(name, ".idx")+".pack"]
		if strings.HasPrefix(name, "tmp_") || orphan {
			if err := os.Remove(filepath.Join(packs, name)); err != nil && !os.IsNotExist(err) {
				return fmt.Errorf("tidying the git mirror: %w", err)
			}
		}
	}
	return nil
}

// openStore opens a repository for one locked operation. limit is the size in bytes above which an object is not held
// in memory.
func openStore(dir string, limit int64) *store {
	fs := osfs.New(dir, osfs.WithBoundOS())
	return &store{dir: dir, Storage: filesystem.NewStorageWithOptions(fs, cache.NewObjectLRU(objectCache), filesystem.Options{
		ExclusiveAccess:      false,
		KeepDescriptors:      true,
		LargeObjectThreshold: max(limit, 8<<20),
	})}
}

// has reports whether the object is there.
func (s *store) has(hash plumbing.Hash) bool { return s.HasEncodedObject(hash) == nil }

// packs counts the pack files.
func (s *store) packs() int {
	found, err := filepath.Glob(filepath.Join(s.dir, "objects", "pack", "pack-*.pack"))
	if err != nil {
		return 0
	}
	return len(found)
}
