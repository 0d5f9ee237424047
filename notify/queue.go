package notify

import (
	"slices"
	"sync"

	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
)

// maxQueued is how many different events wait for a receiver.
const maxQueued = 500

// queue holds what a receiver was not told yet, the oldest first. What happens again while it waits is one event with its last count.
type queue struct {
	// filled receives a value when there may be something to take.
	filled chan struct{}

	mu      sync.Mutex
	events  []reconciler.Event
	dropped int
}

func newQueue() *queue { return &queue{filled: make(chan struct{}, 1)} }

type eventKey struct {
	address         schemas.Address
	kind            reconciler.EventType
	reason, message string
}

func keyOf(e *reconciler.Event) eventKey {
	return eventKey{e.Address, e.Type, string(e.Reason), e.Message}
}

// add returns how many events were dropped for it.
func (q *queue) add(event reconciler.Event) (dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	key := keyOf(&event)
	q.events = slices.DeleteFunc(q.events, func(e reconciler.Event) bool { return keyOf(&e) == key })
	if q.events = append(q.events, event); len(q.events) > maxQueued {
		q.events = slices.Delete(q.events, 0, 1)
		q.dropped++
		dropped = 1
	}
	q.wake()
	return dropped
}

func (q *queue) wake() {
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// take returns the oldest events, at most so many, and how many others were dropped since the last time.
func (q *queue) take(most int) (events []reconciler.Event, dropped int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(most, len(q.events))
	events, dropped = slices.Clone(q.events[:n]), q.dropped
	q.events, q.dropped = slices.Delete(q.events, 0, n), 0
	if len(q.events) > 0 {
		q.wake()
	}
	return events, dropped
}
