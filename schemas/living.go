package schemas

import (
	"net"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// living is what a machine that lives has, by its record.
type living struct {
	// unread says that the record cannot be understood: the machine may have anything.
	unread   bool
	holdings map[holdingKey]bool
	claims   map[claimName]Claim
	size     size
}

// held says from which source the machine or the object of an address was made, and whether it lives. A VirtualMachine and a
// VirtualMachineInstance of one name are one domain.
func (a *assembly) held(address Address) (Held, bool) {
	if a.holding == nil || address.IsZero() {
		return Held{}, false
	}
	if !address.IsMachine() {
		return a.holding.Holder(address)
	}
	for _, kind := range []string{KindVirtualMachine, KindVirtualMachineInstance} {
		address.Kind = kind
		if held, lives := a.holding.Holder(address); lives {
			return held, true
		}
	}
	return Held{}, false
}

// lives reports whether the entry's machine lives under its address, made from the entry's own source.
func (a *assembly) lives(e *entry) bool {
	held, lives := a.held(e.address)
	return lives && held.Source == e.position.Source
}

// livingOf returns what the entry's machine has, under its address or under the one that it had; nil when it does not live.
func (a *assembly) livingOf(e *entry) *living {
	address, record, lives := a.made(e)
	if !lives {
		return nil
	}
	return a.livingAt(address, record)
}

// livingAt reads the record of the machine of an address, once.
func (a *assembly) livingAt(address Address, record []byte) *living {
	if a.living[address] == nil {
		if a.living == nil {
			a.living = map[Address]*living{}
		}
		a.living[address] = readLiving(record)
	}
	return a.living[address]
}

// made returns the record of the entry's machine, which was made from the entry's own source, and under which address it lives.
func (a *assembly) made(e *entry) (address Address, record []byte, lives bool) {
	for _, address := range []Address{e.address, e.previous} {
		if held, lives := a.held(address); lives && held.Source == e.position.Source {
			return address, held.Record, true
		}
	}
	return Address{}, nil, false
}

// has reports whether the entry's machine has something already.
func (a *assembly) has(e *entry, k holdingKey) bool {
	l := a.livingOf(e)
	return l != nil && (l.unread || l.holdings[k])
}

// hasClaim reports whether the entry's machine uses a claim already.
func (a *assembly) hasClaim(e *entry, claim claimName) bool {
	l := a.livingOf(e)
	if l == nil {
		return false
	}
	_, uses := l.claims[claim]
	return l.unread || uses
}

func readLiving(record []byte) *living {
	read, err := ReadRecord(record, true)
	if err != nil {
		return &living{unread: true}
	}
	vm := read.Object
	spec := &vm.Spec.Template.Spec
	out := &living{holdings: map[holdingKey]bool{}, claims: map[claimName]Claim{}, size: sizeOfGuest(spec)}
	address := Address{Kind: KindVirtualMachine, Namespace: vm.Namespace, Name: vm.Name}
	own := derive(address, spec)
	if own.uuid != "" {
		out.holdings[holdingKey{holdsUUID, own.uuid}] = true
	} else {
		out.holdings[holdingKey{holdsUUID, strings.ToLower(string(spec.Domain.Firmware.UUID))}] = true
	}
	for _, mac := range own.macs {
		out.holdings[holdingKey{holdsMAC, mac}] = true
	}
	for i := range spec.Domain.Devices.Interfaces {
		if mac, err := net.ParseMAC(spec.Domain.Devices.Interfaces[i].MacAddress); err == nil {
			out.holdings[holdingKey{holdsMAC, mac.String()}] = true
		}
	}
	for i := range spec.Volumes {
		if disk := spec.Volumes[i].HostDisk; disk != nil {
			out.holdings[holdingKey{holdsHostDisk, disk.Path}] = true
		}
	}
	for _, claim := range read.Claims {
		out.claims[claimName{claim.Namespace, claim.Name}] = claim
	}
	return out
}

// derived is what gitvirt gives a machine whose manifest does not say it.
type derived struct {
	// uuid is empty when the manifest names one; macs are those of the interfaces for which it names none.
	uuid string
	macs []string
}

func derive(address Address, spec *kubevirtv1.VirtualMachineInstanceSpec) *derived {
	out := &derived{}
	if firmware := spec.Domain.Firmware; firmware == nil || firmware.UUID == "" {
		out.uuid = FirmwareUUID(address)
	}
	for i := range spec.Domain.Devices.Interfaces {
		if in := &spec.Domain.Devices.Interfaces[i]; in.MacAddress == "" {
			out.macs = append(out.macs, MACAddress(address, in.Name))
		}
	}
	return out
}

// derived returns what the machine has without having been given it, which takes a while to find out.
func (vm *VM) derived() *derived {
	if known := vm.memory.derived.Load(); known != nil {
		return known
	}
	out := derive(vm.Address, vm.Spec())
	vm.memory.derived.Store(out)
	return out
}
