package fake

import (
	"context"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Validate is not there yet.
func (h *Hypervisor) Validate(context.Context, string) error { return hypervisor.ErrRefused }

// AttachDevice is not there yet.
func (h *Hypervisor) AttachDevice(context.Context, string, string) error {
	return hypervisor.ErrRefused
}

// DetachDevice is not there yet.
func (h *Hypervisor) DetachDevice(context.Context, string, string) error {
	return hypervisor.ErrRefused
}

// UpdateDevice is not there yet.
func (h *Hypervisor) UpdateDevice(context.Context, string, string) error {
	return hypervisor.ErrRefused
}

// SetVCPUs is not there yet.
func (h *Hypervisor) SetVCPUs(context.Context, string, uint) error { return hypervisor.ErrRefused }

// SetMemory is not there yet.
func (h *Hypervisor) SetMemory(context.Context, string, uint64) error { return hypervisor.ErrRefused }

// ResizeDisk is not there yet.
func (h *Hypervisor) ResizeDisk(context.Context, string, string, uint64) error {
	return hypervisor.ErrRefused
}
