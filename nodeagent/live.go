package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// ErrNotLive says that the running guest cannot become what the step wants without a restart. The agent remembers it and tells it
// (Domain.live_refused), so that a new plan restarts the guest.
var ErrNotLive = errors.New("the running guest cannot be changed so without a restart")

// notLiveError is ErrNotLive with its reason.
type notLiveError struct{ reason string }

func (e *notLiveError) Error() string { return ErrNotLive.Error() + ": " + e.reason }

func (e *notLiveError) Is(target error) bool { return target == ErrNotLive }

// refusal is what one run of a guest could not be given.
type refusal struct {
	run, hash, reason string
}

// refusals are the last ones, by domain. They hold for one run of the guest; losing them costs one more try.
type refusals struct {
	mu  sync.Mutex
	all map[string]refusal
}

func newRefusals() *refusals { return &refusals{all: map[string]refusal{}} }

// of returns what a run of a guest refused last; the zero refusal for nothing.
func (r *refusals) of(name, run string) refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if refused := r.all[name]; refused.run == run && run != "" {
		return refused
	}
	return refusal{}
}

func (r *refusals) note(name string, refused refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[name] = refused
}

func (r *refusals) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, name)
}

// changesGuest reports whether the step is to change the guest that runs.
func (e *execution) changesGuest() bool {
	return e.request.GetLive() && e.request.GetPower() == "" && !e.request.GetReplace() && e.active()
}

// operations works out what makes the running guest what a record stands for. Nothing is touched.
func (e *execution) operations(ctx context.Context, record *domainxml.Record) ([]domainxml.Operation, error) {
	if refused := e.agent.refusals.of(e.name, e.now.domain.ID); refused.hash == record.Hash {
		return nil, &notLiveError{refused.reason}
	}
	domain, err := e.agent.hypervisor.Domain(ctx, e.name)
	if err != nil {
		return nil, fmt.Errorf("reading domain %s: %w", e.name, err)
	}
	return e.compared(record, domain)
}

func (e *execution) compared(record *domainxml.Record, domain hypervisor.Domain) ([]domainxml.Operation, error) {
	was, err := e.agent.machineOf(e.now.running)
	if err != nil {
		return nil, err
	}
	want := was
	if !e.restoring {
		want = record.Machine(e.machine.spec(), e.agent.host(e.made, e.machine.spec()))
	}
	operations, err := domainxml.Live(was, want, domain.Live)
	var not *domainxml.NotLiveError
	switch {
	case errors.As(err, &not):
		return nil, &notLiveError{not.Error()}
	case err != nil:
		return nil, fmt.Errorf("%w: comparing the running guest: %w", ErrInvalid, err)
	}
	return operations, nil
}

// machineOf is the machine that a record stands for.
func (a *Agent) machineOf(record *domainxml.Record) (domainxml.Machine, error) {
	object, _, err := schemas.ParseRecord(record.Spec, true)
	if err != nil {
		return domainxml.Machine{}, fmt.Errorf("%w: reading the record of the running guest: %w", ErrInvalid, err)
	}
	spec := &object.Spec.Template.Spec
	return record.Machine(spec, a.host(record.Made(), spec)), nil
}

// refuse remembers what this run of the guest cannot be given, when that is the error.
func (e *execution) refuse(record *domainxml.Record, err error) error {
	var not *notLiveError
	if errors.As(err, &not) {
		e.agent.refusals.note(e.name, refusal{run: e.now.domain.ID, hash: record.Hash, reason: not.reason})
	}
	return err
}

// change makes the running guest what was defined for it, operation by operation, and marks it as that. A step that ends
// in between is finished by the next one: what is done already shows in the guest's XML.
func (e *execution) change(ctx context.Context, record *domainxml.Record, operations []domainxml.Operation) error {
	before := e.now.running
	if err := e.carryOut(ctx, record, operations); err != nil {
		return err
	}
	if err := e.noteGrown(ctx, record, before); err != nil {
		return err
	}
	record.Pending = 0
	if err := e.mark(ctx, record); err != nil {
		return err
	}
	return e.agent.volumes.dropUnused(ctx, e.made, before.Volumes, record.Volumes)
}

// carryOut makes operations in the running guest and waits until it has what they bring.
func (e *execution) carryOut(ctx context.Context, record *domainxml.Record, operations []domainxml.Operation) error {
	for _, operation := range operations {
		e.progress(operation.Text)
		switch err := e.operate(ctx, operation); {
		case errors.Is(err, hypervisor.ErrRefused):
			_, reason, _ := strings.Cut(err.Error(), hypervisor.ErrRefused.Error()+": ")
			return e.refuse(record, &notLiveError{operation.Text + ": " + reason})
		case errors.Is(err, hypervisor.ErrNotRunning), errors.Is(err, hypervisor.ErrNotFound):
			return fmt.Errorf("%w: the guest of %s has ended", ErrStale, e.name)
		case err != nil:
			return fmt.Errorf("%s of %s: %w", operation.Text, e.name, err)
		}
	}
	if len(operations) > 0 {
		if err := e.arrived(ctx, record); err != nil {
			return err
		}
	}
	e.agent.refusals.forget(e.name)
	return nil
}

func (e *execution) operate(ctx context.Context, operation domainxml.Operation) error {
	h := e.agent.hypervisor
	switch operation.Kind {
	case domainxml.OperationDetach:
		return h.DetachDevice(ctx, e.name, operation.Device)
	case domainxml.OperationUpdate:
		return h.UpdateDevice(ctx, e.name, operation.Device)
	case domainxml.OperationReinsert:
		if err := h.UpdateDevice(ctx, e.name, operation.Empty); err != nil {
			return err
		}
		return h.UpdateDevice(ctx, e.name, operation.Device)
	case domainxml.OperationAttach:
		return h.AttachDevice(ctx, e.name, operation.Device)
	case domainxml.OperationResize:
		return h.ResizeDisk(ctx, e.name, operation.Target, operation.Bytes)
	case domainxml.OperationMemory:
		return h.SetMemory(ctx, e.name, operation.KiB)
	case domainxml.OperationVCPUs:
		return h.SetVCPUs(ctx, e.name, operation.VCPUs)
	}
	return fmt.Errorf("%w: unknown change %q", ErrInvalid, operation.Kind)
}

// arrived reads the guest again and waits until it has what it was given. Hardware is there at once; memory is the guest's
// to put to use or to give back.
func (e *execution) arrived(ctx context.Context, record *domainxml.Record) error {
	deadline := time.NewTimer(e.agent.config.Patience)
	defer deadline.Stop()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		domain, err := e.agent.hypervisor.Domain(ctx, e.name)
		if err != nil {
			return fmt.Errorf("reading domain %s: %w", e.name, err)
		}
		if domain.Live == "" {
			return fmt.Errorf("%w: the guest of %s has ended", ErrStale, e.name)
		}
		left, err := e.compared(record, domain)
		if err != nil {
			return e.refuse(record, err)
		}
		waiting := domainxml.MemoryOnItsWay(domain.Live)
		for _, operation := range left {
			switch operation.Kind {
			case domainxml.OperationMemory:
				waiting = fmt.Sprintf("the guest does not follow its balloon to %d MiB: it needs the memory, or has no driver", operation.KiB>>10)
			case domainxml.OperationResize, domainxml.OperationReinsert:
				// No XML says how large a disk is, or what is on a medium.
			default:
				return fmt.Errorf("%s of %s: done, and yet not in the running guest", operation.Text, e.name)
			}
		}
		if waiting == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the guest of %s: %w", e.name, context.Cause(ctx))
		case <-deadline.C:
			return e.refuse(record, &notLiveError{waiting})
		case <-look.C:
		}
	}
}

// noteGrown writes down how large the disks are that have grown.
func (e *execution) noteGrown(ctx context.Context, record, before *domainxml.Record) error {
	for _, volume := range record.Volumes {
		at := slices.IndexFunc(before.Volumes, func(old domainxml.Volume) bool { return old.Name == volume.Name && old.Path == volume.Path })
		if at < 0 || before.Volumes[at].Capacity >= volume.Capacity || !keeps(volume.Kind) {
			continue
		}
		if err := e.agent.volumes.grown(ctx, volume.Path, volume.Capacity); err != nil {
			return fmt.Errorf("disk %s: %w", volume.Name, err)
		}
	}
	return nil
}

// dropUnused removes what was made for volumes that a running guest has no more, as far as it goes with the VM.
func (v *volumes) dropUnused(ctx context.Context, address schemas.Address, before, now []domainxml.Volume) error {
	for _, volume := range before {
		used := slices.ContainsFunc(now, func(other domainxml.Volume) bool { return other.Path == volume.Path })
		if used || keeps(volume.Kind) {
			continue
		}
		if err := v.drop(ctx, address, volume.Path); err != nil {
			return fmt.Errorf("removing what volume %s was made of: %w", volume.Name, err)
		}
	}
	return nil
}

// largest returns a volume that a running guest has with the size that the manifest wants by now. What grows is left to
// QEMU, or to the next power-on; nothing shrinks.
func (v *volumes) largest(m *machine, kept, planned domainxml.Volume) (domainxml.Volume, error) {
	claim := m.claim(kept.Name)
	const sector = 512
	capacity := (planned.Capacity + sector - 1) / sector * sector
	switch {
	case capacity == 0 || kept.Capacity == 0 || kept.Kind == "hostDisk" || kept.Block || claim.Path != "" || claim.Shared:
		return kept, nil
	case capacity < kept.Capacity:
		return kept, fmt.Errorf("volume %s: it has %s and the manifest asks for %s; ask for at least as much, or use a new volume and copy the data: %w",
			kept.Name, diskfile.FormatBytes(kept.Capacity), diskfile.FormatBytes(capacity), disks.ErrShrink)
	}
	kept.Capacity = capacity
	return kept, nil
}
