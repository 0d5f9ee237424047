package plan

import (
	"bytes"

	"github.com/gitvirt/gitvirt/schemas"
)

// order tells each step when its machine is ready and which others it depends on. Carrying steps out in that order is the
// work of package apply; a plan's own order stays that of the addresses.
func (b *builder) order() {
	var all *machines
	for i := range b.plan.Steps {
		step := &b.plan.Steps[i]
		var depends []schemas.Dependency
		if step.VM != nil {
			step.Ready, depends = step.VM.Settings.Ready, step.VM.Settings.DependsOn
		} else {
			depends = b.applied(step.Address)
		}
		if len(depends) == 0 {
			continue
		}
		if all == nil {
			all = b.machines()
		}
		for _, dependency := range depends {
			step.DependsOn = append(step.DependsOn, all.resolve(dependency)...)
		}
	}
}

// applied returns what a machine depends on that git no longer has, from its record.
func (b *builder) applied(address schemas.Address) []schemas.Dependency {
	have := b.have.Domain(address)
	if have == nil || !bytes.Contains(have.Record, []byte(schemas.AnnotationDependsOn)) {
		return nil
	}
	object, _, err := schemas.ParseRecord(have.Record, true)
	if err != nil {
		return nil // whoever reads the record for more than this says so
	}
	return schemas.DependenciesOf(object.Annotations, address.Namespace)
}

// machines are those that others can depend on.
type machines struct {
	// named are the machines of a name, and of a set of that name.
	named map[machineName][]schemas.Address
	ready map[schemas.Address]schemas.Ready
}

type machineName struct{ namespace, name string }

// machines lists those that git wants, and those that live and are not of them.
func (b *builder) machines() *machines {
	m := &machines{named: map[machineName][]schemas.Address{}, ready: map[schemas.Address]schemas.Ready{}}
	for _, vm := range b.want.VMs {
		k := machineName{vm.Address.Namespace, vm.Address.Name}
		m.named[k] = append(m.named[k], vm.Address)
		if !vm.Owner.IsZero() {
			set := machineName{vm.Owner.Namespace, vm.Owner.Name}
			m.named[set] = append(m.named[set], vm.Address)
		}
		if vm.Settings.Ready != (schemas.Ready{}) {
			m.ready[vm.Address] = vm.Settings.Ready
		}
	}
	for _, domain := range b.have.Domains {
		k := machineName{domain.Address.Namespace, domain.Address.Name}
		if domain.Fleet == b.plan.Fleet && len(m.named[k]) == 0 {
			m.named[k] = []schemas.Address{domain.Address}
		}
	}
	return m
}

// resolve returns the machines that a dependency means: one, or those of a set. How it is ready is said by the dependency, or
// else by the machine itself.
func (m *machines) resolve(dependency schemas.Dependency) []Dependency {
	var out []Dependency
	for _, address := range m.named[machineName{dependency.Namespace, dependency.Name}] {
		ready := dependency.Ready
		if ready == (schemas.Ready{}) {
			ready = m.ready[address]
		}
		out = append(out, Dependency{Address: address, Ready: ready})
	}
	return out
}
