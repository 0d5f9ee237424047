package schemas

import (
	"fmt"
	"slices"
)

// holdingKind is what a machine has for itself.
type holdingKind uint8

const (
	holdsMAC      holdingKind = iota // an explicit MAC address
	holdsUUID                        // an explicit firmware UUID
	holdsHostDisk                    // a disk image on the host
)

// said names the kind in a sentence.
func (k holdingKind) said() string {
	switch k {
	case holdsMAC:
		return "MAC address"
	case holdsUUID:
		return "firmware UUID"
	}
	return "disk image"
}

// fix says what to do about one that another machine has, too.
func (k holdingKind) fix() string {
	if k == holdsHostDisk {
		return "give each machine its own image, or make every disk of it shareable or read-only"
	}
	return "change one, or leave it out: gitvirt derives one"
}

// templateFix says what to do about one in the template of a set.
func (k holdingKind) templateFix() string {
	if k == holdsHostDisk {
		return "use dataVolumeTemplates, or make the disk shareable or read-only"
	}
	return "remove it from the template: gitvirt derives one for each"
}

// holding is something that must be unique among machines. Holdings are gathered when a file is read, so
// that Assemble need not look into the objects.
type holding struct {
	kind     holdingKind
	value    string
	hash     uint64 // of kind and value
	path     string
	position Position
	// shared disk images may have several users.
	shared bool
}

func (c *checker) hold(kind holdingKind, value string, path []any, shared bool) {
	c.holdings = append(c.holdings, holding{
		kind: kind, value: value, hash: holdingHash(kind, value), shared: shared,
		path: pathString(c.prefix, elements(path)), position: c.position(locate(c.root, path)),
	})
}

// holdingHash is FNV-1a; equal hashes are looked at more closely, so collisions do no harm.
func holdingHash(kind holdingKind, value string) uint64 {
	hash := (uint64(14695981039346656037) ^ uint64(kind)) * 1099511628211
	for i := range len(value) {
		hash = (hash ^ uint64(value[i])) * 1099511628211
	}
	return hash
}

// holder is a machine's holding.
type holder struct {
	entry   *entry
	holding *holding
}

type holdingKey struct {
	kind  holdingKind
	value string
}

// checkHoldings finds MAC addresses, firmware UUIDs and disk images that several machines have. Hashes, which were
// computed when the files were read, tell the few holdings that need a closer look.
func (a *assembly) checkHoldings() {
	total := 0
	for i := range a.entries {
		if vm := a.entries[i].vm; vm != nil {
			total += len(vm.holdings)
		}
	}
	seen := make(map[uint64]struct{}, total)
	suspects := map[uint64]struct{}{}
	remains := map[holdingKey][]*entry{}
	for _, r := range a.remains {
		for k := range r.living.holdings {
			remains[k] = append(remains[k], r.entry)
			seen[holdingHash(k.kind, k.value)] = struct{}{}
		}
	}
	a.eachHolding(func(_ *entry, h *holding) {
		if _, taken := seen[h.hash]; taken {
			suspects[h.hash] = struct{}{}
		}
		seen[h.hash] = struct{}{}
	})
	if len(suspects) == 0 {
		return
	}
	groups := map[holdingKey][]holder{}
	a.eachHolding(func(e *entry, h *holding) {
		if _, suspect := suspects[h.hash]; suspect {
			k := holdingKey{h.kind, h.value}
			if group := groups[k]; len(group) == 0 || group[len(group)-1].entry != e { // once per machine
				groups[k] = append(group, holder{e, h})
			}
		}
	})
	if len(a.sources) > 0 {
		for _, k := range a.sortedHoldings(groups, remains) {
			if len(groups[k])+len(remains[k]) > 1 {
				a.holdingRivals(k, groups[k], remains[k])
			}
		}
		return
	}
	for k, holders := range groups {
		if len(holders) > 1 && slices.ContainsFunc(holders, func(h holder) bool { return !h.holding.shared }) {
			a.reportConflict(k, holders)
		}
	}
}

// eachHolding visits the holdings that exclude one another.
func (a *assembly) eachHolding(visit func(*entry, *holding)) {
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil {
			continue
		}
		for j := range e.vm.holdings {
			visit(e, &e.vm.holdings[j])
		}
	}
}

// reportConflict reports machines that have the same. Machines of one set have it from their template, which is told once.
func (a *assembly) reportConflict(k holdingKey, holders []holder) {
	told := map[Address]bool{}
	for i, h := range holders {
		h.entry.broken = true
		owner := h.entry.vm.Owner
		if !owner.IsZero() && slices.ContainsFunc(holders, func(o holder) bool { return o.entry != h.entry && o.entry.vm.Owner == owner }) {
			if !told[owner] {
				told[owner] = true
				a.fail(h.holding.position, owner, h.holding.path, fmt.Sprintf("all machines of the set would have the %s %s", k.kind.said(), k.value), k.kind.templateFix())
			}
			continue
		}
		other := holders[0]
		if i == 0 {
			other = holders[1]
		}
		a.fail(h.holding.position, h.entry.address, h.holding.path,
			fmt.Sprintf("%s%s has the %s %s too, at %s", other.entry.address, other.entry.member(), k.kind.said(), k.value, other.holding.position), k.kind.fix())
	}
}

// member says which set a machine is of; "" for none.
func (e *entry) member() string {
	if !e.isMember() {
		return ""
	}
	return fmt.Sprintf(", a member of %s,", e.vm.Owner)
}

func (e *entry) isMember() bool { return e.vm != nil && !e.vm.Owner.IsZero() }
