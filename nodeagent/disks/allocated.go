package disks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
)

// What is looked at of a folder at most: a guest with a share of its own can make any number of files, and must not be
// able to keep the agent busy or to fill its memory.
const (
	maxCounted   = 100_000
	namesAtOnce  = 256
	maxUnvisited = 10_000
)

// allocated is what a folder takes on the host, or at least what the first files of a very large one take. Nothing in it is
// followed, and what vanishes meanwhile takes nothing.
func allocated(ctx context.Context, dir string) (total int64, err error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("looking at %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	counted := 0
	for unvisited := []string{"."}; len(unvisited) > 0 && counted < maxCounted; {
		folder := unvisited[len(unvisited)-1]
		unvisited = unvisited[:len(unvisited)-1]
		err := eachEntry(root, folder, func(info fs.FileInfo) bool {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				total += stat.Blocks * blockSize
			}
			if info.IsDir() && len(unvisited) < maxUnvisited {
				unvisited = append(unvisited, path.Join(folder, info.Name()))
			}
			counted++
			return counted < maxCounted && ctx.Err() == nil
		})
		if ctx.Err() != nil {
			return total, fmt.Errorf("looking at %s: %w", dir, context.Cause(ctx))
		}
		if err != nil && folder == "." {
			return total, fmt.Errorf("looking at %s: %w", dir, err)
		}
	}
	return total, nil
}

// eachEntry visits what lies in a folder until visit returns false.
func eachEntry(root *os.Root, folder string, visit func(fs.FileInfo) bool) error {
	handle, err := root.Open(folder)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Close() }() // only read
	for {
		entries, err := handle.ReadDir(namesAtOnce)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			info, err := entry.Info()
			if err == nil && !visit(info) {
				return nil
			}
		}
	}
}
