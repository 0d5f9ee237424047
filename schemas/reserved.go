package schemas

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// reserved reports whether gitvirt may derive a MAC address or a UUID for a machine whose manifest names none. Nobody can tell for
// which: machines to come count as well, and whoever has their address first would block their names. Derived MAC addresses are
// spread over all that begin with 02:. Those of 02:00:00:00: are left to people, who write them: one of 16 million is derived
// there, so that no name that somebody picks leads to one.
func (h *holding) reserved() bool {
	switch h.kind {
	case holdsMAC:
		return strings.HasPrefix(h.value, "02:") && !strings.HasPrefix(h.value, "02:00:00:00:")
	case holdsUUID:
		read, err := uuid.Parse(h.value)
		return err == nil && read.Version() == 5 && read.Variant() == uuid.RFC4122
	}
	return false
}

// checkReserved refuses what a source writes and gitvirt may derive for somebody else, unless the machine has it or would get it anyway.
func (a *assembly) checkReserved(e *entry) {
	for i := range e.vm.holdings {
		h := &e.vm.holdings[i]
		if !h.reserved() || h.isDerivedFor(e.vm) || a.keeps(e, holdingKey{h.kind, h.value}) {
			continue
		}
		fix := "leave it out: gitvirt derives one; or write one that begins with 52:54:00, as QEMU does"
		if h.kind == holdsUUID {
			fix = "leave it out: gitvirt derives one; or write one of another version, as uuidgen does"
		}
		a.refuse(e, h.position, h.path, fmt.Sprintf("the %s %s is one of those that gitvirt derives, and may be that of another machine, now or later", h.kind.said(), h.value), fix)
	}
}

// isDerivedFor reports whether gitvirt would give the machine the same.
func (h *holding) isDerivedFor(vm *VM) bool {
	if h.kind == holdsUUID {
		return h.value == FirmwareUUID(vm.Address)
	}
	interfaces := vm.Spec().Domain.Devices.Interfaces
	return slices.ContainsFunc(interfaces, func(in kubevirtv1.Interface) bool { return h.value == MACAddress(vm.Address, in.Name) })
}

// keeps reports whether the entry's machine has something already, be it that it was made from another repository.
func (a *assembly) keeps(e *entry, k holdingKey) bool {
	if a.has(e, k) {
		return true
	}
	held, lives := a.held(e.address)
	if !lives {
		return false
	}
	living := a.livingAt(e.address, held.Record)
	return living.unread || living.holdings[k]
}
