package plan

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// describe says in a few lines what a new VM is made of.
func describe(vm *schemas.VM, inPod bool) []string {
	spec := vm.Spec()
	vcpus, memory := domainxml.Size(spec)
	lines := []string{fmt.Sprintf("%d vCPU%s, %d MiB memory", vcpus, plural(int(vcpus)), memory>>20)}
	for _, volume := range spec.Volumes {
		kind, keep := domainxml.VolumeKind(volume)
		line := fmt.Sprintf("disk %s: %s", volume.Name, kind)
		switch {
		case volume.ContainerDisk != nil:
			line += " " + volume.ContainerDisk.Image
		case volume.EmptyDisk != nil:
			line += " " + volume.EmptyDisk.Capacity.String()
		case volume.HostDisk != nil:
			line += " " + volume.HostDisk.Path
		}
		if claim, ok := vm.Claims[volume.Name]; ok {
			line += " " + claim.Name
			if claim.Capacity > 0 {
				line += " " + resource.NewQuantity(claim.Capacity, resource.BinarySI).String()
			}
		}
		if outlives(volume, keep, inPod) {
			line += ", outlives the VM"
		}
		lines = append(lines, line)
	}
	var networks []string
	for _, in := range spec.Domain.Devices.Interfaces {
		networks = append(networks, in.Name)
	}
	if len(networks) > 0 {
		lines = append(lines, "network "+strings.Join(networks, ", "))
	}
	return lines
}
