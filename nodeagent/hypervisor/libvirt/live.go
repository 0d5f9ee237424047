package libvirt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

const (
	// detachPatience is how long a guest may take to let go of a device.
	detachPatience = 30 * time.Second

	// trayTries is how often a medium is exchanged against a guest that uses the drive.
	trayTries = 3

	// detachInterval is how often libvirt is asked whether it has. The answer comes from its memory.
	detachInterval = 50 * time.Millisecond
)

// AttachDevice implements hypervisor.Hypervisor.
func (h *Hypervisor) AttachDevice(ctx context.Context, name, device string) error {
	return h.changeDevice(ctx, name, device, "attach a device to", func(dom *lv.Domain, old string, _ *devicexml.Device) error {
		if old != "" {
			// libvirt calls a target that is taken a fault of the element, and takes a second card with the same address.
			return &Error{Kind: hypervisor.ErrRefused, Cause: errors.New("it has a device with this target, MAC address or alias already")}
		}
		return dom.AttachDeviceFlags(device, lv.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

// UpdateDevice implements hypervisor.Hypervisor. The tray of a CD-ROM drive is the guest's as well: it locks it while a program
// reads it, and one that looks into the drive closes it while libvirt exchanges the medium. Then it is tried again.
func (h *Hypervisor) UpdateDevice(ctx context.Context, name, device string) error {
	for try := 1; ; try++ {
		if err := h.updateDevice(ctx, name, device); try == trayTries || !guestHasTray(err) {
			return err
		}
	}
}

// guestHasTray reports whether the guest did not open the tray of a drive when it was asked (libvirt waits some 5 s for it), or closed
// it again.
func guestHasTray(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "timed out waiting to open tray") || strings.Contains(err.Error(), "Tray of the device is not open"))
}

func (h *Hypervisor) updateDevice(ctx context.Context, name, device string) error {
	return h.changeDevice(ctx, name, device, "update a device of", func(dom *lv.Domain, old string, named *devicexml.Device) error {
		changed := device
		if named.Kind == "memory" {
			changed = devicexml.KeepAssigned(old, device) // libvirt looks for the memory at the address
		}
		return dom.UpdateDeviceFlags(changed, lv.DOMAIN_DEVICE_MODIFY_LIVE)
	})
}

// changeDevice changes a device of a running guest. change gets the element that the guest has, or "".
func (h *Hypervisor) changeDevice(ctx context.Context, name, device, what string, change func(dom *lv.Domain, old string, named *devicexml.Device) error) error {
	named, err := devicexml.Parse(device)
	if err != nil {
		return doing(fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err), what, name)
	}
	return doing(changeLive(ctx, h, name, func(dom *lv.Domain) error {
		old, err := find(dom, &named)
		if err != nil {
			return err
		}
		return change(dom, old, &named)
	}), what, name)
}

// find returns the element of a running guest's device, or "" when it has none of this name.
func find(dom *lv.Domain, named *devicexml.Device) (string, error) {
	live, err := dom.GetXMLDesc(0)
	if err != nil {
		return "", err
	}
	list, err := devicexml.List(live)
	if err != nil {
		return "", err
	}
	found, _ := devicexml.Find(list, named)
	return live[found.Start:found.End], nil
}

// DetachDevice implements hypervisor.Hypervisor. libvirt waits for the guest for some 5 s and then says nothing about it, so
// whether it is gone is read from the running definition. No event tells it better: one may be lost.
func (h *Hypervisor) DetachDevice(ctx context.Context, name, device string) error {
	const what = "detach a device from"
	named, err := devicexml.Parse(device)
	if err != nil {
		return doing(fmt.Errorf("%w: %w", hypervisor.ErrInvalid, err), what, name)
	}
	ctx, cancel := context.WithTimeout(ctx, detachPatience)
	defer cancel()
	var asked atomic.Bool
	err = h.detach(ctx, name, device, &named, &asked)
	if errors.Is(err, context.DeadlineExceeded) && asked.Load() {
		err = fmt.Errorf("%w: the guest has not let go of the device in time: %w", hypervisor.ErrRefused, err)
	}
	return doing(err, what, name)
}

// detach asks a guest for a device and waits until it has let go. asked becomes true with the question.
func (h *Hypervisor) detach(ctx context.Context, name, device string, named *devicexml.Device, asked *atomic.Bool) error {
	before, err := h.devices(ctx, name)
	if err != nil {
		return err
	}
	err = changeLive(ctx, h, name, func(dom *lv.Domain) error {
		element := device
		if named.Named() { // libvirt compares more than the name
			var err error
			if element, err = find(dom, named); err != nil || element == "" {
				return err
			}
		}
		asked.Store(true)
		return dom.DetachDeviceFlags(element, lv.DOMAIN_DEVICE_MODIFY_LIVE)
	})
	switch {
	case hasCode(err, lv.ERR_DEVICE_MISSING):
		return nil
	case err != nil && !alreadyAsked(err):
		return err
	}
	ticker := time.NewTicker(detachInterval)
	defer ticker.Stop()
	for {
		now, err := h.devices(ctx, name)
		if err != nil || gone(before, now, named) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// alreadyAsked reports whether the guest was asked for the device before and may still let go: QEMU says so, and libvirt
// passes it on.
func alreadyAsked(err error) bool {
	var cause lv.Error
	return errors.As(err, &cause) && strings.Contains(cause.Message, "already in the process of unplug")
}

// gone reports whether a device is no longer there. One without a name was one of its kind.
func gone(before, now []devicexml.Device, named *devicexml.Device) bool {
	if named.Named() {
		_, found := devicexml.Find(now, named)
		return !found
	}
	return slices.ContainsFunc(before, func(d devicexml.Device) bool {
		_, found := devicexml.Find(now, &d)
		return d.Kind == named.Kind && !found
	})
}

// devices returns the devices of a running guest.
func (h *Hypervisor) devices(ctx context.Context, name string) ([]devicexml.Device, error) {
	live, err := call(ctx, h, quick, func(c *lv.Connect) (string, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return "", err
		}
		defer free(dom)
		live, err := dom.GetXMLDesc(0)
		if err != nil {
			return "", err
		}
		return live, running(dom) // of a domain that is off, this is no guest's
	})
	if err != nil {
		return nil, err
	}
	return devicexml.List(live)
}

// SetVCPUs implements hypervisor.Hypervisor.
func (h *Hypervisor) SetVCPUs(ctx context.Context, name string, count uint) error {
	err := changeLive(ctx, h, name, func(dom *lv.Domain) error {
		err := dom.SetVcpusFlags(count, lv.DOMAIN_VCPU_LIVE)
		if hasCode(err, lv.ERR_OPERATION_TIMEOUT) {
			// The guest was asked to give some back and has not answered, or another change of the domain takes long.
			now, nowErr := dom.GetVcpusFlags(lv.DOMAIN_VCPU_LIVE)
			if nowErr == nil && uint(max(now, 0)) > count {
				return &Error{Kind: hypervisor.ErrRefused, Cause: err}
			}
		}
		return err
	})
	return doing(err, "set the vCPUs of", name)
}

// SetMemory implements hypervisor.Hypervisor.
func (h *Hypervisor) SetMemory(ctx context.Context, name string, kib uint64) error {
	return doing(changeLive(ctx, h, name, func(dom *lv.Domain) error {
		return dom.SetMemoryFlags(kib, lv.DOMAIN_MEM_LIVE)
	}), "set the memory of", name)
}

// ResizeDisk implements hypervisor.Hypervisor.
func (h *Hypervisor) ResizeDisk(ctx context.Context, name, target string, bytes uint64) error {
	return doing(changeLive(ctx, h, name, func(dom *lv.Domain) error {
		info, err := dom.GetBlockInfo(target, 0)
		switch {
		case err != nil:
			return err
		case info.Capacity == bytes:
			return nil
		case info.Capacity > bytes:
			return &Error{Kind: hypervisor.ErrRefused, Cause: fmt.Errorf("the disk has %d bytes and does not shrink to %d", info.Capacity, bytes)}
		}
		return dom.BlockResize(target, bytes, lv.DOMAIN_BLOCK_RESIZE_BYTES)
	}), "resize disk "+target+" of", name)
}

// changeLive is withDomain for a change of a running guest.
func changeLive(ctx context.Context, h *Hypervisor, name string, change func(*lv.Domain) error) error {
	err := withDomain(ctx, h, name, func(dom *lv.Domain) error {
		if err := running(dom); err != nil {
			return err
		}
		err := change(dom)
		if off := running(dom); err != nil && errors.Is(off, hypervisor.ErrNotRunning) {
			return off // it went off in between, and libvirt says what that made impossible
		}
		return err
	})
	return refusal(err)
}

// running returns an error unless a domain has a guest.
func running(dom *lv.Domain) error {
	active, err := dom.IsActive()
	if err != nil {
		return err
	}
	if !active {
		return hypervisor.ErrNotRunning
	}
	return nil
}

// refusals are libvirt's error numbers for what it, its driver, QEMU or the guest does not do while the guest runs.
// INTERNAL_ERROR is what QEMU's own refusals become, and an address that cannot be had.
var refusals = []lv.ErrorNumber{
	lv.ERR_OPERATION_UNSUPPORTED, lv.ERR_OPERATION_INVALID, lv.ERR_OPERATION_FAILED, lv.ERR_OPERATION_DENIED,
	lv.ERR_CONFIG_UNSUPPORTED, lv.ERR_ARGUMENT_UNSUPPORTED, lv.ERR_NO_SUPPORT, lv.ERR_INVALID_ARG,
	lv.ERR_DEVICE_MISSING, lv.ERR_RESOURCE_BUSY, lv.ERR_INTERNAL_ERROR,
}

// refusal gives the error of a change of a running guest its kind, once it is known that the daemon is there.
func refusal(err error) error {
	var of *Error
	if !errors.As(err, &of) || (of.Kind != nil && !hasCode(err, lv.ERR_CONFIG_UNSUPPORTED)) || !hasCode(err, refusals...) {
		return err
	}
	if errors.Is(of.Kind, hypervisor.ErrUnavailable) {
		return err
	}
	return &Error{Kind: hypervisor.ErrRefused, Cause: of.Cause}
}
