package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	record := e.record(volumes, before)
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
	switch {
	case e.request.GetReplace() && e.defined():
		err = e.replace(ctx, before, record, definition)
	case e.written(before, record):
		// The trace may still be missing: it is left after the definition.
		err = e.agent.records.put(record)
	default:
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

// record is what the domain will carry. A domain that was adopted has the UUID that it had, until it is made anew for another.
func (e *execution) record(volumes []domainxml.Volume, before *domainxml.Record) *domainxml.Record {
	record := e.machine.record(volumes, before)
	if firmware := e.machine.spec().Domain.Firmware; record.UUID != "" && e.request.GetReplace() && firmware != nil && firmware.UUID != "" {
		record.UUID = strings.ToLower(string(firmware.UUID))
	}
	return record
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

// replace makes the domain anew. What it is to be is its trace before the old one goes: a step that ends in between leaves a domain
// that is missing, and is made with the name, the disks and the old definition that are its own.
func (e *execution) replace(ctx context.Context, before, record *domainxml.Record, definition string) error {
	trace := *record
	trace.Replacing = true
	var err error
	if trace.Closed, err = e.agent.hypervisor.HasPasswords(ctx, e.name); err != nil {
		return fmt.Errorf("making %s anew: %w", e.name, err)
	}
	if err := e.agent.records.put(&trace); err != nil {
		return err
	}
	if power := e.request.GetPower(); power == "on" || power == "cycle" {
		if err := e.agent.keeper.hold(); err != nil {
			return err
		}
	}
	if err := e.stop(ctx); err != nil {
		return err
	}
	if !e.defined() { // it was transient, and went with its guest
		e.now = missing(&trace)
		return e.write(ctx, record, definition)
	}
	e.progress("defining " + e.name + " anew")
	if err := e.agent.hypervisor.Replace(ctx, definition); err != nil {
		if e.read(ctx) == nil && e.defined() {
			err = errors.Join(err, e.agent.records.put(before)) // nothing is being replaced any more
		}
		return fmt.Errorf("defining %s anew: %w", e.name, err)
	}
	return e.agent.records.put(record)
}

// write defines the domain and leaves its trace. Where passwords of screens were lost in a replacement that was interrupted, nobody is
// let in until there are others: a screen without one would be open to everybody.
func (e *execution) write(ctx context.Context, record *domainxml.Record, definition string) error {
	if !e.defined() && e.now != nil && e.now.record.Closed {
		var err error
		if definition, err = domainxml.CloseScreens(definition); err != nil {
			return err
		}
		e.progress("the passwords of its screens were lost; they let nobody in until passwords are set (virsh edit " + e.name + ")")
	}
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
