package fake

import (
	"cmp"
	"context"
	"fmt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

// Define implements hypervisor.Hypervisor.
func (h *Hypervisor) Define(ctx context.Context, definition string) error {
	parsed, parseErr := parse(definition)
	if err := h.enter(ctx, Define, parsed.name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	if parseErr != nil {
		return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, parseErr)
	}
	if err := h.conflict(&parsed); err != nil {
		return err
	}
	if existing, found := h.domains[parsed.name]; found {
		kept, err := devicexml.KeepPasswords(parsed.xml, existing.Config)
		if err != nil {
			return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err)
		}
		parsed.xml = kept
	}
	h.define(&parsed)
	return nil
}

// define takes a definition that nothing speaks against. The lock is held.
func (h *Hypervisor) define(d *definition) {
	if existing, found := h.domains[d.name]; found {
		existing.Config = d.xml
	} else {
		h.domains[d.name] = &domain{Domain: hypervisor.Domain{
			Name: d.name, UUID: d.uuid, State: hypervisor.StateShutoff, Config: d.xml,
		}}
	}
	h.emit(hypervisor.Event{Kind: hypervisor.EventDefined, Name: d.name})
}

// HasPasswords implements hypervisor.Hypervisor.
func (h *Hypervisor) HasPasswords(ctx context.Context, name string) (bool, error) {
	if err := h.enter(ctx, HasPasswords, name); err != nil {
		return false, err
	}
	defer h.mu.Unlock()
	d, found := h.domains[name]
	if !found {
		return false, nil
	}
	return devicexml.HasPasswords(cmp.Or(d.Config, d.Live))
}

// Replace implements hypervisor.Hypervisor.
func (h *Hypervisor) Replace(ctx context.Context, definition string) error {
	parsed, parseErr := parse(definition)
	if err := h.enter(ctx, Replace, parsed.name); err != nil {
		return err
	}
	err := parseErr
	if err == nil {
		err = h.makeRoom(&parsed)
	} else {
		err = fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err)
	}
	h.mu.Unlock()
	if err != nil {
		return err
	}
	// What waits here may be ended; the rest is one with what was done already.
	if err := h.enter(context.WithoutCancel(ctx), Replacing, parsed.name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	h.define(&parsed)
	return nil
}

// makeRoom undefines the domain of a definition's name, and gives its passwords to the definition. What could not be defined then is
// refused. The lock is held.
func (h *Hypervisor) makeRoom(d *definition) error {
	existing, found := h.domains[d.name]
	if found && !existing.State.Active() {
		delete(h.domains, d.name) // for now: who looks waits for the lock
	}
	err := h.conflict(d)
	if found {
		h.domains[d.name] = existing
	}
	if err != nil || !found {
		return err
	}
	if d.xml, err = devicexml.KeepPasswords(d.xml, existing.Config); err != nil {
		return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err)
	}
	h.undefine(existing)
	return nil
}

// conflict refuses a definition with the name or the UUID of another domain. The lock is held.
func (h *Hypervisor) conflict(d *definition) error {
	if existing, found := h.domains[d.name]; found && existing.UUID != d.uuid {
		return fmt.Errorf("%w: domain %q already exists with uuid %s", hypervisor.ErrConflict, d.name, existing.UUID)
	}
	for _, other := range h.domains {
		if other.UUID == d.uuid && other.Name != d.name {
			return fmt.Errorf("%w: domain %q is already defined with uuid %s", hypervisor.ErrConflict, other.Name, other.UUID)
		}
	}
	return nil
}

// Undefine implements hypervisor.Hypervisor.
func (h *Hypervisor) Undefine(ctx context.Context, name string) error {
	if err := h.enter(ctx, Undefine, name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	if d, found := h.domains[name]; found {
		h.undefine(d)
	}
	return nil
}

// undefine takes the persistent definition away, if there is one. The lock is held.
func (h *Hypervisor) undefine(d *domain) {
	if d.Config == "" {
		return
	}
	d.Config = ""
	if !d.State.Active() {
		delete(h.domains, d.Name)
	}
	h.emit(hypervisor.Event{Kind: hypervisor.EventUndefined, Name: d.Name})
}
