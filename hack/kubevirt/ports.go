package main

import (
	_ "unsafe" // for go:linkname

	v1 "kubevirt.io/api/core/v1"

	"kubevirt.io/kubevirt/pkg/defaults"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap"
	"kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap/api"
)

// virt-launcher adds free PCI slots when it defines the domain, in functions that are its own.

//go:linkname calculatePlaceholderCount kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap.calculatePlaceholderCount
func calculatePlaceholderCount(*v1.VirtualMachineInstance) (int, error)

//go:linkname calculateExtraControllerCount kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap.calculateExtraControllerCount
func calculateExtraControllerCount(*v1.VirtualMachineInstance, *api.DomainSpec, int) (int, error)

//go:linkname appendPCIeRootPortControllers kubevirt.io/kubevirt/pkg/virt-launcher/virtwrap.appendPCIeRootPortControllers
func appendPCIeRootPortControllers(*api.DomainSpec, int)

// The linker has to see the package of the functions.
var _ virtwrap.DomainManager

// addFreePorts writes the root ports that stay free when libvirt has placed the devices: as virt-launcher's
// allocateHotplugPorts, which has libvirt make the ports of its placeholders and takes those away again.
func addFreePorts(vmi *v1.VirtualMachineInstance, spec *api.DomainSpec) error {
	if !defaults.SupportsPCIeHotplug(&vmi.Spec) {
		return nil
	}
	placeholders, err := calculatePlaceholderCount(vmi)
	if err != nil {
		return err
	}
	extra, err := calculateExtraControllerCount(vmi, spec, placeholders)
	if err != nil {
		return err
	}
	appendPCIeRootPortControllers(spec, placeholders+extra)
	return nil
}
