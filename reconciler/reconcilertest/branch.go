package reconcilertest

import (
	"bytes"
	"context"
	"maps"
	"slices"
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
}

// NewBranch returns a branch that does not exist yet.
func NewBranch() *Branch { return &Branch{files: map[string][]byte{}} }

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
