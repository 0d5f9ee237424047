package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cached is one container image in the cache.
type Cached struct {
	Digest string `json:"digest"`
	// Refs are the references that were last resolved to it.
	Refs []string `json:"refs,omitempty"`
	// AllocatedBytes is what its files take on the host.
	AllocatedBytes int64 `json:"allocatedBytes"`
	// Used is when it was last asked for.
	Used time.Time `json:"used"`
}

// List returns what the cache holds, sorted by digest.
func (c *Cache) List() ([]Cached, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, imagesDir))
	if err != nil {
		return nil, fmt.Errorf("listing the image cache: %w", err)
	}
	refs, err := c.refs()
	if err != nil {
		return nil, err
	}
	cached := make([]Cached, 0, len(entries))
	for _, entry := range entries {
		algorithm, hex, ok := strings.Cut(entry.Name(), "-")
		if !ok || !entry.IsDir() {
			continue
		}
		one := Cached{Digest: algorithm + ":" + hex}
		one.Refs = refs[one.Digest]
		if err := c.measure(&one); err != nil {
			return nil, err
		}
		cached = append(cached, one)
	}
	return cached, nil
}

func (c *Cache) measure(cached *Cached) error {
	files, err := os.ReadDir(c.imageDir(cached.Digest))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listing the image cache: %w", err)
	}
	for _, file := range files {
		info, err := file.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listing the image cache: %w", err)
		}
		var stat unix.Stat_t
		if err := unix.Lstat(filepath.Join(c.imageDir(cached.Digest), file.Name()), &stat); err == nil {
			cached.AllocatedBytes += stat.Blocks * 512
		}
		if modified := info.ModTime(); modified.After(cached.Used) {
			cached.Used = modified
		}
	}
	return nil
}

func (c *Cache) refs() (map[string][]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, refsDir))
	if err != nil {
		return nil, fmt.Errorf("listing the image cache: %w", err)
	}
	refs := map[string][]string{}
	for _, entry := range entries {
		raw, err := os.ReadFile(filepath.Join(c.dir, refsDir, entry.Name()))
		if err != nil {
			continue // removed meanwhile, or unreadable: it only decorates the list
		}
		var last resolved
		if json.Unmarshal(raw, &last) == nil && last.Digest != "" {
			refs[last.Digest] = append(refs[last.Digest], last.Ref)
		}
	}
	return refs, nil
}

// Prune removes the images whose digests are not in inUse and that nobody asked for within Options.PruneAge, and returns what it
// removed. A machine that runs from a removed image keeps its open file; the next power-on fetches the image again.
func (c *Cache) Prune(ctx context.Context, inUse map[string]bool) ([]Cached, error) {
	all, err := c.List()
	if err != nil {
		return nil, err
	}
	var removed []Cached
	for _, image := range all {
		if inUse[image.Digest] {
			continue
		}
		gone, err := c.pruneOne(ctx, image)
		if err != nil {
			return removed, fmt.Errorf("removing image %s: %w", image.Digest, err)
		}
		if gone {
			removed = append(removed, image)
		}
	}
	return removed, nil
}

func (c *Cache) pruneOne(ctx context.Context, image Cached) (bool, error) {
	release, err := c.enter(ctx, image.Digest)
	if err != nil {
		return false, err
	}
	defer release()

	now := Cached{Digest: image.Digest} // it may have been used since it was listed
	if err := c.measure(&now); err != nil {
		return false, err
	}
	if c.opts.Now().Sub(now.Used) < c.opts.PruneAge {
		return false, nil
	}
	if err := os.RemoveAll(c.imageDir(image.Digest)); err != nil {
		return false, err
	}
	for _, ref := range image.Refs {
		if err := os.Remove(c.refPath(ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	return true, nil
}
