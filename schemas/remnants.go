package schemas

import (
	"bytes"
	"fmt"
	"slices"
)

// remnant is a machine that lives and whose manifest does not say what it has: it cannot be read, has mistakes, asks for something else
// now, or is gone while the machine is not.
type remnant struct {
	entry  *entry
	living *living
}

// remnants are those of all repositories, where there are several. What they have is theirs until they are gone.
func (a *assembly) remnants() []remnant {
	if a.holding == nil || len(a.sources) == 0 {
		return nil
	}
	byAddress := make(map[Address][]*entry, len(a.entries))
	for i := range a.entries {
		if e := &a.entries[i]; e.vm != nil {
			address := objectOf(e.address)
			byAddress[address] = append(byAddress[address], e)
		}
	}
	var out []remnant
	a.holding.Machines(func(address Address, held Held) {
		if held.Fleet != "" && held.Fleet != a.desired.Fleet.Name {
			return
		}
		for _, e := range byAddress[objectOf(address)] {
			own := e.position.Source == held.Source
			if own && e.vm.says(held.Record) || !own && !e.refused { // then it is this one, which has moved here
				return
			}
		}
		living := a.livingAt(address, held.Record)
		if !living.unread {
			out = append(out, remnant{&entry{address: address, position: Position{Source: held.Source}}, living})
		}
	})
	slices.SortFunc(out, func(x, y remnant) int { return x.entry.address.Compare(y.entry.address) })
	return out
}

// says reports whether a record is of what the manifest says, whatever its references resolved to then.
func (vm *VM) says(record []byte) bool {
	before, after := vm.Record[:vm.resolvedAt], vm.Record[vm.resolvedAt:]
	return len(record) >= len(vm.Record) && bytes.HasPrefix(record, before) && bytes.HasSuffix(record, after)
}

// losesClaims reports whether there is a claim that the manifest refers to and that nothing says anything of.
func (vm *VM) losesClaims() bool {
	n := 0
	for i := range vm.references {
		if isClaim(vm.references[i].address.Kind) {
			n++
		}
	}
	return n > len(vm.uses)
}

// checkLeftClaims refuses machines that would write to a claim that a machine of another repository has open, though nothing there asks
// for it now.
func (a *assembly) checkLeftClaims() {
	users := map[claimName][]*entry{}
	uses := func(e *entry, l *living) {
		for name, claim := range l.claims {
			if !claim.Shared {
				users[name] = append(users[name], e)
			}
		}
	}
	for _, r := range a.remains {
		uses(r.entry, r.living)
	}
	for i := range a.entries {
		if e := &a.entries[i]; len(a.sources) > 0 && e.vm != nil && (e.broken || e.vm.losesClaims()) && a.lives(e) {
			uses(e, a.livingOf(e))
		}
	}
	if len(users) == 0 {
		return
	}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || e.broken {
			continue
		}
		for _, use := range e.vm.uses {
			claim := e.vm.Claims[use.reference.use]
			name := claimName{claim.Namespace, claim.Name}
			for _, other := range users[name] {
				if other.position.Source == e.position.Source || a.hasClaim(e, name) {
					continue
				}
				e.broken, e.refused = true, true
				a.fail(use.reference.position, e.address, use.reference.path, fmt.Sprintf("%s has the claim %s open",
					a.mention(e.position.Source, &rival{entry: other, position: other.position}), quoteValue(claim.Name)), "use a claim of its own, or wait until that machine is gone")
				break
			}
		}
	}
}

// checkLeftObjects refuses claims and Services that live and were made from another repository of which nobody can tell whether it still
// asks for them.
func (a *assembly) checkLeftObjects() {
	if a.holding == nil {
		return
	}
	var broken []entry
	for _, s := range a.spaces() {
		for address, o := range s.objects {
			if !isClaim(address.Kind) && address.Kind != KindService {
				continue
			}
			held, lives := a.held(address)
			if _, known := s.brokenObjects[address]; known || !lives || held.Source == s.source {
				continue
			}
			why := a.unread(held.Source)
			if from := a.space(held.Source); why == "" && from != nil {
				if at, mistaken := from.brokenObjects[address]; mistaken {
					why = fmt.Sprintf("where it has mistakes, at %s", at)
				}
			}
			if why == "" {
				continue
			}
			s.brokenObjects[address] = o.position
			broken = append(broken, entry{address: address, position: o.position, broken: true, refused: true})
			a.fail(o.position, address, "metadata.name", fmt.Sprintf("it lives and was made from %s, %s", repository(held.Source), why), "wait until that is mended, or take another name")
		}
	}
	a.entries = append(a.entries, broken...)
}
