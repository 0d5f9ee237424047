package fake

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

// Validate implements hypervisor.Hypervisor.
func (h *Hypervisor) Validate(ctx context.Context, definition string) error {
	parsed, parseErr := parse(definition)
	if err := h.enter(ctx, Validate, parsed.name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	if parseErr != nil {
		return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, parseErr)
	}
	return h.conflict(&parsed)
}

// AttachDevice implements hypervisor.Hypervisor.
func (h *Hypervisor) AttachDevice(ctx context.Context, name, device string) error {
	return h.changeDevice(ctx, AttachDevice, name, device, attach)
}

// DetachDevice implements hypervisor.Hypervisor. A guest that KeepsDevices is not waited for.
func (h *Hypervisor) DetachDevice(ctx context.Context, name, device string) error {
	return h.changeDevice(ctx, DetachDevice, name, device, detach)
}

// UpdateDevice implements hypervisor.Hypervisor.
func (h *Hypervisor) UpdateDevice(ctx context.Context, name, device string) error {
	return h.changeDevice(ctx, UpdateDevice, name, device, update)
}

func (h *Hypervisor) changeDevice(ctx context.Context, method Method, name, device string, change func(*domain, *devicexml.Device, string) error) error {
	named, err := devicexml.Parse(device)
	if err == nil && !devices[named.Kind] {
		err = fmt.Errorf("unknown device type '%s'", named.Kind)
	}
	return h.changeLive(ctx, method, name, &named, func(d *domain) error {
		if err != nil {
			return fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err)
		}
		return change(d, &named, strings.TrimSpace(device))
	})
}

// SetVCPUs implements hypervisor.Hypervisor. A guest gives vCPUs back only after GivesVCPUsBack.
func (h *Hypervisor) SetVCPUs(ctx context.Context, name string, count uint) error {
	return h.changeLive(ctx, SetVCPUs, name, nil, func(d *domain) error {
		size, err := sizeOf(d.Live)
		switch {
		case err != nil:
			return err
		case count == 0 || count > size.VCPU.Max:
			return refused("requested vcpus is greater than max allowable vcpus for the live domain: %d > %d", count, size.VCPU.Max)
		case count < size.vcpus() && !d.givesVCPUs:
			return refused("vcpu unplug request timed out")
		}
		d.Live = setVCPUs(d.Live, count, size.VCPU.Max)
		return nil
	})
}

// SetMemory implements hypervisor.Hypervisor. The guest follows at once.
func (h *Hypervisor) SetMemory(ctx context.Context, name string, kib uint64) error {
	return h.changeLive(ctx, SetMemory, name, nil, func(d *domain) error {
		size, err := sizeOf(d.Live)
		switch {
		case err != nil:
			return err
		case kib == 0 || kib > size.Memory.kib():
			return refused("cannot set memory higher than max memory")
		case size.Balloon.Model == "none":
			return refused("cannot set memory of an active domain without a balloon")
		}
		d.Live = setKiB(d.Live, "currentMemory", kib+size.virtioMem())
		return nil
	})
}

// ResizeDisk implements hypervisor.Hypervisor. It remembers the size, for DiskSize, and has no image.
func (h *Hypervisor) ResizeDisk(ctx context.Context, name, target string, bytes uint64) error {
	return h.changeLive(ctx, ResizeDisk, name, nil, func(d *domain) error {
		list, err := devicexml.List(d.Live)
		if err != nil {
			return err
		}
		switch _, found := devicexml.Find(list, &devicexml.Device{Kind: "disk", Target: target}); {
		case !found:
			return refused("disk '%s' was not found in the domain config", target)
		case bytes < d.sizes[target]:
			return refused("the disk has %d bytes and does not shrink to %d", d.sizes[target], bytes)
		}
		d.setDiskSize(target, bytes)
		return nil
	})
}

// LiveChanges implements hypervisor.Hypervisor.
func (h *Hypervisor) LiveChanges(ctx context.Context, _ string) ([]hypervisor.LiveChange, error) {
	if err := h.enter(ctx, LiveChanges, ""); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	return slices.Clone(h.able), nil
}

// needs returns the live change that a call is.
func needs(method Method, device *devicexml.Device) hypervisor.LiveChange {
	switch {
	case method == SetVCPUs:
		return hypervisor.LiveCPU
	case method == SetMemory:
		return hypervisor.LiveBalloon
	case method == ResizeDisk:
		return hypervisor.LiveDiskGrow
	case device.Kind == "memory":
		return hypervisor.LiveMemory
	case device.Kind == "disk" && method == UpdateDevice:
		return hypervisor.LiveMedia
	case device.Kind == "interface" && method == UpdateDevice:
		return hypervisor.LiveLink
	case device.Kind == "interface":
		return hypervisor.LiveInterface
	}
	return hypervisor.LiveDisk
}

// changeLive changes a running guest, if it is one.
func (h *Hypervisor) changeLive(ctx context.Context, method Method, name string, device *devicexml.Device, change func(*domain) error) error {
	if err := h.enter(ctx, method, name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return err
	}
	before := d.Live
	switch need := needs(method, device); {
	case !d.State.Active():
		err = hypervisor.ErrNotRunning
	case !slices.Contains(h.able, need):
		err = refused("this host lacks %s", need)
	default:
		err = change(d)
	}
	if err != nil {
		return fmt.Errorf("change domain %q: %w", name, err)
	}
	if d.Live != before {
		h.emit(hypervisor.Event{Kind: hypervisor.EventChanged, Name: name})
	}
	return nil
}

// refused is what libvirt does not do, in its words.
func refused(format string, arguments ...any) error {
	return fmt.Errorf("%w: %w", hypervisor.ErrRefused, fmt.Errorf(format, arguments...))
}
