package git

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// maxPacks is how many packs a mirror may gather, one for each fetch, before the small ones become one.
const maxPacks = 64

// smallPack is the size in bytes below which a pack is put together with others; one commit's pack is far smaller.
const smallPack = 512 << 10

// consolidate puts the small packs of many fetches together into one, because every look-up asks each pack. go-git has
// no git-gc.
func (s *store) consolidate(ctx context.Context) error {
	if s.packs() <= maxPacks {
		return nil
	}
	packs, err := s.ObjectPacks()
	if err != nil {
		return fmt.Errorf("listing packs: %w", err)
	}
	seen := map[plumbing.Hash]bool{}
	var small, hashes []plumbing.Hash
	for _, pack := range packs {
		info, err := os.Stat(s.packPath(pack, ".pack"))
		if err != nil || info.Size() > smallPack {
			continue
		}
		found, err := s.packed(pack)
		if err != nil {
			return err
		}
		small = append(small, pack)
		for _, h := range found {
			if !seen[h] {
				seen[h] = true
				hashes = append(hashes, h)
			}
		}
	}
	if len(small) < 2 || ctx.Err() != nil {
		return ctx.Err()
	}
	return s.replacePacks(small, hashes)
}

func (s *store) packPath(pack plumbing.Hash, ext string) string {
	return filepath.Join(s.dir, "objects", "pack", "pack-"+pack.String()+ext)
}

// packed lists the objects of one pack.
func (s *store) packed(pack plumbing.Hash) (hashes []plumbing.Hash, err error) {
	f, err := os.Open(s.packPath(pack, ".idx"))
	if err != nil {
		return nil, fmt.Errorf("reading a pack's index: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	index := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(f).Decode(index); err != nil {
		return nil, fmt.Errorf("reading a pack's index: %w", err)
	}
	entries, err := index.Entries()
	if err != nil {
		return nil, fmt.Errorf("reading a pack's index: %w", err)
	}
	defer func() { err = errors.Join(err, entries.Close()) }()
	for {
		e, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return hashes, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading a pack's index: %w", err)
		}
		hashes = append(hashes, e.Hash)
	}
}

// replacePacks writes one pack with the objects, and only then removes the packs they came from.
func (s *store) replacePacks(old, hashes []plumbing.Hash) error {
	w, err := s.PackfileWriter()
	if err != nil {
		return fmt.Errorf("writing a pack: %w", err)
	}
	const window = 10 // git's own default
	merged, err := packfile.NewEncoder(w, s, false).Encode(hashes, window)
	if err = errors.Join(err, w.Close()); err != nil {
		return fmt.Errorf("writing a pack: %w", err)
	}
	for _, pack := range old {
		if pack == merged {
			continue
		}
		if err := s.DeleteOldObjectPackAndIndex(pack, time.Time{}); err != nil {
			return fmt.Errorf("removing a pack: %w", err)
		}
	}
	s.Reindex()
	return nil
}
