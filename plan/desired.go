package plan

import (
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// FromDesired returns what a host would look like if it ran exactly what a revision wants, all guests in the power
// state that their run strategy asks for: the other side of a plan between two revisions, where there is no host. The host that is imagined can do
// everything for running guests.
func FromDesired(want *schemas.Desired, revision string) Observed {
	have := Observed{Node: "revision " + revision, Live: everything()}
	for _, vm := range want.VMs {
		domain := &Domain{
			Address: vm.Address, Name: domainxml.DomainName(vm.Address), Fleet: want.Fleet.Name, Revision: schemas.Provenance(vm.Position.Source, revision),
			Source: vm.Position.Short(), State: StateStopped, Hash: vm.Hash, Record: vm.Record, Fingerprint: vm.Hash,
		}
		if startsNew(vm) {
			domain.State, domain.Ran = StateRunning, true
			domain.RunningHash, domain.RunningRecord = vm.Hash, vm.Record
			domain.Headroom = headroomOf(vm.Spec())
		}
		for _, volume := range vm.Spec().Volumes {
			kind, keep := domainxml.VolumeKind(volume)
			domain.Disks = append(domain.Disks, Disk{Volume: volume.Name, Kind: kind, Keep: keep})
		}
		have.Domains = append(have.Domains, domain)
	}
	return have
}

// everything is what a host can do that can do all.
func everything() LiveSet {
	return LiveSet{LiveCPU, LiveMemory, LiveBalloon, LiveDisk, LiveDiskGrow, LiveMedia, LiveInterface, LiveLink}
}

// slotsToSpare is how many devices a guest can be given that nobody has given any: what the smallest has free.
const slotsToSpare = 3

// headroomOf returns what a guest can be changed to that was just started.
func headroomOf(spec *kubevirtv1.VirtualMachineInstanceSpec) *Headroom {
	vcpus, memory := domainxml.Size(spec)
	room := &Headroom{MaxVCPUs: uint32(vcpus), FreePCISlots: slotsToSpare} //nolint:gosec // what a guest can have is bounded
	if cpu := spec.Domain.CPU; cpu != nil {
		room.MaxVCPUs = max(room.MaxVCPUs, cpu.MaxSockets*max(cpu.Cores, 1)*max(cpu.Threads, 1))
	}
	if most := spec.Domain.Memory; most != nil && most.MaxGuest != nil {
		room.MaxMemoryBytes = uint64(max(most.MaxGuest.Value(), 0))
	}
	if balloon := spec.Domain.Devices.AutoattachMemBalloon; balloon == nil || *balloon {
		room.BalloonBytes = uint64(memory)
	}
	return room
}
