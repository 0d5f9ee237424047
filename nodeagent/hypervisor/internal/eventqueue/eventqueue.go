// Package eventqueue hands events from callbacks that must not block to one reader. It is bounded: a reader that falls
// behind loses the events it missed and is told to look at everything again. It is shared by the implementations of
// hypervisor.Hypervisor and keeps no order between queues.
package eventqueue

import (
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Limit is how many unread events a queue keeps.
const Limit = 4096

// Queue is a bounded queue of events for one reader.
type Queue struct {
	ready chan struct{}

	mu     sync.Mutex
	events []hypervisor.Event
}

// New returns an empty queue.
func New() *Queue { return &Queue{ready: make(chan struct{}, 1)} }

// Push appends an event and never blocks. When the queue is full, all that is in it becomes one EventConnected: events
// are hints, and that one says to look at every domain.
func (q *Queue) Push(event hypervisor.Event) {
	q.mu.Lock()
	if len(q.events) >= Limit {
		q.events = append(q.events[:0], hypervisor.Event{Kind: hypervisor.EventConnected})
	}
	q.events = append(q.events, event)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// Ready receives when Take may have something to return.
func (q *Queue) Ready() <-chan struct{} { return q.ready }

// Take returns and removes all events.
func (q *Queue) Take() []hypervisor.Event {
	q.mu.Lock()
	defer q.mu.Unlock()
	events := q.events
	q.events = nil
	return events
}
