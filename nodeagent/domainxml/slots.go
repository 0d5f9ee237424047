package domainxml

import (
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// The PCI Express slots of a guest, as KubeVirt hands them out (pkg/virt-launcher/virtwrap): 8, and never fewer than 3 free ones for
// what is plugged in later; twice as many for guests from 2 GiB on. libvirt by itself leaves one.
const (
	smallGuestSlots, smallGuestFree = 8, 3
	largeGuestSlots, largeGuestFree = 16, 6
	largeGuest                      = 2 << 30
)

// rootPorts writes the root ports into which PCI devices are plugged. Those of the manifest are given the first ones by libvirt.
func (r *renderer) rootPorts() {
	if !r.hasRootPorts() || r.spec.Domain.Devices.DisableHotplug {
		return
	}
	slots, free := uint(smallGuestSlots), uint(smallGuestFree)
	if r.memory >= largeGuest {
		slots, free = largeGuestSlots, largeGuestFree
	}
	for index := range max(slots, r.slotsInUse()+free) {
		r.leaf("controller", "type", "pci", "index", decimal(index+1), "model", rootPort)
	}
}

// hasRootPorts reports whether the machine has PCI Express.
func (r *renderer) hasRootPorts() bool {
	machine := r.arch.machine
	if r.spec.Domain.Machine != nil && r.spec.Domain.Machine.Type != "" {
		machine = r.spec.Domain.Machine.Type
	}
	switch r.arch.name {
	case "x86_64":
		return strings.Contains(machine, "q35")
	case "aarch64":
		return strings.HasPrefix(machine, "virt")
	}
	return false
}

// slotsInUse counts the devices that have a slot from the beginning. libvirt makes more ports when they are too few.
func (r *renderer) slotsInUse() uint {
	devices := &r.spec.Domain.Devices
	count := uint(len(devices.Filesystems))
	add := func(used bool) {
		if used {
			count++
		}
	}
	for i := range devices.Disks {
		add(r.deviceOf(&devices.Disks[i]).bus == kubevirtv1.DiskBusVirtio)
	}
	for i := range devices.Interfaces {
		add(devices.Interfaces[i].SRIOV == nil && devices.Interfaces[i].State != kubevirtv1.InterfaceStateAbsent)
	}
	for i := range r.host.Assignment.Devices {
		add(r.host.Assignment.Devices[i].Type != DeviceUSB)
	}
	for i := range devices.Inputs {
		add(devices.Inputs[i].Bus == kubevirtv1.InputBusVirtio)
	}
	add(r.usb())
	add(true) // the SCSI controller
	add(notFalse(devices.AutoattachSerialConsole))
	add(notFalse(devices.AutoattachMemBalloon))
	add(devices.Rng != nil)
	add(isTrue(devices.AutoattachVSOCK))
	add(devices.Watchdog != nil)
	add(devices.Video != nil && devices.Video.Type == kubevirtv1.VirtIO)
	return count
}
