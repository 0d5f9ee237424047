package status

import (
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// History remembers the last status of each machine, so that times say when something changed. It is immutable.
type History struct{ last map[schemas.Address]VM }

// NewHistory returns a History of these machines.
func NewHistory(vms []VM) *History {
	h := &History{last: make(map[schemas.Address]VM, len(vms))}
	for _, vm := range vms {
		h.last[vm.Address] = vm
	}
	return h
}

// ReadHistory returns the History that the files of a status branch hold. What cannot be read is left out: it costs a
// transition time.
func ReadHistory(files map[string][]byte) *History {
	var vms []VM
	for path, content := range files {
		if !isVMPath(path) {
			continue
		}
		if vm, err := Parse(content); err == nil {
			vms = append(vms, vm)
		}
	}
	return NewHistory(vms)
}

// Or returns a History that has what h has, and else what older has.
func (h *History) Or(older *History) *History {
	out := &History{last: make(map[schemas.Address]VM, max(len(h.last), len(older.last)))}
	for address, vm := range older.last {
		out.last[address] = vm
	}
	for address, vm := range h.last {
		out.last[address] = out.merge(vm, time.Time{})
	}
	return out
}

// Merge gives the statuses that Of derived at a time the times and facts that they share with the last ones.
func (h *History) Merge(vms []VM, at time.Time) []VM {
	at = at.UTC().Truncate(time.Second)
	out := make([]VM, len(vms))
	for i := range vms {
		out[i] = h.merge(vms[i], at)
	}
	return out
}

func (h *History) merge(now VM, at time.Time) VM {
	before, known := h.last[now.Address]
	now.Conditions = slices.Clone(now.Conditions)
	for i := range now.Conditions {
		c := &now.Conditions[i]
		old := before.Condition(c.Type)
		switch {
		case old.Status == c.Status && !old.LastTransitionTime.IsZero():
			c.LastTransitionTime = old.LastTransitionTime
		case c.LastTransitionTime.IsZero():
			c.LastTransitionTime = at
		}
	}
	now.LastPlan = mergePlan(before, now, at)
	if !known {
		return now
	}
	if !now.found { // the host cannot be read: what was known last is the best there is
		if now.Node == "" {
			now.Node = before.Node
		}
		now.Domain, now.Addresses, now.Disks = before.Domain, before.Addresses, before.Disks
		now.Unread = before.Unread
		now.ObservedRevision = before.ObservedRevision
		if before.hash == "" && before.WantedRevision != "" {
			now.WantedRevision = before.WantedRevision
		}
	}
	// A wish that stays the same while commits pass keeps the commit that brought it.
	if now.hash != "" && now.hash == before.hash {
		now.WantedRevision = before.WantedRevision
	}
	return now
}

// mergePlan keeps the time of a plan that is still the same, and the last one of a machine that needs nothing.
func mergePlan(before, now VM, at time.Time) *LastPlan {
	if now.LastPlan == nil {
		return before.LastPlan
	}
	merged := *now.LastPlan
	old := before.LastPlan
	same := old != nil && old.Action == merged.Action && old.Consequence == merged.Consequence && old.Summary == merged.Summary
	switch {
	case same && before.Synced() != True:
		return old
	case merged.Time.IsZero():
		merged.Time = at
	}
	return &merged
}
