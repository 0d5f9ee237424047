package schemas

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// rival is a machine, or the place of an object, that wants what another repository wants too.
type rival struct {
	entry    *entry
	position Position
	path     string
	// has says that it has it already: then it keeps it.
	has bool
	// left says that it is a remnant, whose manifest has no place for what is to be told.
	left bool
}

// rivals decides between repositories that want the same thing: who has it keeps it, and when nobody does nobody gets it. It
// reports whether somebody has it. What rivals of one repository do to one another is not its business.
func (a *assembly) rivals(all []rival, what, fix string) (kept bool) {
	kept = slices.ContainsFunc(all, func(r rival) bool { return r.has })
	one, another := foremost(all)
	for _, r := range all {
		other := r.rivalOf(one, another)
		if other == nil || r.left {
			continue
		}
		subject := a.mention(r.entry.position.Source, other)
		switch {
		case r.has:
			a.tell(SeverityWarning, r.position, r.entry.address, r.path, fmt.Sprintf("%s asks for %s too; this one has it and keeps it", subject, what), "have it changed there")
			continue
		case kept:
			a.fail(r.position, r.entry.address, r.path, fmt.Sprintf("%s has %s already", subject, what), fix)
			r.entry.refused = true
		default:
			a.fail(r.position, r.entry.address, r.path, fmt.Sprintf("%s asks for %s too, and nobody has it yet, so neither is made", subject, what), fix)
		}
		r.entry.broken = true
	}
	return kept
}

// foremost returns the first rival, one that has it if there is one, and the same among those of other repositories than its own.
func foremost(all []rival) (one, another *rival) {
	before := func(r, other *rival) bool { return other == nil || r.has && !other.has }
	for i := range all {
		if before(&all[i], one) {
			one = &all[i]
		}
	}
	for i := range all {
		if r := &all[i]; r.entry.position.Source != one.entry.position.Source && before(r, another) {
			another = r
		}
	}
	return one, another
}

// rivalOf picks out of foremost the one of another repository; nil when all are of the same.
func (r *rival) rivalOf(one, another *rival) *rival {
	if one.entry.position.Source != r.entry.position.Source {
		return one
	}
	return another
}

// mention names a machine to those who may know of it: its own repository, and that of the Fleet.
func (a *assembly) mention(to string, r *rival) string {
	if to == "" || to == r.entry.position.Source {
		return fmt.Sprintf("%s%s at %s", r.entry.address, r.entry.member(), r.position)
	}
	return "something in another repository"
}

// contend leaves out who may not have it and does not have it, and reports whether several repositories are left.
func contend(all []rival) (left []rival, several bool) {
	left = slices.DeleteFunc(all, func(r rival) bool { return r.entry.refused && !r.has })
	slices.SortFunc(left, func(x, y rival) int {
		return cmp.Or(x.entry.address.Compare(y.entry.address), x.position.compare(y.position))
	})
	return left, slices.ContainsFunc(left, func(r rival) bool { return r.entry.position.Source != left[0].entry.position.Source })
}

// holdingRivals decides about a MAC address, a firmware UUID or a disk image that machines of several repositories have in their manifests.
// remains are machines that have it, and that have it for themselves.
func (a *assembly) holdingRivals(k holdingKey, holders []holder, remains []*entry) {
	all := make([]rival, 0, len(holders)+len(remains))
	for _, h := range holders {
		all = append(all, rival{entry: h.entry, position: h.holding.position, path: h.holding.path, has: a.has(h.entry, k)})
	}
	for _, e := range remains {
		all = append(all, rival{entry: e, position: e.position, has: true, left: true})
	}
	left, several := contend(all)
	in := make(map[*entry]bool, len(left))
	for _, r := range left {
		in[r.entry] = true
	}
	own := map[string][]holder{}
	exclusive := len(remains) > 0
	for _, h := range holders {
		if in[h.entry] {
			own[h.entry.position.Source] = append(own[h.entry.position.Source], h)
			exclusive = exclusive || !h.holding.shared
		}
	}
	for _, same := range own {
		if len(same) > 1 && slices.ContainsFunc(same, func(h holder) bool { return !h.holding.shared }) {
			a.reportConflict(k, same)
		}
	}
	if several && exclusive {
		a.rivals(left, fmt.Sprintf("the %s %s", k.kind.said(), k.value), k.kind.fix())
	}
}

// sortedHoldings are the keys of groups in an order that does not change, those that somebody has already first: who loses one
// thing asks for nothing else.
func (a *assembly) sortedHoldings(groups map[holdingKey][]holder, remains map[holdingKey][]*entry) []holdingKey {
	free := map[holdingKey]int{}
	keys := make([]holdingKey, 0, len(groups))
	for k, holders := range groups {
		keys = append(keys, k)
		if len(remains[k]) == 0 && !slices.ContainsFunc(holders, func(h holder) bool { return a.has(h.entry, k) }) {
			free[k] = 1
		}
	}
	slices.SortFunc(keys, func(x, y holdingKey) int {
		return cmp.Or(cmp.Compare(free[x], free[y]), cmp.Compare(x.kind, y.kind), strings.Compare(x.value, y.value))
	})
	return keys
}

// checkDerived finds MAC addresses and firmware UUIDs that a source writes and that gitvirt derives for a machine of another
// repository. They follow from the name, so everybody can find them out.
func (a *assembly) checkDerived() {
	written := map[holdingKey][]holder{}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || e.position.Source == "" {
			continue
		}
		for j := range e.vm.holdings {
			if h := &e.vm.holdings[j]; h.kind != holdsHostDisk {
				k := holdingKey{h.kind, h.value}
				written[k] = append(written[k], holder{e, h})
			}
		}
	}
	if len(written) == 0 {
		return
	}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil {
			continue
		}
		own := e.vm.derived()
		for _, h := range written[holdingKey{holdsUUID, own.uuid}] {
			a.derivedRival(e, h)
		}
		for _, mac := range own.macs {
			for _, h := range written[holdingKey{holdsMAC, mac}] {
				a.derivedRival(e, h)
			}
		}
	}
}

// derivedRival decides between a machine for which something is derived and one that writes it.
func (a *assembly) derivedRival(e *entry, h holder) {
	k := holdingKey{h.holding.kind, h.holding.value}
	theirs, ours := a.has(h.entry, k), a.has(e, k)
	if e.position.Source == h.entry.position.Source || h.entry.refused && !theirs || e.refused && !ours {
		return
	}
	what := fmt.Sprintf("the %s %s", k.kind.said(), k.value)
	if theirs && !ours {
		e.broken = true
		a.fail(e.position, e.address, "metadata.name", fmt.Sprintf("gitvirt derives %s for it, and %s has that already", what,
			a.mention(e.position.Source, &rival{entry: h.entry, position: h.holding.position})), "write another one, or rename the machine")
		return
	}
	h.entry.broken = true
	a.fail(h.holding.position, h.entry.address, h.holding.path, fmt.Sprintf("gitvirt derives %s for %s", what,
		a.mention(h.entry.position.Source, &rival{entry: e, position: e.position})), "change it, or leave it out: gitvirt derives one")
}
