package schemas

import (
	"fmt"
	"slices"
	"strings"
)

// checkSettings checks what annotations say of other machines: that those are there, that no machine waits for itself, and
// that no two machines want to be the same domain.
func (a *assembly) checkSettings() {
	var set []*entry
	for i := range a.entries {
		if e := &a.entries[i]; e.vm != nil && len(e.vm.Settings.positions) > 0 {
			set = append(set, e)
		}
	}
	if len(set) == 0 {
		return
	}
	s := settingsCheck{assembly: a, machines: map[machineKey][]*entry{}}
	for i := range a.entries {
		e := &a.entries[i]
		k := machineKey{e.position.Source, e.address.Namespace, e.address.Name}
		switch {
		case isSetKind(e.address.Kind):
			s.known = append(s.known, k) // with mistakes: nobody can tell its machines
			s.machines[k] = append(s.machines[k], nil)
		case isMachineKind(e.address.Kind):
			s.machines[k] = append(s.machines[k], e)
			s.known = append(s.known, k)
			if e.vm != nil && !e.vm.Owner.IsZero() {
				owner := machineKey{k.source, e.vm.Owner.Namespace, e.vm.Owner.Name}
				s.machines[owner] = append(s.machines[owner], e)
			}
		}
	}
	for _, paused := range a.desired.Paused {
		k := machineKey{paused.Position.Source, paused.Address.Namespace, paused.Address.Name}
		s.machines[k] = append(s.machines[k], nil)
	}
	s.clashes(set)
	for _, e := range set {
		s.missing(e)
	}
	s.cycles(set)
}

// machineKey names a machine of a repository, or the set that machines are members of. Machines wait only for those of their own
// repository: what others write must not keep them waiting.
type machineKey struct{ source, namespace, name string }

func (k machineKey) String() string { return k.namespace + "/" + k.name }

type settingsCheck struct {
	*assembly
	// machines has the machines of each name, and those of each set; nil stands for machines that cannot be told.
	machines map[machineKey][]*entry
	// known are the names that suggestions are made of.
	known []machineKey
}

// failSetting reports a mistake in a setting of a machine, which is broken by it.
func (s *settingsCheck) failSetting(e *entry, name, message, fix string) {
	e.broken = true
	if e.isMember() {
		message = fmt.Sprintf("its member %s: %s", e.address.Name, message)
	}
	s.fail(e.vm.Settings.positions[name], e.address, "metadata.annotations["+name+"]", message, fix)
}

// clashes finds domains that two machines want to be, and previous names that are still in use.
func (s *settingsCheck) clashes(set []*entry) {
	type wish struct {
		source, annotation, value string
	}
	wishes := map[wish][]*entry{}
	for _, e := range set {
		source := e.position.Source
		if adopt := e.vm.Settings.Adopt; adopt != "" {
			wishes[wish{source, AnnotationAdopt, adopt}] = append(wishes[wish{source, AnnotationAdopt, adopt}], e)
		}
		previous := e.vm.Settings.PreviousName
		if previous.IsZero() {
			continue
		}
		k := machineKey{source, previous.Namespace, previous.Name}
		wishes[wish{source, AnnotationPreviousName, k.String()}] = append(wishes[wish{source, AnnotationPreviousName, k.String()}], e)
		s.heirs(e, previous)
		if others := s.machines[k]; len(others) > 0 {
			where := ""
			if others[0] != nil {
				where = " at " + others[0].position.String()
			}
			s.failSetting(e, AnnotationPreviousName, fmt.Sprintf("%s is there as well%s, so its domain is not free", k, where), "remove the machine that had the name, or the annotation")
		}
	}
	for w, entries := range wishes {
		for i, e := range entries {
			if len(entries) < 2 {
				break
			}
			other := entries[0]
			if i == 0 {
				other = entries[1]
			}
			s.failSetting(e, w.annotation, fmt.Sprintf("%s at %s wants to be the same domain", other.address, other.position), "keep one")
		}
	}
}

// heirs decides about a machine that says it was one which lives and was made from another repository. Only that of the Fleet
// takes over what others gave up.
func (s *settingsCheck) heirs(e *entry, previous Address) {
	held, lives := s.held(previous)
	if len(s.sources) == 0 || !lives || held.Source == e.position.Source {
		return
	}
	if _, here := s.held(e.address); here {
		return // it is there already, and the annotation means nothing
	}
	wanted := slices.ContainsFunc(s.machines[machineKey{held.Source, previous.Namespace, previous.Name}], func(other *entry) bool { return other == nil || !other.refused })
	if e.position.Source == "" && !wanted && s.unread(held.Source) == "" {
		return
	}
	s.failSetting(e, AnnotationPreviousName, fmt.Sprintf("%s/%s was made from %s", previous.Namespace, previous.Name, repository(held.Source)), "remove the annotation, or have the machine removed there and renamed in the repository of the Fleet")
}

// missing reports dependencies that no file has.
func (s *settingsCheck) missing(e *entry) {
	if e.refused {
		return // as was said
	}
	for _, d := range e.vm.Settings.DependsOn {
		k := machineKey{e.position.Source, d.Namespace, d.Name}
		if _, ok := s.machines[k]; ok {
			continue
		}
		message := fmt.Sprintf("no machine %s in the namespace %s", quoteValue(d.Name), d.Namespace)
		if s.allowMissing {
			s.tell(SeverityWarning, e.vm.Settings.positions[AnnotationDependsOn], e.address, "metadata.annotations["+AnnotationDependsOn+"]", message, s.near(k))
			continue
		}
		s.failSetting(e, AnnotationDependsOn, message, s.near(k))
	}
}

// near says what was probably meant.
func (s *settingsCheck) near(k machineKey) string {
	var names []string
	for _, other := range s.known {
		switch {
		case other.source != k.source: // which is not for everybody to know
		case other.namespace == k.namespace:
			names = append(names, other.name)
		case other.name == k.name:
			return "did you mean " + other.String() + "?"
		}
	}
	if near := closest(k.name, names); near != "" {
		return fmt.Sprintf("did you mean %s?", near)
	}
	return "add it, or remove it here"
}

// dependencies lists the machines that a machine waits for.
func (s *settingsCheck) dependencies(e *entry) []*entry {
	var out []*entry
	for _, d := range e.vm.Settings.DependsOn {
		for _, other := range s.machines[machineKey{e.position.Source, d.Namespace, d.Name}] {
			if other != nil && other.vm != nil {
				out = append(out, other)
			}
		}
	}
	return out
}

// cycles reports the machines that would wait for themselves, each with the shortest way round.
func (s *settingsCheck) cycles(set []*entry) {
	for _, member := range s.components(set) {
		cycle := s.shortest(member.entry, member.among)
		names := make([]string, len(cycle))
		for i, e := range cycle {
			names[i] = e.address.Name
			if e.address.Namespace != member.entry.address.Namespace {
				names[i] = e.address.Namespace + "/" + e.address.Name
			}
		}
		if len(names) > 12 {
			names = slices.Concat(names[:6], []string{"..."}, names[len(names)-5:])
		}
		s.failSetting(member.entry, AnnotationDependsOn, "it would wait for itself: "+strings.Join(names, " -> "), "remove one of these dependencies")
	}
}

// cyclic is a machine that is on a cycle, and the number of the machines that it is on one with.
type cyclic struct {
	entry *entry
	among map[*entry]bool
}

// components finds the machines on cycles: Tarjan's strongly connected components, without recursion because chains are as
// long as somebody wrote them.
func (s *settingsCheck) components(set []*entry) []cyclic {
	type state struct {
		index, low int
		onStack    bool
	}
	type frame struct {
		entry *entry
		next  []*entry
	}
	states := map[*entry]*state{}
	var stack []*entry
	var found []cyclic
	visit := func(e *entry) frame {
		states[e] = &state{index: len(states), low: len(states), onStack: true}
		stack = append(stack, e)
		return frame{e, s.dependencies(e)}
	}
	for _, root := range set {
		if states[root] != nil {
			continue
		}
		frames := []frame{visit(root)}
		for len(frames) > 0 {
			top := &frames[len(frames)-1]
			here := states[top.entry]
			if len(top.next) > 0 {
				next := top.next[0]
				top.next = top.next[1:]
				switch there := states[next]; {
				case there == nil:
					frames = append(frames, visit(next))
				case there.onStack:
					here.low = min(here.low, there.index)
				}
				continue
			}
			if here.low == here.index {
				at := slices.Index(stack, top.entry)
				found = append(found, s.onCycle(stack[at:])...)
				for _, e := range stack[at:] {
					states[e].onStack = false
				}
				stack = stack[:at]
			}
			frames = frames[:len(frames)-1]
			if len(frames) > 0 {
				below := states[frames[len(frames)-1].entry]
				below.low = min(below.low, here.low)
			}
		}
	}
	return found
}

// onCycle returns the machines of a component when they are on a cycle.
func (s *settingsCheck) onCycle(component []*entry) []cyclic {
	if len(component) == 1 && !slices.Contains(s.dependencies(component[0]), component[0]) {
		return nil
	}
	among := make(map[*entry]bool, len(component))
	for _, e := range component {
		among[e] = true
	}
	out := make([]cyclic, 0, len(component))
	for _, e := range component {
		out = append(out, cyclic{e, among})
	}
	return out
}

// shortest returns the shortest way from a machine back to it.
func (s *settingsCheck) shortest(from *entry, among map[*entry]bool) []*entry {
	before := map[*entry]*entry{}
	for queue := []*entry{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range s.dependencies(queue[0]) {
			if next == from {
				way := []*entry{from}
				for e := queue[0]; e != from; e = before[e] {
					way = append(way, e)
				}
				way = append(way, from)
				slices.Reverse(way)
				return way
			}
			if _, seen := before[next]; !seen && among[next] {
				before[next] = queue[0]
				queue = append(queue, next)
			}
		}
	}
	return []*entry{from, from}
}
