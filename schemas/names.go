package schemas

import (
	"fmt"
	"slices"
)

// nameRivals decides between repositories that have manifests of one namespace and name. The one that the machine was made
// from keeps it, whatever else is wrong with its manifest; when there is no machine, neither makes one.
func (a *assembly) nameRivals(group []*entry) {
	own := map[string][]*entry{}
	machines := map[string]int{}
	var all []rival
	for _, e := range group {
		source := e.position.Source
		own[source] = append(own[source], e)
		if e.address.IsMachine() {
			machines[source]++
			all = append(all, rival{entry: e, position: e.position, path: "metadata.name", has: a.lives(e)})
		}
	}
	for _, same := range own {
		if len(same) > 1 {
			a.sameName(same)
		}
	}
	left, several := contend(all)
	if !several {
		return
	}
	kept := slices.ContainsFunc(left, func(r rival) bool { return r.has })
	one, another := foremost(left)
	for _, r := range left {
		other := r.rivalOf(one, another)
		message := fmt.Sprintf("%s is also at %s", r.entry.address, other.position)
		if r.entry.address != other.entry.address {
			message = fmt.Sprintf("%s at %s would be the same domain", other.entry.address, other.position)
		}
		switch {
		case r.has:
			a.tell(SeverityWarning, r.position, r.entry.address, r.path, message+"; the machine was made from here, so this one counts", "have the other removed")
			continue
		case kept:
			message += ", and was made from there, so this one does not count"
			r.entry.refused = true
		default:
			message += ", and no machine was made from either, so neither counts"
		}
		r.entry.broken = true
		a.fail(r.position, r.entry.address, r.path, message, "rename or remove one")
	}
}

// checkHeld refuses machines that live and were made from another repository, unless that gave them up: nothing in it is unread, and
// no machine of it says that it had the name.
func (a *assembly) checkHeld() {
	if a.holding == nil {
		return
	}
	heirs := map[Address]*entry{}
	for i := range a.entries {
		e := &a.entries[i]
		if held, lives := a.held(e.previous); lives && held.Source == e.position.Source {
			heirs[objectOf(e.previous)] = e
		}
	}
	for i := range a.entries {
		e := &a.entries[i]
		if e.refused || e.broken || e.vm == nil {
			continue
		}
		held, lives := a.held(e.address)
		if !lives || held.Source == e.position.Source {
			continue
		}
		heir := heirs[objectOf(e.address)]
		why := a.unread(held.Source)
		switch {
		case why != "":
		case heir != nil:
			why = "where a machine has its name as " + AnnotationPreviousName
		default:
			continue
		}
		e.broken, e.refused = true, true
		a.fail(e.position, e.address, "metadata.name", fmt.Sprintf("it lives and was made from %s, %s", repository(held.Source), why), "wait until that is mended, or take another name")
	}
}

// unread says why nobody can tell all that a repository asks for; "" when it was read.
func (a *assembly) unread(source string) string {
	from := a.space(source)
	switch {
	case from == nil && (a.desired.Fleet.Source(source) != nil || a.desired.Fleet.Spec.SourcesDoubt):
		return "of which nothing was read"
	case from != nil && from.opaque != Position{}:
		return fmt.Sprintf("which may ask for it in what cannot be read: %s", from.opaque)
	}
	return ""
}

// repository names one in a sentence.
func repository(source string) string {
	if source == "" {
		return "the repository of the Fleet"
	}
	return "the source " + source
}

// objectOf is the address of a domain, whatever its kind.
func objectOf(machine Address) Address {
	machine.Kind = KindVirtualMachine
	return machine
}
