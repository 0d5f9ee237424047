package eventqueue_test

import (
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/eventqueue"
)

func TestQueueKeepsOrder(t *testing.T) {
	q := eventqueue.New()
	q.Push(hypervisor.Event{Kind: hypervisor.EventStarted, Name: "a"})
	q.Push(hypervisor.Event{Kind: hypervisor.EventStarted, Name: "b"})
	<-q.Ready()
	if got := q.Take(); len(got) != 2 || got[0].Name != "a" || got[1].Name != "b" {
		t.Errorf("Take() = %v, want a, b", got)
	}
	if got := q.Take(); len(got) != 0 {
		t.Errorf("second Take() = %v, want nothing", got)
	}
}

func TestQueueOverflowAsksForAFullLook(t *testing.T) {
	q := eventqueue.New()
	for range eventqueue.Limit + 1 {
		q.Push(hypervisor.Event{Kind: hypervisor.EventChanged, Name: "noisy"})
	}
	q.Push(hypervisor.Event{Kind: hypervisor.EventStopped, Name: "last"})
	got := q.Take()
	if len(got) > eventqueue.Limit {
		t.Fatalf("%d events kept, the limit is %d", len(got), eventqueue.Limit)
	}
	if got[0].Kind != hypervisor.EventConnected {
		t.Errorf("first event after an overflow is %v, want %v", got[0], hypervisor.EventConnected)
	}
	if last := got[len(got)-1]; last.Name != "last" {
		t.Errorf("newest event is %v, want the one pushed last", last)
	}
}
