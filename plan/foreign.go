package plan

import (
	"fmt"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// foreignIndex finds the domains of others that stand in the way of a new one.
type foreignIndex struct {
	byName map[string]Foreign
	byUUID map[string]string
	byMAC  map[string]string
}

func newForeignIndex(foreign []Foreign) foreignIndex {
	index := foreignIndex{byName: map[string]Foreign{}, byUUID: map[string]string{}, byMAC: map[string]string{}}
	for _, domain := range foreign {
		index.byName[domain.Name] = domain
		index.byUUID[strings.ToLower(domain.UUID)] = domain.Name
		for _, mac := range domain.MACs {
			index.byMAC[strings.ToLower(mac)] = domain.Name
		}
	}
	return index
}

// clash says which domain of others has the VM's name, UUID or one of its MAC addresses, or "".
func (index foreignIndex) clash(vm *schemas.VM) string {
	if len(index.byName) == 0 {
		return ""
	}
	name := domainxml.DomainName(vm.Address)
	if _, ok := index.byName[name]; ok {
		return fmt.Sprintf("a domain named %s exists on the host and is not gitvirt's; rename or remove one of the two", name)
	}
	identity := domainxml.IdentityOf(vm.Address, vm.Spec())
	if other, ok := index.byUUID[identity.UUID]; ok {
		return fmt.Sprintf("the domain %s on the host has the UUID %s; set another spec.template.spec.domain.firmware.uuid", other, identity.UUID)
	}
	for _, mac := range identity.MACs {
		if other, ok := index.byMAC[mac]; ok {
			return fmt.Sprintf("the domain %s on the host has the MAC address %s; set another macAddress", other, mac)
		}
	}
	return ""
}

// FromDesired returns what a host would look like if it ran exactly what a revision wants, all guests in the power
// state that their run strategy asks for: the other side of a plan between two revisions, where there is no host.
func FromDesired(want *schemas.Desired, revision string) Observed {
	have := Observed{Node: "revision " + revision}
	for _, vm := range want.VMs {
		domain := &Domain{
			Address: vm.Address, Name: domainxml.DomainName(vm.Address), Fleet: want.Fleet.Name, Revision: revision,
			Source: vm.Position.Short(), State: StateStopped, Hash: vm.Hash, Record: vm.Record, Fingerprint: vm.Hash,
		}
		if startsNew(vm) {
			domain.State, domain.Ran = StateRunning, true
			domain.RunningHash, domain.RunningRecord = vm.Hash, vm.Record
		}
		for _, volume := range vm.Spec().Volumes {
			kind, keep := domainxml.VolumeKind(volume)
			domain.Disks = append(domain.Disks, Disk{Volume: volume.Name, Kind: kind, Keep: keep})
		}
		have.Domains = append(have.Domains, domain)
	}
	return have
}
