package schemas

import (
	"fmt"
	"strings"
)

// checkRights refuses what sources may not have, machine by machine. What lives is left as it is.
func (a *assembly) checkRights() {
	if len(a.sources) == 0 {
		return
	}
	for i := range a.entries {
		if e := &a.entries[i]; e.position.Source != "" && !e.refused && e.address.Kind != KindFleet {
			a.checkEntry(e)
		}
	}
	var paused []Broken
	for _, p := range a.desired.Paused {
		e := entry{address: p.Address, position: p.Position, broken: true}
		if p.Position.Source != "" {
			a.checkEntry(&e)
		}
		if e.refused {
			a.entries = append(a.entries, e)
		} else {
			paused = append(paused, p)
		}
	}
	a.desired.Paused = paused
}

func (a *assembly) checkEntry(e *entry) {
	s := a.sources[e.position.Source]
	if message, fix := a.outside(s, e.address); message != "" {
		a.refuse(e, e.position, "metadata.namespace", message, fix)
		return
	}
	if e.vm == nil {
		return
	}
	for i := range e.vm.reaches {
		r := &e.vm.reaches[i]
		if message, fix := s.rights.refuses(r); message != "" {
			a.refuse(e, r.position, r.path, message, fix)
		}
	}
	a.checkReserved(e)
	for i := range e.vm.references {
		r := &e.vm.references[i]
		if r.address.Kind != KindNetwork || s.rights.allowsNetwork(r.address, e.address.Namespace) {
			continue
		}
		fix := "use the pod network, or have it added to its networks in the Fleet"
		if len(s.rights.Networks) > 0 {
			fix = "use one of " + strings.Join(s.rights.Networks, ", ") + ", or the pod network"
		}
		a.refuse(e, r.position, r.path, fmt.Sprintf("the source %s may not use the network %s/%s", s.source, r.address.Namespace, r.address.Name), fix)
	}
}

// outside says why nothing that a source has at an address counts; "" when it does.
func (a *assembly) outside(s *space, address Address) (message, fix string) {
	switch {
	case s.rights == nil:
		return fmt.Sprintf("the Fleet names no source %s", quoteValue(s.source)), "add it to spec.sources of the Fleet"
	case s.rights.Doubt:
		return fmt.Sprintf("what the Fleet at %s says of the source %s has mistakes", a.desired.Fleet.Position, s.source), "mend the Fleet; what lives stays as it is"
	case isClusterKind(address.Kind):
		return fmt.Sprintf("a %s is for every namespace, and the source %s has only some", address.Kind, s.source), "have it added in the repository of the Fleet"
	case !s.rights.allowsNamespace(address.Namespace):
		return fmt.Sprintf("the source %s may have nothing in the namespace %s", s.source, quoteValue(address.Namespace)),
			"use " + strings.Join(s.rights.Namespaces, ", ") + ", or have it added to its namespaces in the Fleet"
	}
	return "", ""
}

// refuse breaks an entry that its source may not have.
func (a *assembly) refuse(e *entry, position Position, path, message, fix string) {
	e.broken, e.refused = true, true
	address := e.address
	if e.isMember() {
		address = e.vm.Owner
	}
	a.failOnce(position, address, path, message, fix)
}

// failOnce tells a mistake once that many machines of a set have from their template.
func (a *assembly) failOnce(position Position, address Address, path, message, fix string) {
	this := Diagnostic{Position: position, Path: path, Message: message}
	if a.told[this] {
		return
	}
	if a.told == nil {
		a.told = map[Diagnostic]bool{}
	}
	a.told[this] = true
	a.fail(position, address, path, message, fix)
}

// permitted reports whether a source may have an object that machines refer to or that a cluster gets. One that it may not have
// is broken: nobody refers to it, and what a cluster has of it stays.
func (a *assembly) permitted(s *space, o *object) bool {
	refuse := func(position Position, path, message, fix string) {
		a.failOnce(position, o.address, path, message, fix)
	}
	message, fix := a.outside(s, o.address)
	if message != "" {
		refuse(o.position, "metadata.namespace", message, fix)
	} else {
		for _, r := range o.reaches() {
			if problem, how := s.rights.refuses(&r); problem != "" {
				message = problem
				refuse(r.position, r.path, problem, how)
			}
		}
		for i := range o.links() {
			link := &o.links()[i]
			if isClusterKind(link.address.Kind) || s.rights.allowsNamespace(link.address.Namespace) {
				continue
			}
			message = fmt.Sprintf("the source %s may not use what is in the namespace %s", s.source, quoteValue(link.address.Namespace))
			refuse(link.position, link.path, message, "use "+strings.Join(s.rights.Namespaces, ", "))
		}
	}
	if message == "" {
		return true
	}
	s.brokenObjects[o.address] = o.position
	a.entries = append(a.entries, entry{address: o.address, position: o.position, broken: true, refused: true})
	return false
}

// reaches are the ways out of its namespace that an object takes.
func (o *object) reaches() []reach {
	switch v := o.value.(type) {
	case *claimSource:
		return v.reaches
	case *service:
		return v.reaches
	}
	return nil
}

// links are the objects that a claim is made of.
func (o *object) links() []reference {
	if v, ok := o.value.(*claimSource); ok {
		return v.links
	}
	return nil
}
