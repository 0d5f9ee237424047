package host

import (
	"maps"
	"slices"

	"github.com/gitvirt/gitvirt/apply/internal/wire"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/plan"
)

// mirror gathers the events of one stream.
type mirror struct {
	domains map[string]*plan.Domain
	foreign map[string]plan.Foreign
	named   map[string]bool
}

// take applies an event and returns a new picture when one is complete.
func (m *mirror) take(event *api.WatchEvent) *plan.Observed {
	if m.named == nil {
		m.named = map[string]bool{}
	}
	switch e := event.GetEvent().(type) {
	case *api.WatchEvent_Domain:
		name := e.Domain.GetName()
		m.named[name] = true
		delete(m.foreign, name)
		m.domains[name] = wire.Domain(e.Domain)
	case *api.WatchEvent_Foreign:
		name := e.Foreign.GetName()
		m.named[name] = true
		delete(m.domains, name)
		m.foreign[name] = wire.Foreign(e.Foreign)
	case *api.WatchEvent_Gone:
		delete(m.domains, e.Gone)
		delete(m.foreign, e.Gone)
	case *api.WatchEvent_Unknown:
		return &plan.Observed{Unknown: e.Unknown}
	case *api.WatchEvent_Synced:
		if e.Synced.GetComplete() {
			maps.DeleteFunc(m.domains, func(name string, _ *plan.Domain) bool { return !m.named[name] })
			maps.DeleteFunc(m.foreign, func(name string, _ plan.Foreign) bool { return !m.named[name] })
		}
		clear(m.named)
		return m.picture(e.Synced)
	}
	return nil
}

func (m *mirror) picture(synced *api.Synced) *plan.Observed {
	observed := &plan.Observed{Node: synced.GetNode(), Domains: make([]*plan.Domain, 0, len(m.domains))}
	for _, domain := range m.domains {
		observed.Domains = append(observed.Domains, domain)
	}
	slices.SortFunc(observed.Domains, func(a, b *plan.Domain) int { return a.Address.Compare(b.Address) })
	for _, name := range slices.Sorted(maps.Keys(m.foreign)) {
		observed.Foreign = append(observed.Foreign, m.foreign[name])
	}
	for _, live := range synced.GetCapabilities().GetLive() {
		observed.Live = append(observed.Live, plan.LiveChange(live))
	}
	return observed
}
