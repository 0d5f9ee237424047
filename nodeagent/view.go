package nodeagent

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// view is what the agent knows of its host, and who wants to be told.
type view struct {
	mu sync.Mutex
	// unknown says why nothing is known; empty when domains is complete.
	unknown string
	domains map[string]*seen
	// named and made have the domains whose names do not follow from the VM's address, and from that which the domain was made under.
	named, made map[schemas.Address]string
	watchers    map[*watcher]struct{}
	// reads numbers the reads as they begin. read says which the last of each domain was, listed which the last of all: what began
	// before is older, and may be told later.
	reads  uint64
	read   map[string]uint64
	listed uint64
	// health is what the guests themselves say, by domain; nothing for most.
	health map[string]health
	// reached is how the host reaches guests behind user-mode networking, by domain; nothing for most.
	reached map[string]reach
	// able is what the host can do for running guests.
	able []hypervisor.LiveChange
}

// reach is how the host reaches a guest behind user-mode networking.
type reach struct {
	// address is where its ports are open; empty when none is.
	address string
	// problem says why some are not.
	problem string
}

// health is what was found out by asking a guest.
type health struct {
	// ready is "true", "false" or "unknown"; empty without a readiness probe.
	ready, readyReason string
	// credentials says why the access credentials are not in the guest.
	credentials string
}

func newView(unknown string) *view {
	return &view{unknown: unknown, domains: map[string]*seen{}, named: map[schemas.Address]string{}, made: map[schemas.Address]string{}, watchers: map[*watcher]struct{}{}, read: map[string]uint64{}, health: map[string]health{}, reached: map[string]reach{}}
}

// learn notes what the host can do for running guests.
func (v *view) learn(able []hypervisor.LiveChange) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slices.Equal(v.able, able) {
		return
	}
	v.able = able
	for w := range v.watchers {
		w.nudge()
	}
}

// heal notes what a guest says; the zero health is nothing.
func (v *view) heal(name string, now health) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.health[name] == now {
		return
	}
	if now == (health{}) {
		delete(v.health, name)
	} else {
		v.health[name] = now
	}
	v.tell(name)
}

// reach notes how a guest is reached, and reports whether that is news; the zero reach is nothing.
func (v *view) reach(name string, now reach) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reached[name] == now {
		return false
	}
	if now == (reach{}) {
		delete(v.reached, name)
	} else {
		v.reached[name] = now
	}
	v.tell(name)
	return true
}

func (v *view) get(name string) *seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.domains[name]
}

// domain returns what is told of one of gitvirt's domains, or nil.
func (v *view) domain(name string) *api.Domain {
	now := v.get(name)
	if now == nil {
		return nil
	}
	domain, _ := now.message.(*api.Domain)
	return domain
}

// put replaces what is known of one domain by what a read found that began at that number; nil means it is gone. It returns what is
// known then: of reads that overlap, the one that began last.
func (v *view) put(name string, now *seen, began uint64) *seen {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.domains[name]
	if began < max(v.read[name], v.listed) {
		return before
	}
	v.read[name] = began
	if now == nil {
		delete(v.domains, name)
	} else {
		v.domains[name] = now
	}
	v.unindex(name, before)
	v.index(name, now)
	if changed(before, now) {
		v.tell(name)
	}
	return now
}

// index notes the addresses of a domain whose name does not follow from them.
func (v *view) index(name string, now *seen) {
	if now == nil || now.record == nil {
		return
	}
	if address := now.record.Address; domainxml.DomainName(address) != name {
		v.named[address] = name
	}
	if made := now.record.Made(); domainxml.DomainName(made) != name {
		v.made[made] = name
	}
}

func (v *view) unindex(name string, before *seen) {
	if before == nil || before.record == nil {
		return
	}
	if v.named[before.record.Address] == name {
		delete(v.named, before.record.Address)
	}
	if v.made[before.record.Made()] == name {
		delete(v.made, before.record.Made())
	}
}

// nameOf returns the name of the domain of a VM: the one that has it, or else the one that it would get.
func (v *view) nameOf(address schemas.Address) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return cmp.Or(v.named[address], domainxml.DomainName(address))
}

// madeAs returns the name of the domain whose files are named after an address.
func (v *view) madeAs(address schemas.Address) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return cmp.Or(v.made[address], domainxml.DomainName(address))
}

// has reports whether a domain is that of a VM.
func (v *view) has(name string, address schemas.Address) bool {
	now := v.get(name)
	return now != nil && now.record != nil && now.record.Address == address
}

// swap replaces what is known of one domain, unless somebody else has done so meanwhile.
func (v *view) swap(name string, before, now *seen) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.domains[name] == before {
		v.domains[name] = now
		v.tell(name)
	}
}

// begin numbers a read that begins now.
func (v *view) begin() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.reads++
	return v.reads
}

// replace installs a complete picture whose reading began at that number. Domains that were read by themselves since then are
// newer and stay.
func (v *view) replace(all map[string]*seen, began uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listed = began
	before := v.domains
	for name, at := range v.read {
		switch {
		case at < began:
			delete(v.read, name)
		case before[name] == nil:
			delete(all, name)
		default:
			all[name] = before[name]
		}
	}
	v.domains = all
	clear(v.named)
	clear(v.made)
	for name, now := range all {
		v.index(name, now)
	}
	if v.unknown != "" {
		v.unknown = ""
		for w := range v.watchers {
			w.all = true
			w.nudge()
		}
		return
	}
	for name, now := range all {
		if changed(before[name], now) {
			v.tell(name)
		}
	}
	for name := range before {
		if _, ok := all[name]; !ok {
			v.tell(name)
		}
	}
}

// lose says that the host cannot be read.
func (v *view) lose(why string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.unknown == why {
		return
	}
	v.unknown = why
	for w := range v.watchers {
		w.all = true
		w.nudge()
	}
}

func changed(before, now *seen) bool {
	if before == now {
		return false
	}
	if before == nil || now == nil {
		return true
	}
	// One that is being started is running to others; who looks after guests tells that apart, and one run from the next.
	if before.domain.State != now.domain.State || before.domain.ID != now.domain.ID {
		return true
	}
	return !proto.Equal(before.message, now.message)
}

// healthOf returns what a guest says.
func (v *view) healthOf(name string) health {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.health[name]
}

// blind reports whether nothing is known of the host.
func (v *view) blind() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.unknown != ""
}

// all returns every domain, and false when the host is unknown.
func (v *view) all() (domains []*seen, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Collect(maps.Values(v.domains)), v.unknown == ""
}
