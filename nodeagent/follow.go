package nodeagent

import (
	"context"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// Sight is what an agent sees of its host at one moment.
type Sight struct {
	// Unknown says why nothing is known; empty when the rest is complete.
	Unknown string
	// Domains are those of gitvirt, Foreign all others, both by name.
	Domains []*api.Domain
	Foreign []*api.Foreign
	// Live is what can be done for running guests (api.Capabilities).
	Live []string
}

// Follow tells what lives on the host, whole, at once and after each change, until ctx ends. It is Watch for callers in the same
// process, who have few domains. What is told is not to be changed.
func (a *Agent) Follow(ctx context.Context, tell func(Sight)) {
	w := a.view.subscribe()
	defer a.view.unsubscribe(w)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		a.view.news(w, "") // what is told is everything
		next := a.view.take(&watcher{all: true, dirty: map[string]bool{}})
		seen := Sight{Unknown: next.unknown, Live: next.able}
		for _, name := range next.names {
			switch message := next.message(name).(type) {
			case *api.Domain:
				seen.Domains = append(seen.Domains, message)
			case *api.Foreign:
				seen.Foreign = append(seen.Foreign, message)
			}
		}
		tell(seen)
	}
}
