package domainxml

import (
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// architecture is what differs between guests of different processors, after KubeVirt's rules for each
// (pkg/virt-launcher/virtwrap/converter/arch and pkg/defaults/arch).
type architecture struct {
	// name is libvirt's, machine the default machine type.
	name, machine string
	// diskBus is that of disks whose manifest names none.
	diskBus kubevirtv1.DiskBus
	// cpuModel is the default one.
	cpuModel string
	// acpi says that machines can have ACPI, smbios that they have SMBIOS tables.
	acpi, smbios bool
	// pci says that virtio devices are PCI ones, with option ROMs; else they are channel devices.
	pci bool
	// cpuHotplug says that vCPUs can be added to a running guest.
	cpuHotplug bool
	// vmport says that there is VMware's I/O port, which is switched off.
	vmport bool
}

func architectureOf(spec *kubevirtv1.VirtualMachineInstanceSpec) (architecture, error) {
	switch spec.Architecture {
	case "", "amd64":
		return architecture{
			name: "x86_64", machine: "q35", diskBus: kubevirtv1.DiskBusSATA, cpuModel: kubevirtv1.CPUModeHostModel,
			acpi: true, smbios: true, pci: true, cpuHotplug: true, vmport: true,
		}, nil
	case "arm64":
		return architecture{
			name: "aarch64", machine: "virt", diskBus: kubevirtv1.DiskBusVirtio, cpuModel: kubevirtv1.CPUModeHostPassthrough,
			acpi: true, smbios: true, pci: true,
		}, nil
	case "s390x":
		return architecture{
			name: "s390x", machine: "s390-ccw-virtio", diskBus: kubevirtv1.DiskBusVirtio, cpuModel: kubevirtv1.CPUModeHostModel,
			cpuHotplug: true,
		}, nil
	}
	return architecture{}, fmt.Errorf("architecture %q is none of amd64, arm64, s390x", spec.Architecture)
}

// virtioModel is the model of virtio devices: KubeVirt gives modern guests the non-transitional one. Both are PCI devices.
func (a architecture) virtioModel(spec *kubevirtv1.VirtualMachineInstanceSpec) string {
	switch {
	case !a.pci:
		return "virtio"
	case isTrue(spec.Domain.Devices.UseVirtioTransitional):
		return "virtio-transitional"
	}
	return "virtio-non-transitional"
}
