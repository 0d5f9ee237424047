package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// takeover is what is known of machines that take over a domain which exists: under the name that they had, or of others.
type takeover struct {
	// renamed are the domains that become a machine's under another address, by that address; moved are the same by what they are now.
	renamed map[schemas.Address]*Domain
	moved   map[schemas.Address]bool
	// refused says why a machine is neither renamed nor created, by its address.
	refused map[schemas.Address]string
	// spared says why a domain is not destroyed although git no longer has it, by its address; held says it of those
	// that are left without a step.
	spared, held map[schemas.Address]string
	// adopters are the machines that want a domain of others, by its name.
	adopters map[string][]schemas.Address
	// names are the domains of machines whose names do not follow from their address; places are those that were made under another
	// address, by that: names and files of theirs are taken.
	names  map[string]*Domain
	places map[schemas.Address]*Domain
}

// takeovers looks for the machines whose domain has another address. What is unclear is refused, never guessed: nothing is
// destroyed that may be somebody's former self.
func (b *builder) takeovers(domains []*Domain) {
	t := &b.takeover
	*t = takeover{
		renamed: map[schemas.Address]*Domain{}, moved: map[schemas.Address]bool{}, refused: map[schemas.Address]string{},
		spared: map[schemas.Address]string{}, held: map[schemas.Address]string{}, adopters: map[string][]schemas.Address{},
		names: map[string]*Domain{}, places: map[schemas.Address]*Domain{},
	}
	claims := map[schemas.Address][]schemas.Address{}
	for _, vm := range b.want.VMs {
		if len(vm.Object.Annotations) == 0 {
			continue
		}
		if previous := vm.Previous(); !previous.IsZero() && previous != vm.Address {
			claims[previous] = append(claims[previous], vm.Address)
			b.claim(vm, previous, domains)
		}
		if name := vm.Adopts(); name != "" && b.have.Domain(vm.Address) == nil {
			t.adopters[name] = append(t.adopters[name], vm.Address)
		}
	}
	for previous, by := range claims {
		if len(by) < 2 || b.have.Domain(previous) == nil {
			continue
		}
		for _, address := range by {
			if t.renamed[address] != nil {
				delete(t.renamed, address)
				t.refused[address] = fmt.Sprintf("%s also says that it was %s (%s); keep one", other(by, address), short(previous), schemas.AnnotationPreviousName)
			}
		}
		t.spared[previous] = fmt.Sprintf("%s and %s both say that they were it (%s)", short(by[0]), short(by[1]), schemas.AnnotationPreviousName)
		delete(t.moved, previous)
	}
	for _, broken := range b.want.Broken {
		if have := b.have.Domain(broken.Previous); have != nil && !b.wanted(broken.Previous) {
			t.held[have.Address] = fmt.Sprintf("%s says that it was it, and its manifest has errors: %s", short(broken.Address), broken.Position.Short())
		}
	}
	for _, domain := range domains {
		if domain.Name != domainxml.DomainName(domain.Address) {
			t.names[domain.Name] = domain
		}
		if len(domain.Former) > 0 {
			b.former(domain, domains)
		}
	}
}

// claim decides about a machine that says under which address it was.
func (b *builder) claim(vm *schemas.VM, previous schemas.Address, domains []*Domain) {
	t := &b.takeover
	now, old := b.have.Domain(vm.Address), b.have.Domain(previous)
	switch {
	case old == nil:
		// It was renamed already, or there never was one.
	case !mayTake(vm, old):
		t.refused[vm.Address] = fmt.Sprintf("it says that it was %s (%s), which was made from %s; only the repository of the Fleet moves a machine from there", short(previous), schemas.AnnotationPreviousName, orUnknown(old.Holder()))
		if !b.wanted(previous) {
			t.spared[previous] = fmt.Sprintf("%s says that it was it (%s), and may not", short(vm.Address), schemas.AnnotationPreviousName)
		}
	case b.wanted(previous):
		if now == nil {
			t.refused[vm.Address] = fmt.Sprintf("it says that it was %s (%s), which git still has; remove the annotation or the other manifest", short(previous), schemas.AnnotationPreviousName)
		}
	case now != nil:
		t.spared[previous] = fmt.Sprintf("%s says that it was it (%s), and both exist; remove the annotation to have it destroyed", short(vm.Address), schemas.AnnotationPreviousName)
	case old.State == StateMissing:
		t.refused[vm.Address] = fmt.Sprintf("the domain %s of %s, which it was, was undefined outside gitvirt; define it again, or remove %s to have a new one made", old.Name, short(previous), schemas.AnnotationPreviousName)
		t.spared[previous] = t.refused[vm.Address]
	default:
		t.renamed[vm.Address] = old
		t.moved[previous] = true
	}
}

// former looks for a machine that a renamed domain goes back to: git has a name of its past again, and not the present one.
func (b *builder) former(domain *Domain, domains []*Domain) {
	t := &b.takeover
	taken := t.moved[domain.Address] || b.wanted(domain.Address)
	for _, address := range slices.Backward(domain.Former) {
		if b.have.Domain(address) != nil {
			continue
		}
		t.places[address] = domain
		switch vm := b.vm(address); {
		case taken:
		case vm != nil && !mayTake(vm, domain):
		case vm != nil && t.renamed[address] == nil && t.refused[address] == "" && domain.State != StateMissing:
			t.renamed[address] = domain
			t.moved[domain.Address] = true
			taken = true
		case vm == nil && b.wanted(address):
			t.held[domain.Address] = fmt.Sprintf("it was %s, whose manifest has errors", short(address))
			taken = true
		}
	}
}

// mayTake reports whether a machine may become one that exists under another name: what was made from another source is somebody
// else's, with its disks. The repository of the Fleet may ask for everything.
func mayTake(vm *schemas.VM, domain *Domain) bool {
	return vm.Position.Source == "" || vm.Position.Source == domain.Holder()
}

func (b *builder) vm(address schemas.Address) *schemas.VM {
	at, found := slices.BinarySearchFunc(b.want.VMs, address, func(vm *schemas.VM, address schemas.Address) int { return vm.Address.Compare(address) })
	if !found {
		return nil
	}
	return b.want.VMs[at]
}

// wanted reports whether git has a machine of an address, be it with mistakes.
func (b *builder) wanted(address schemas.Address) bool {
	_, broken := slices.BinarySearchFunc(b.want.Broken, address, func(broken schemas.Broken, address schemas.Address) int { return broken.Address.Compare(address) })
	return broken || b.vm(address) != nil
}

func other(all []schemas.Address, than schemas.Address) string {
	for _, address := range all {
		if address != than {
			return short(address)
		}
	}
	return ""
}

func short(address schemas.Address) string { return address.Namespace + "/" + address.Name }

// arrive plans a machine that has no domain of its address.
func (b *builder) arrive(vm *schemas.VM) {
	have := b.takeover.renamed[vm.Address]
	switch {
	case have != nil && (have.Problem != "" || b.foreignFleet(have) != ""):
		b.update(vm, have) // which says why nothing is done
	case have != nil:
		b.rename(vm, have)
	case vm.Adopts() != "" && b.pods != nil:
		b.hold(vm.Address, "it adopts a domain ("+schemas.AnnotationAdopt+"), which only a libvirt host has")
	case vm.Adopts() != "":
		b.adopt(vm)
	default:
		b.create(vm, ReasonNew, nil)
	}
}

// rename plans a domain that becomes that of its machine under another address, with whatever else has changed.
func (b *builder) rename(vm *schemas.VM, have *Domain) {
	if b.pods != nil {
		b.hold(vm.Address, "it says that it was "+short(have.Address)+" ("+schemas.AnnotationPreviousName+"), and a Pod keeps its name; remove the annotation to have it made anew")
		return
	}
	step, err := b.difference(vm, have)
	if err != nil {
		b.hold(vm.Address, err.Error())
		return
	}
	if step.Reason == "" || step.Reason == ReasonChanged {
		step.Reason = ReasonRenamed
	}
	step.Define, step.Previous = true, &have.Address
	step.Consequence = step.Consequence.Worse(ConsequenceNone)
	power, why := b.power(vm, have)
	b.decide(&step, power, why, have)
	from := "is renamed from " + short(have.Address)
	switch {
	case step.Action == ActionUpdate && len(step.Changes) == 0 && step.Power == PowerKeep:
		step.Action = ActionRename
		step.Summary = from + ": the same domain and disks, the guest is not touched"
	case step.Action == ActionUpdate:
		step.Action = ActionRename
		step.Summary = from + " and " + step.Summary
	default:
		step.Summary = from + " and " + step.Summary
	}
	b.block(&step)
	b.add(step)
}

// adopt plans that a domain of others becomes a machine's, as it is.
func (b *builder) adopt(vm *schemas.VM) {
	name := vm.Adopts()
	step := b.step(vm, ActionAdopt, ReasonAdopted)
	step.Domain, step.Adopt, step.Consequence = name, name, ConsequenceNone
	step.Summary = fmt.Sprintf("adopts the domain %s as it is", name)
	foreign, found := b.foreign.byName[name]
	switch by := b.takeover.adopters[name]; {
	case len(by) > 1:
		step.Blocked = fmt.Sprintf("%s adopts the domain %s, too; a domain is one machine", other(by, vm.Address), name)
	case b.takeover.refused[vm.Address] != "":
		step.Blocked = b.takeover.refused[vm.Address]
	case !found:
		step.Blocked = b.notForeign(name)
	case foreign.Problem != "":
		step.Blocked = fmt.Sprintf("the domain %s cannot be adopted: %s", name, foreign.Problem)
	default:
		step.Blocked = b.occupied(vm.Address)
	}
	if found && foreign.Problem == "" {
		step.Precondition, step.Kept = foreign.Fingerprint, foreign.Unexpressed
		step.Summary += ": " + string(foreign.State) + ", and it stays so"
		later, err := b.later(vm, foreign)
		if err != nil {
			step.Blocked = "the domain cannot be compared with its manifest: " + err.Error()
		}
		step.Changes = later
		if len(later) > 0 {
			step.Summary += "; what its manifest has otherwise is a change of its own afterwards"
		}
	}
	b.add(step)
}

// later returns what the manifest has otherwise than the domain: adopting leaves it, and the next plan changes it.
func (b *builder) later(vm *schemas.VM, foreign Foreign) ([]Change, error) {
	changes, err := b.changesTo(vm, foreign.Record, true, judge{live: b.have.Live, off: foreign.State == StateStopped})
	if err != nil {
		return nil, err
	}
	matters := slices.ContainsFunc(changes, func(change Change) bool { return change.Consequence != ConsequenceNone })
	if !matters {
		return nil, nil
	}
	changes = slices.DeleteFunc(changes, func(change Change) bool { return change.Consequence == ConsequenceNone })
	for i := range changes {
		changes[i].Note = "not part of this step; it would be " + string(changes[i].Consequence)
		changes[i].Consequence = ConsequenceNone
	}
	return changes, nil
}

// notForeign says why there is no domain of this name that could be adopted.
func (b *builder) notForeign(name string) string {
	for _, domain := range b.have.Domains {
		switch {
		case domain.Name != name:
		case b.foreignFleet(domain) != "":
			return b.foreignFleet(domain)
		default:
			return fmt.Sprintf("the domain %s is gitvirt's already, as %s; rename that with %s", name, short(domain.Address), schemas.AnnotationPreviousName)
		}
	}
	return fmt.Sprintf("there is no domain named %s on the host; remove %s to have a new one made", name, schemas.AnnotationAdopt)
}

// foreignFleet says that a domain belongs to another fleet; "" when it does not.
func (b *builder) foreignFleet(have *Domain) string {
	if have.Fleet == b.plan.Fleet || have.Fleet == schemas.DefaultFleet().Name {
		return ""
	}
	return fmt.Sprintf("domain %s belongs to the fleet %q, not to %q; remove it there first", have.Name, have.Fleet, b.plan.Fleet)
}

// occupied says that the name or the files of a new domain are those of a machine that was renamed or adopted; "" when they are not.
func (b *builder) occupied(address schemas.Address) string {
	if have := b.takeover.places[address]; have != nil {
		return fmt.Sprintf("%s was made under this name, and its domain %s and its files still have it; choose another name", short(have.Address), have.Name)
	}
	if have := b.takeover.names[domainxml.DomainName(address)]; have != nil {
		return fmt.Sprintf("the domain %s is that of %s; choose another name", have.Name, short(have.Address))
	}
	return ""
}

// changesTo compares what was applied with what is wanted. moved says that the record may be of another address: names and digests of
// sensitive values follow from it and are no change.
func (b *builder) changesTo(vm *schemas.VM, record []byte, moved bool, j judge) ([]Change, error) {
	if moved {
		applied, err := recordAddress(record)
		if err != nil {
			return nil, fmt.Errorf("reading what was applied: %w", err)
		}
		if applied != vm.Address {
			wanted, err := vm.RecordAs(applied)
			if err != nil {
				return nil, fmt.Errorf("reading what is wanted: %w", err)
			}
			return diffRecords(record, wanted, j)
		}
	}
	old, err := b.records.Read(record)
	if err != nil {
		return nil, fmt.Errorf("reading what was applied: %w", err)
	}
	wanted, err := b.records.Of(vm)
	if err != nil {
		return nil, fmt.Errorf("reading what is wanted: %w", err)
	}
	return diff(old, wanted, j), nil
}

func recordAddress(record []byte) (schemas.Address, error) {
	var read struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(record, &read); err != nil {
		return schemas.Address{}, err
	}
	return schemas.Address{Kind: strings.Clone(read.Kind), Namespace: read.Metadata.Namespace, Name: read.Metadata.Name}, nil
}
