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
		v.put("a", &seen{domain: step.now, message: message})
		if got := v.news(w, "a"); got != step.news {
			t.Errorf("run %s, %s: news %v, want %v", step.now.ID, step.now.State, got, step.news)
		}
	}
}
