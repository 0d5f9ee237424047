package nodeagent

import (
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// TestWatchersHearWhenAGuestRuns also when all that others are told of it was told while it was being started: who looks after guests
// leaves one that is being started alone.
func TestWatchersHearWhenAGuestRuns(t *testing.T) {
	v := newView("")
	w := v.subscribe()
	v.news(w, "a") // all there was
	message := &api.Domain{Name: "a", State: stateRunning}
	for _, step := range []struct {
		now  facts
		news bool
	}{
		{facts{Name: "a", ID: "1", State: hypervisor.StateStarting}, true},
		{facts{Name: "a", ID: "1", State: hypervisor.StateRunning}, true},
		{facts{Name: "a", ID: "1", State: hypervisor.StateRunning}, false},
		{facts{Name: "a", ID: "2", State: hypervisor.StateRunning}, true},
	} {
		v.put("a", &seen{domain: step.now, message: message}, v.begin())
		if got := v.news(w, "a"); got != step.news {
			t.Errorf("run %s, %s: news %v, want %v", step.now.ID, step.now.State, got, step.news)
		}
	}
}

// TestOverlappingReads: of two reads of a domain the one that began last counts, whichever is told last.
func TestOverlappingReads(t *testing.T) {
	v := newView("")
	stopped, running := &seen{message: &api.Domain{State: "stopped"}}, &seen{message: &api.Domain{State: "running"}}
	early, late := v.begin(), v.begin()
	v.put("a", running, late)
	if got := v.put("a", stopped, early); got != running || v.get("a") != running {
		t.Errorf("an older read was taken for what is: %v", v.get("a"))
	}
	early, listing := v.begin(), v.begin()
	v.replace(map[string]*seen{"a": stopped}, listing)
	if v.put("a", running, early); v.get("a") != stopped {
		t.Error("a read that began before the listing was taken for newer")
	}
	listing, late = v.begin(), v.begin()
	v.put("a", running, late)
	if v.replace(map[string]*seen{"a": stopped}, listing); v.get("a") != running {
		t.Error("a listing was taken for newer than a read that began after it")
	}
}
