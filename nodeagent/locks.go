package nodeagent

import (
	"context"
	"fmt"
	"sync"
)

// locks gives each name a lock of its own, so that one VM's slow shutdown holds up no other VM.
type locks struct {
	mu   sync.Mutex
	held map[string]*entry
}

type entry struct {
	slot    chan struct{}
	waiting int
}

func newLocks() *locks { return &locks{held: map[string]*entry{}} }

// lock waits for the name until ctx ends.
func (l *locks) lock(ctx context.Context, name string) (unlock func(), err error) {
	e := l.enter(name)
	select {
	case e.slot <- struct{}{}:
		return func() { <-e.slot; l.leave(name, e) }, nil
	case <-ctx.Done():
		l.leave(name, e)
		return nil, fmt.Errorf("waiting for %s: %w", name, context.Cause(ctx))
	}
}

// try takes the lock when nobody has it.
func (l *locks) try(name string) (unlock func(), ok bool) {
	e := l.enter(name)
	select {
	case e.slot <- struct{}{}:
		return func() { <-e.slot; l.leave(name, e) }, true
	default:
		l.leave(name, e)
		return nil, false
	}
}

func (l *locks) enter(name string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.held[name]
	if !ok {
		e = &entry{slot: make(chan struct{}, 1)}
		l.held[name] = e
	}
	e.waiting++
	return e
}

func (l *locks) leave(name string, e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.waiting--; e.waiting == 0 {
		delete(l.held, name)
	}
}
