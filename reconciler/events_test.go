package reconciler

import (
	"fmt"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

func TestRecorder(t *testing.T) {
	r := newRecorder()
	web := schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}
	start := time.Unix(1000, 0)
	for i := range 3 {
		r.add(Event{Time: start.Add(time.Duration(i) * time.Second), Type: Warning, Reason: Crashed, Address: web, Message: "the guest crashed"})
		r.add(Event{Time: start, Type: Normal, Reason: Started, Address: web, Message: "the guest runs"})
	}
	events := r.since(0)
	if len(events) != 2 {
		t.Fatalf("%d events, want 2: %+v", len(events), events)
	}
	crashed := events[0]
	if crashed.Count != 3 || crashed.ID != 5 || !crashed.FirstTime.Equal(start) || !crashed.Time.Equal(start.Add(2*time.Second)) {
		t.Errorf("counted as %+v", crashed)
	}
	if since := r.since(5); len(since) != 1 || since[0].Reason != Started {
		t.Errorf("since 5: %+v", since)
	}
	for i := range 3 * maxEvents {
		r.add(Event{Type: Normal, Reason: Planned, Message: fmt.Sprint(i)})
	}
	events = r.since(0)
	if len(events) != maxEvents || len(r.index) != maxEvents || events[0].Message != fmt.Sprint(2*maxEvents) {
		t.Errorf("%d events, %d in the index, the first %+v", len(events), len(r.index), events[0])
	}
	for i := 1; i < len(events); i++ {
		if events[i].ID <= events[i-1].ID {
			t.Fatalf("out of order at %d", i)
		}
	}
}

// TestFollowers: each is told, none is waited for, and one that has stopped is not told.
func TestFollowers(t *testing.T) {
	var r Reconciler
	first, stopFirst := r.Follow()
	second, stopSecond := r.Follow()
	defer stopSecond()
	for _, changed := range []<-chan struct{}{first, second} {
		<-changed // what was before
	}
	stopFirst()
	r.followers.tell()
	r.followers.tell()
	<-second
	if len(first) != 0 || len(second) != 0 {
		t.Errorf("%d and %d are left", len(first), len(second))
	}
}
