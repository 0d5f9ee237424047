package nodeagent

import (
	"maps"
	"slices"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// inbox gathers events until somebody looks: many events about one domain are one reason to look at it.
type inbox struct {
	wake chan struct{}

	mu    sync.Mutex
	all   bool
	lost  bool
	names map[string]bool
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1), names: map[string]bool{}} }

// add notes an event. It never blocks: libvirt's event loop calls it.
func (i *inbox) add(event hypervisor.Event) {
	i.mu.Lock()
	switch event.Kind {
	case hypervisor.EventConnected:
		i.all, i.lost = true, false
	case hypervisor.EventDisconnected:
		i.all, i.lost = false, true
	case hypervisor.EventDefined, hypervisor.EventUndefined, hypervisor.EventStarted, hypervisor.EventStopped, hypervisor.EventChanged:
		i.names[event.Name] = true
	}
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) take() (all, lost bool, names []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	all, lost, names = i.all, i.lost, slices.Sorted(maps.Keys(i.names))
	i.all, i.lost = false, false
	clear(i.names)
	return all, lost, names
}
