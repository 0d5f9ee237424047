package schemas

// Concerns reports whether a file may take part in what is wanted of a machine: it names the machine or a set that the
// machine may belong to, holds objects that machines refer to or the Fleet, or nobody can tell. What is wanted of the
// machine is the same with these files alone, but for clashes with other machines.
func (f *File) Concerns(machine Address) bool {
	if f.Opaque || f.Fleet != nil || len(f.objects) > 0 {
		return true
	}
	named := func(a Address) bool {
		return (a.IsMachine() && a.Namespace == machine.Namespace && a.Name == machine.Name) || machine.IsMemberOf(a)
	}
	for _, vm := range f.VMs {
		if named(vm.Address) {
			return true
		}
	}
	for _, draft := range f.drafts {
		if named(draft.address) {
			return true
		}
	}
	for _, list := range [][]Broken{f.Broken, f.paused} {
		for _, object := range list {
			if named(object.Address) || !object.Address.IsMachine() {
				return true
			}
		}
	}
	return false
}
