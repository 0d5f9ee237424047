package history

import (
	"slices"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// state is how a machine is wanted at a commit.
type state struct {
	// key is equal where the machine is wanted in the same way; empty where it is not wanted.
	key     string
	vm      *schemas.VM
	problem string
	// desired is made of files, the ones that concern the machine.
	desired *schemas.Desired
	files   []*schemas.File
}

func (s *state) absent() bool { return s.key == "" }

// viewer looks at machines in snapshots and remembers the last look, because most commits change nothing that concerns
// one machine.
type viewer struct {
	concerns map[*schemas.File]bool
	address  schemas.Address
	last     *state
}

func (v *viewer) look(snapshot *sources.Snapshot, address schemas.Address) *state {
	const spare = 10_000 // files of other commits that are remembered
	if v.address != address || v.concerns == nil || len(v.concerns) > len(snapshot.Files)+spare {
		*v = viewer{concerns: map[*schemas.File]bool{}, address: address}
	}
	var files []*schemas.File
	for _, file := range snapshot.Files {
		concerns, known := v.concerns[file]
		if !known {
			concerns = file.Concerns(address)
			v.concerns[file] = concerns
		}
		if concerns {
			files = append(files, file)
		}
	}
	if v.last == nil || !slices.Equal(files, v.last.files) {
		v.last = stateOf(files, address)
	}
	return v.last
}

// stateOf assembles the files that concern a machine, and finds it whatever its kind is.
func stateOf(files []*schemas.File, address schemas.Address) *state {
	s := &state{files: files, desired: schemas.Assemble(files)}
	named := func(a schemas.Address) bool {
		return a.IsMachine() && a.Namespace == address.Namespace && a.Name == address.Name
	}
	for _, vm := range s.desired.VMs {
		if named(vm.Address) {
			s.vm, s.key = vm, s.desired.Fleet.Name+"\x00"+vm.Hash
			return s
		}
	}
	for _, broken := range s.desired.Broken {
		if named(broken.Address) || address.IsMemberOf(broken.Address) {
			s.problem = problemOf(s.desired, broken)
			s.key = "broken\x00" + s.problem
			return s
		}
	}
	return s
}

// problemOf is the first mistake of a broken object.
func problemOf(desired *schemas.Desired, broken schemas.Broken) string {
	for _, diagnostic := range desired.Diagnostics {
		if diagnostic.Severity != schemas.SeverityWarning && diagnostic.Address == broken.Address {
			return diagnostic.Error()
		}
	}
	return broken.Position.Short() + ": its manifest has errors"
}

// entryOf says what a commit did, compared with its first parent.
func entryOf(n *node, parents []*node, previous *schemas.Address) Entry {
	entry := Entry{
		Revision: n.commit.Revision, Author: n.commit.Author, Time: n.commit.Time.UTC(), Subject: n.commit.Subject,
		Address: n.address, Previous: previous, Kind: Changed, Problem: n.state.problem,
	}
	before := &state{desired: schemas.Assemble(nil)}
	for _, parent := range parents {
		if !parent.state.absent() {
			before = parent.state
			break
		}
		if len(parent.state.files) > 0 {
			before = parent.state
		}
	}
	entry.Files = changedFiles(before, n.state)
	switch {
	case n.state.problem != "":
		entry.Kind = Broken
		return entry
	case n.state.absent():
		entry.Kind, entry.Consequence = Removed, plan.ConsequenceDestroy
		return entry
	case previous != nil:
		entry.Kind = Renamed
	case before.absent():
		entry.Kind = Created
		return entry
	}
	if before.vm == nil { // nobody can tell what a broken one was meant to be
		entry.Kind = Mended
		return entry
	}
	if step := meaning(before, n.state, previous); step != nil {
		entry.Consequence, entry.Changes = step.Consequence, step.Changes
	}
	return entry
}

// meaning plans from one state to the other, as if all guests ran; nil when there is nothing to do.
func meaning(before, after *state, previous *schemas.Address) *plan.Step {
	have := plan.FromDesired(before.desired, "")
	for _, domain := range have.Domains {
		if previous != nil && domain.Address == *previous {
			domain.Address = after.vm.Address // the same domain under another name
		}
	}
	slices.SortFunc(have.Domains, func(a, b *plan.Domain) int { return a.Address.Compare(b.Address) })
	p, err := plan.Build(after.desired, have, plan.Options{})
	if err != nil {
		return nil
	}
	for i := range p.Steps {
		if p.Steps[i].Address == after.vm.Address {
			return &p.Steps[i]
		}
	}
	return nil
}

// changedFiles names the files that concern the machine and differ: its own when that is among them.
func changedFiles(before, after *state) []string {
	of := func(s *state) map[string]*schemas.File {
		files := make(map[string]*schemas.File, len(s.files))
		for _, file := range s.files {
			files[file.Path] = file
		}
		return files
	}
	old, present := of(before), of(after)
	var changed []string
	for path, file := range present {
		if old[path] != file {
			changed = append(changed, path)
		}
	}
	for path := range old {
		if present[path] == nil {
			changed = append(changed, path)
		}
	}
	slices.Sort(changed)
	for _, s := range []*state{after, before} {
		if s.vm != nil && slices.Contains(changed, s.vm.Position.File) {
			return []string{s.vm.Position.File}
		}
	}
	return changed
}
