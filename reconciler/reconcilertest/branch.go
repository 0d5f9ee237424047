package reconcilertest

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Branch is a status branch in memory. It is safe for concurrent use.
type Branch struct {
	// Delay is how long a push takes.
	Delay time.Duration

	mu       sync.Mutex
	files    map[string][]byte
	messages []string
	err      error
	// others are the files of people, written the last time at the written-th commit of them.
	others  map[string][]byte
	written int
}

// NewBranch returns a branch that does not exist yet.
func NewBranch() *Branch { return &Branch{files: map[string][]byte{}, others: map[string][]byte{}} }

// Put writes a file that is not gitvirt's, as somebody who pushes to the branch does.
func (b *Branch) Put(path string, content []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.others[path] = content
	b.written++
}

// ReadFolder implements reconciler.ApprovalBranch.
func (b *Branch) ReadFolder(_ context.Context, folder, known string) (files map[string][]byte, commit string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if commit = strconv.Itoa(b.written); commit == known || b.err != nil {
		return nil, commit, b.err
	}
	files = map[string][]byte{}
	for path, content := range b.others {
		if strings.HasPrefix(path, folder) {
			files[path] = content
		}
	}
	return files, commit, nil
}

// Fail makes the branch unreachable; nil ends that.
func (b *Branch) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
}

// Read implements reconciler.StatusBranch.
func (b *Branch) Read(context.Context) (map[string][]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.files), b.err
}

// Publish implements reconciler.StatusBranch.
func (b *Branch) Publish(ctx context.Context, files map[string][]byte, message string) (bool, error) {
	if err := pause(ctx, b.Delay); err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return false, b.err
	}
	if maps.EqualFunc(b.files, files, bytes.Equal) {
		return false, nil
	}
	b.files = maps.Clone(files)
	b.messages = append(b.messages, message)
	return true, nil
}

// File returns a file as a string; "" when it is not there.
func (b *Branch) File(path string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.files[path])
}

// Paths returns the paths, ordered.
func (b *Branch) Paths() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.files))
}

// Commits returns the messages of the commits, oldest first.
func (b *Branch) Commits() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.messages)
}
