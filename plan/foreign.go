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
