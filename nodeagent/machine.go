package nodeagent

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// machine is the VM that a step wants.
type machine struct {
	address schemas.Address
	// made is the address that the domain was made under, which its files are named after.
	made schemas.Address
	// kept is what an adopted domain was; nil for others.
	kept   *domainxml.Kept
	object *kubevirtv1.VirtualMachine
	wire   *api.VM
	// definition is the domain's XML once it is defined, where a config drive finds the addresses of tagged devices.
	definition string

	// contents remembers what volumes hold that are made of files: it is asked for when the machine is defined, and once more when
	// it is written.
	contents rememberedContents
}

func readMachine(address schemas.Address, wire *api.VM) (*machine, error) {
	m := &machine{address: address, made: address, object: &kubevirtv1.VirtualMachine{}, wire: wire}
	if err := json.Unmarshal(wire.GetObject(), m.object); err != nil {
		return nil, fmt.Errorf("%w: reading the VM of %s: %w", ErrInvalid, address, err)
	}
	if m.object.Spec.Template == nil || len(wire.GetRecord()) == 0 || wire.GetHash() == "" {
		return nil, fmt.Errorf("%w: the VM of %s has no template, record or hash", ErrInvalid, address)
	}
	for _, volume := range m.spec().Volumes {
		if problems := validation.IsDNS1123Label(volume.Name); len(problems) > 0 {
			return nil, fmt.Errorf("%w: volume %q of %s: %s", ErrInvalid, volume.Name, address, problems[0])
		}
	}
	return m, nil
}

// adopted returns the disk of an adopted domain that a volume names; nil for any other. Such a disk is left as it is: gitvirt neither makes
// nor checks it.
func (m *machine) adopted(source kubevirtv1.Volume) *domainxml.Volume {
	if source.HostDisk == nil {
		return nil
	}
	found := m.kept.Volume("hostDisk", source.HostDisk.Path)
	if found == nil {
		return nil
	}
	out := *found
	out.Name = source.Name
	return &out
}

// checkNames refuses names that could leave the state directory: the agent trusts no caller with its paths.
func checkNames(address schemas.Address) error {
	if problems := validation.IsDNS1123Label(address.Namespace); len(problems) > 0 {
		return fmt.Errorf("%w: namespace %q: %s", ErrInvalid, address.Namespace, problems[0])
	}
	if problems := validation.IsDNS1123Subdomain(address.Name); len(problems) > 0 {
		return fmt.Errorf("%w: name %q: %s", ErrInvalid, address.Name, problems[0])
	}
	return nil
}

func (m *machine) spec() *kubevirtv1.VirtualMachineInstanceSpec { return &m.object.Spec.Template.Spec }

// record is what the domain will carry. before is what it carries, nil for one that is new: what the domain is does not change with what
// git says of it.
func (m *machine) record(volumes []domainxml.Volume, before *domainxml.Record) *domainxml.Record {
	record := &domainxml.Record{
		Address: m.address, Fleet: m.wire.GetFleet(), Revision: m.wire.GetRevision(), Source: m.wire.GetSource(),
		Hash: m.wire.GetHash(), Spec: m.wire.GetRecord(), Volumes: volumes,
	}
	if before == nil {
		return record
	}
	record.Domain, record.UUID, record.Kept, record.Origin, record.Former = before.Domain, before.UUID, before.Kept, before.Origin, before.Former
	if before.Address != m.address {
		record.Former = append(slices.Clone(before.Former), before.Address)
		record.Former = slices.DeleteFunc(record.Former, func(former schemas.Address) bool { return former == m.address })
		record.Origin = before.Made()
	}
	if record.Origin == m.address {
		record.Origin = schemas.Address{}
	}
	return record
}
