package domainxml

import (
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// The PCI Express slots of a guest, as KubeVirt hands them out (pkg/virt-launcher/virtwrap, calculateHotplugPortCountV2): 8, and never
// fewer than 3 free ones for what is plugged in later; twice as many for guests of more than 2 GiB. libvirt by itself leaves one.
const (
	smallGuestSlots, smallGuestFree = 8, 3
	largeGuestSlots, largeGuestFree = 16, 6
	largeGuest                      = 2 << 30
)

// rootPorts writes the root ports into which PCI devices are plugged. Those of the manifest are given the first ones by libvirt.
func (r *renderer) rootPorts() {
	if !r.hasRootPorts() {
		return
	}
	slots, free := smallGuestSlots, smallGuestFree
	if r.memory > largeGuest {
		slots, free = largeGuestSlots, largeGuestFree
	}
	counted, others := r.slotsInUse()
	for index := range uint(max(slots-counted, free) + counted + others) {
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

// slotsInUse counts the devices that have a slot from the beginning: those that KubeVirt counts (pkg/virt-launcher/virtwrap/converter,
// CountPCIDevices), and how many more or fewer slots libvirt gives to what there is. KubeVirt's count has the USB controller and
// the balloon also when there is none; it has no filesystems, for which libvirt makes ports of their own there.
func (r *renderer) slotsInUse() (counted, others int) {
	devices := &r.spec.Domain.Devices
	transitional := isTrue(devices.UseVirtioTransitional) // they are on a bridge, for which libvirt makes a port
	count := func(there, elsewhere bool) {
		if there {
			counted++
		}
		if there && elsewhere {
			others--
		}
	}
	more := func(there bool) {
		if there {
			others++
		}
	}
	count(true, !r.usb())
	count(true, transitional || !notFalse(devices.AutoattachMemBalloon))
	count(!devices.DisableHotplug || r.usesBus(kubevirtv1.DiskBusSCSI), transitional)
	serial := notFalse(devices.AutoattachSerialConsole)
	count(serial, transitional)
	more(!serial) // libvirt makes the controller all the same, for the guest agent's channel
	count(devices.Rng != nil, transitional)
	for i := range devices.Disks {
		count(r.deviceOf(&devices.Disks[i]).bus == kubevirtv1.DiskBusVirtio, transitional)
	}
	for i := range devices.Interfaces {
		in := &devices.Interfaces[i]
		virtio := in.Model == "" || in.Model == kubevirtv1.VirtIO
		count(in.SRIOV == nil && in.State != kubevirtv1.InterfaceStateAbsent, conventional[in.Model] || virtio && transitional)
	}
	for i := range devices.Inputs {
		count(devices.Inputs[i].Bus == kubevirtv1.InputBusVirtio, false)
	}
	for i := range r.host.Assignment.Devices {
		count(r.host.Assignment.Devices[i].Type == DevicePCI, false)
		more(r.host.Assignment.Devices[i].Type == DeviceMDev)
	}
	count(devices.Watchdog != nil, true)
	more(isTrue(devices.AutoattachVSOCK))
	return counted, others + len(devices.Filesystems)
}

// conventional are the models of network cards that libvirt puts on a bridge to PCI.
var conventional = map[string]bool{"e1000": true, "rtl8139": true}
