package nodeagent

import (
	"context"
	"fmt"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/guestfiles"
)

// define prepares what the VM needs and writes the persistent definition. The running guest goes on with what it has
// until it is cycled; a definition that libvirt refuses costs no downtime.
func (e *execution) define(ctx context.Context) error {
	var before *domainxml.Record
	if e.now != nil {
		before = e.now.record
	}
	assignment, err := e.assign(ctx, before)
	if err != nil {
		return err
	}
	e.progress("preparing disks")
	volumes, err := e.agent.volumes.prepare(ctx, e.machine, e.live(), e.progress)
	if err != nil {
		return err
	}
	record := e.machine.record(volumes, before)
	record.Assignment = assignment
	if before != nil && e.request.GetPower() != "cycle" {
		record.Ran, record.Stop = before.Ran, before.Stop
	}
	record.Pending, record.Native = e.pending(record), e.native()
	definition, err := e.render(record)
	if err != nil {
		return err
	}
	var operations []domainxml.Operation
	live := e.changesGuest()
	if live {
		// All of it is decided before anything is touched.
		if operations, err = e.operations(ctx, record); err != nil {
			return e.refuse(record, err)
		}
	}
	if e.request.GetReplace() && e.defined() {
		if err := e.undefine(ctx, before); err != nil {
			return err
		}
	}
	if e.written(before, record) {
		// The trace may still be missing: it is left after the definition.
		err = e.agent.records.put(record)
	} else {
		err = e.write(ctx, record, definition)
	}
	if err != nil {
		return err
	}
	if err := e.agent.secrets.put(e.made, credentialsOf(e.machine)); err != nil {
		return err
	}
	if err := e.refresh(ctx, volumes); err != nil {
		return err
	}
	if live {
		return e.change(ctx, record, operations)
	}
	return nil
}

// render returns the definition that a record stands for.
func (e *execution) render(record *domainxml.Record) (string, error) {
	machine := record.Machine(e.machine.spec(), e.agent.host(e.made, e.machine.spec()))
	machine.Record = record
	definition, err := domainxml.Render(machine)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return definition, nil
}

// write defines the domain and leaves its trace.
func (e *execution) write(ctx context.Context, record *domainxml.Record, definition string) error {
	e.progress("defining " + e.name)
	if err := e.agent.hypervisor.Define(ctx, definition); err != nil {
		return fmt.Errorf("defining %s: %w", e.name, err)
	}
	return e.agent.records.put(record)
}

// refresh makes ready what the next power-on needs, whoever switches the guest on. What a running guest has open is left.
func (e *execution) refresh(ctx context.Context, volumes []domainxml.Volume) error {
	open, err := e.open(ctx)
	if err != nil {
		return err
	}
	e.fresh = !e.active()
	return e.prepareVolumes(ctx, volumes, open)
}

// open returns what the running guest has open: what its record tells of, and what it was given since; nil when it is off.
func (e *execution) open(ctx context.Context) (map[string]bool, error) {
	if !e.active() {
		return nil, nil //nolint:nilnil // nothing is open
	}
	domain, err := e.agent.hypervisor.Domain(ctx, e.name)
	if err != nil {
		return nil, fmt.Errorf("reading domain %s: %w", e.name, err)
	}
	open := map[string]bool{}
	for _, path := range domainxml.Sources(domain.Live) {
		open[path] = true
	}
	if e.now.running != nil {
		for _, volume := range e.now.running.Volumes {
			open[volume.Path] = true
		}
	}
	return open, nil
}

// prepareVolumes makes the volumes of a definition ready. A config drive tells the guest the addresses of tagged devices,
// which libvirt chose when it took the definition.
func (e *execution) prepareVolumes(ctx context.Context, volumes []domainxml.Volume, open map[string]bool) error {
	if guestfiles.HasTags(e.machine.spec()) {
		domain, err := e.agent.hypervisor.Domain(ctx, e.name)
		if err != nil {
			return fmt.Errorf("reading domain %s: %w", e.name, err)
		}
		e.machine.definition = domain.Config
	}
	return e.agent.volumes.refresh(ctx, e.machine, volumes, open)
}

// mark writes the record into the definition and, when there is one, into the running guest.
func (e *execution) mark(ctx context.Context, record *domainxml.Record) error {
	content, err := record.Element()
	if err != nil {
		return err
	}
	if err := e.agent.hypervisor.SetMetadata(ctx, e.name, domainxml.MetadataPrefix, domainxml.MetadataURI, content); err != nil {
		return fmt.Errorf("writing the record of %s: %w", e.name, err)
	}
	return nil
}
