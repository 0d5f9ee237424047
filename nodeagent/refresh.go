package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// refresh reads one domain and tells watchers what changed.
func (a *Agent) refresh(ctx context.Context, name string) (*seen, error) {
	began := a.view.begin()
	domain, err := a.hypervisor.Domain(ctx, name)
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		return a.view.put(name, a.absent(name), began), nil
	case err != nil:
		return nil, fmt.Errorf("reading domain %s: %w", name, err)
	}
	return a.view.put(name, a.observe(domain, a.view.get(name)), began), nil
}

// absent returns what to tell of a domain that does not exist: nothing, or that it is missing. One whose trace cannot be read may
// be either: it is told with that, and nobody touches it.
func (a *Agent) absent(name string) *seen {
	record, err := a.records.get(name)
	switch {
	case err != nil && a.view.madeAs(a.records.addressOf(name)) != name:
		return nil // its domain is there, under a name of its own
	case err != nil:
		now := a.damaged(&seen{domain: facts{Name: name, State: hypervisor.StateShutoff}}, err)
		if message, ok := now.message.(*api.Domain); ok {
			message.Address = a.records.addressOf(name).String()
		}
		return now
	case record != nil:
		return missing(record)
	}
	return nil
}

// hasMade reports whether one of these domains was made under the address that another one's trace is kept under.
func (a *Agent) hasMade(all map[string]*seen, name string) bool {
	address := a.records.addressOf(name)
	for _, now := range all {
		if now.record != nil && now.record.Made() == address {
			return true
		}
	}
	return false
}

// refreshAll reads every domain, one at a time: the definitions of thousands would be most of the agent's memory. On an
// error nothing is concluded.
func (a *Agent) refreshAll(ctx context.Context) error {
	began := a.view.begin()
	names, err := a.hypervisor.Names(ctx)
	if err != nil {
		return fmt.Errorf("listing domains: %w", err)
	}
	all := make(map[string]*seen, len(names))
	for _, name := range names {
		domain, err := a.hypervisor.Domain(ctx, name)
		switch {
		case errors.Is(err, hypervisor.ErrNotFound):
			continue // it went away since the list was made
		case errors.Is(err, hypervisor.ErrUnavailable) || (err != nil && ctx.Err() != nil):
			return fmt.Errorf("reading domain %s: %w", name, err)
		case err != nil:
			all[name] = a.unreadable(name, err)
		default:
			all[name] = a.observe(domain, a.view.get(name))
		}
	}
	for _, name := range a.records.names() {
		if _, ok := all[name]; !ok {
			if trace := a.absent(name); trace != nil && (trace.record != nil || !a.hasMade(all, name)) {
				all[name] = trace
			}
		}
	}
	a.view.replace(all, began)
	return nil
}

// unreadable tells of a domain that exists and cannot be read: the others go on, and nobody touches it.
func (a *Agent) unreadable(name string, err error) *seen {
	now := &seen{domain: facts{Name: name}}
	before := a.view.get(name)
	if before != nil && before.record == nil && before.problem == "" {
		now.message = &api.Foreign{Name: name}
		return now
	}
	now = a.damaged(now, err)
	if message, ok := now.message.(*api.Domain); ok && before != nil && before.record != nil {
		now.record = before.record
		message.Address, message.Fleet = before.record.Address.String(), before.record.Fleet
	}
	return now
}

// addressInterval is how often guests are asked for their IP addresses: they come and go without an event.
const addressInterval = 10 * time.Second

// maxAddresses is how many addresses of a guest are told: its agent may claim to have any number.
const maxAddresses = 64

// followAddresses keeps the addresses of the running guests up to date. It has a goroutine of its own, because a guest
// agent may take a second to answer, or to be given up on.
func (a *Agent) followAddresses(ctx context.Context) {
	tick := time.NewTicker(addressInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		domains, _ := a.view.all()
		for _, now := range domains {
			a.refreshAddresses(ctx, now)
		}
	}
}

func (a *Agent) refreshAddresses(ctx context.Context, now *seen) {
	old, ok := now.message.(*api.Domain)
	if !ok || now.domain.Name == "" || !now.domain.State.Active() {
		return
	}
	addresses, err := a.hypervisor.Addresses(ctx, now.domain.Name)
	addresses = addresses[:min(len(addresses), maxAddresses)]
	if err != nil || slices.Equal(addresses, old.GetAddresses()) {
		return // what is not known now is asked again next time
	}
	message, ok := proto.Clone(old).(*api.Domain)
	if !ok {
		return
	}
	message.Addresses = addresses
	fresh := *now
	fresh.message = message
	a.view.swap(now.domain.Name, now, &fresh)
}
