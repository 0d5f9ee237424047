package schemas

import (
	"fmt"
	"slices"
)

// Desired is what all files of one revision ask for together.
type Desired struct {
	// Fleet is never nil: it is DefaultFleet when the repository has none.
	Fleet *Fleet
	// HasFleet says that the repository has a Fleet.
	HasFleet bool
	// VMs are the machines without mistakes, ordered by Address.Compare.
	VMs []*VM
	// Broken are the objects that the files name but that have mistakes, in the same order. An address here is never
	// also in VMs.
	Broken []Broken
	// Paused are the sets (spec.paused) whose machines are left as they are, ordered by Address.Compare.
	Paused []Broken
	// Objects are what a cluster gets as it is, ordered by Address.Compare; nothing where the Fleet's platform is a host.
	Objects []*Object
	// Opaque are the files that may ask for more than could be read, and the sources of which nothing could be read.
	Opaque []Position
	// Diagnostics are those of all files and those that show between files, sorted.
	Diagnostics Diagnostics
	// Files counts the manifest files.
	Files int
	// Proposed is the Fleet of the files where another one judges (JudgedBy); nil elsewhere.
	Proposed *Fleet
	// Partial says that only some of the files were read; then nothing is missing because it is not here. Assemble
	// never sets it.
	Partial bool
}

// Option changes what Assemble does.
type Option func(*assembly)

// AllowMissing makes warnings of Secrets, ConfigMaps, claims, networks and host devices that are not there, and keeps the
// machines that refer to them: for manifests whose surroundings are elsewhere. Instancetypes and preferences must be
// there all the same, because nobody can tell the machine without them.
func AllowMissing() Option { return func(a *assembly) { a.allowMissing = true } }

// JudgedBy lets a Fleet count in place of that of the files: for changes that are only proposed, which are judged by the rules that
// hold, and not by those that they bring along.
func JudgedBy(fleet *Fleet) Option { return func(a *assembly) { a.judge = fleet } }

// Assemble puts the files of a revision together and checks what only shows between them. It changes no file.
func Assemble(files []*File, options ...Option) *Desired {
	a := &assembly{desired: &Desired{Files: len(files)}}
	for _, option := range options {
		option(a)
	}
	a.gather(files)
	a.gatherObjects(files)
	a.expandDrafts(files)
	a.checkRights()
	a.checkClaims()
	a.checkLinks(files)
	a.checkNames()
	a.remains = a.remnants()
	a.checkHoldings()
	a.checkDerived()
	a.resolveReferences()
	a.checkShared()
	a.checkLeftClaims()
	a.checkServices()
	a.checkSettings()
	a.checkQuotas()
	a.passedOn()
	return a.finish()
}

// entry is one object of the desired state: a machine, or a broken object.
type entry struct {
	address  Address
	position Position
	previous Address
	vm       *VM
	broken   bool
	// refused says that its source may not have it: it takes nothing from others that it does not have already.
	refused bool
}

type assembly struct {
	desired      *Desired
	allowMissing bool
	// judge is the Fleet that counts; nil for that of the files.
	judge *Fleet
	// holding says what lives; nil when nobody knows.
	holding Living
	entries []entry
	// main is what the repository of the Fleet has, sources what the others have, by their names; within are those that may speak of a
	// namespace.
	main    *space
	sources map[string]*space
	within  map[string][]*space
	// remains are machines that have more than their manifests say.
	remains []remnant
	// living is what was found out of machines that live; told are mistakes that are told once.
	living map[Address]*living
	told   map[Diagnostic]bool
	// missing counts references to what is not there.
	missing int
	// found is what one machine's references find; kept to be used again.
	found []*object
}

func (a *assembly) gather(files []*File) {
	d := a.desired
	machines := 0
	for _, f := range files {
		machines += len(f.VMs) + len(f.Broken)
	}
	a.entries = make([]entry, 0, machines)
	a.makeSpaces(files)
	for _, f := range files {
		s := a.space(f.Source)
		d.Diagnostics = append(d.Diagnostics, f.Diagnostics...)
		d.Paused = append(d.Paused, f.paused...)
		if f.Opaque {
			s.opaque = Position{Source: f.Source, File: f.Path}
			d.Opaque = append(d.Opaque, s.opaque)
		}
		for _, vm := range f.VMs {
			a.entries = append(a.entries, entry{address: vm.Address, position: vm.Position, previous: vm.Previous(), vm: vm})
		}
		for _, b := range f.Broken {
			a.entries = append(a.entries, entry{address: b.Address, position: b.Position, previous: b.Previous, broken: true})
			if !isMachineKind(b.Address.Kind) {
				s.brokenObjects[b.Address] = b.Position
				s.see(b.Address)
			}
		}
		a.gatherFleet(f)
	}
	if d.Fleet == nil {
		d.Fleet = defaultFleet()
		for _, f := range files {
			if f.mayHoldFleet {
				d.Fleet = d.Fleet.doubtful("the Fleet may be in a file that cannot be read: " + f.Path)
				break
			}
		}
	}
	if a.judge != nil {
		d.Proposed, d.Fleet = d.Fleet, a.judge
	}
	a.giveRights()
}

func (a *assembly) gatherFleet(f *File) {
	d := a.desired
	if f.Fleet == nil {
		return
	}
	if !d.HasFleet {
		d.Fleet, d.HasFleet = f.Fleet, true
		return
	}
	first, second := d.Fleet.Position, f.Fleet.Position
	if second.compare(first) < 0 {
		first, second = second, first
		d.Fleet = f.Fleet
	}
	d.Fleet = d.Fleet.doubtful(twoFleets)
	a.fail(second, Address{Kind: KindFleet, Namespace: DefaultNamespace, Name: f.Fleet.Name}, "kind", fmt.Sprintf("a second Fleet; the first is at %s", first), "keep one")
}

// gatherObjects indexes what machines refer to. A DataVolume and a PersistentVolumeClaim of one name would be one claim.
func (a *assembly) gatherObjects(files []*File) {
	twice := map[objectKey][]*object{}
	bound := map[objectKey][]*object{}
	for _, f := range files {
		s := a.space(f.Source)
		for _, o := range f.objects {
			if f.Source != "" && !a.permitted(s, o) {
				continue
			}
			s.see(o.address)
			same := s.objects[o.address]
			if same == nil || o.position.compare(same.position) < 0 {
				s.objects[o.address] = o
			}
			first := same
			if first == nil && isClaim(o.address.Kind) {
				first = s.objects[otherClaim(o.address)]
			}
			if first != nil {
				k := objectKey{f.Source, o.address}
				k.address.Kind = sameClaim(k.address.Kind)
				if len(twice[k]) == 0 {
					twice[k] = []*object{first}
				}
				twice[k] = append(twice[k], o)
			}
			if volume, ok := o.value.(*volumeSource); ok && volume.name != "" && first == nil {
				claim := objectKey{address: Address{Kind: KindPersistentVolumeClaim, Namespace: volume.namespace, Name: volume.name}}
				bound[claim] = append(bound[claim], o)
			}
		}
	}
	a.clash(twice, "metadata.name", func(other *object) string {
		return fmt.Sprintf("%s is also at %s", other.address, other.position)
	})
	a.clash(bound, "spec.claimRef.name", func(other *object) string {
		return fmt.Sprintf("the PersistentVolume %s at %s is for the same claim", quoteValue(other.address.Name), other.position)
	})
	if len(bound) > 0 {
		a.main.bound = make(map[claimName]*object, len(bound))
	}
	for claim, volumes := range bound {
		if a.find(a.main, volumes[0].address) != nil {
			a.main.bound[claimName{claim.address.Namespace, claim.address.Name}] = volumes[0]
		}
	}
}

// objectKey is an object of one repository.
type objectKey struct {
	source  string
	address Address
}

// sameClaim returns one kind for those that make a claim.
func sameClaim(kind string) string {
	if isClaim(kind) {
		return KindPersistentVolumeClaim
	}
	return kind
}

// clash reports the objects of groups of more than one, each at its place; machines that refer to them are broken by it.
func (a *assembly) clash(groups map[objectKey][]*object, path string, message func(other *object) string) {
	for _, group := range groups {
		if len(group) < 2 {
			continue
		}
		slices.SortFunc(group, func(x, y *object) int { return x.position.compare(y.position) })
		for i, o := range group {
			other := group[0]
			if i == 0 {
				other = group[1]
			}
			a.fail(o.position, o.address, path, message(other), "keep one")
			a.space(o.position.Source).brokenObjects[o.address] = group[0].position
		}
	}
}

func (a *assembly) tell(severity Severity, at Position, address Address, path, message, fix string) {
	a.desired.Diagnostics = append(a.desired.Diagnostics, Diagnostic{
		Position: at, Severity: severity, Address: address, Path: path, Message: message, Fix: fix,
	})
}

func (a *assembly) fail(at Position, address Address, path, message, fix string) {
	a.tell(SeverityError, at, address, path, message, fix)
}

// IsMachine tells the addresses that become a domain.
func (a Address) IsMachine() bool {
	return a.Kind == KindVirtualMachine || a.Kind == KindVirtualMachineInstance
}

// checkNames finds names that are given twice. Objects of one namespace and name are neighbours once sorted; a
// VirtualMachine and a VirtualMachineInstance of one name would be one domain.
func (a *assembly) checkNames() {
	a.sortEntries()
	for start := 0; start < len(a.entries); {
		end := start + 1
		for end < len(a.entries) && a.entries[end].address.Namespace == a.entries[start].address.Namespace &&
			a.entries[end].address.Name == a.entries[start].address.Name {
			end++
		}
		if end-start > 1 {
			a.checkSameName(a.entries[start:end])
		}
		start = end
	}
	if len(a.sources) > 0 {
		a.checkHeld()
	}
}

func (a *assembly) checkSameName(group []entry) {
	all := make([]*entry, len(group))
	several := false
	for i := range group {
		all[i] = &group[i]
		several = several || group[i].position.Source != group[0].position.Source
	}
	if several {
		a.nameRivals(all)
		return
	}
	a.sameName(all)
}

// sortEntries orders the entries by address and place.
func (a *assembly) sortEntries() {
	order := func(x, y entry) int {
		if c := x.address.Compare(y.address); c != 0 {
			return c
		}
		return x.position.compare(y.position)
	}
	if !slices.IsSortedFunc(a.entries, order) {
		slices.SortFunc(a.entries, order)
	}
}

// sameName reports what one repository has twice.
func (a *assembly) sameName(group []*entry) {
	for i, e := range group {
		for j, other := range group {
			if i == j {
				continue
			}
			same := e.address == other.address
			if !same && !(e.address.IsMachine() && other.address.IsMachine()) {
				continue
			}
			e.broken = true
			message, fix := fmt.Sprintf("%s is also at %s", e.address, other.position), "rename or remove one"
			if !same {
				message = fmt.Sprintf("%s at %s would be the same domain", other.address, other.position)
			}
			if other.isMember() {
				message += ", where it is a member of " + other.vm.Owner.String()
			}
			if e.isMember() {
				message = fmt.Sprintf("its member %s: %s", e.address.Name, message)
			}
			a.fail(e.position, e.address, "metadata.name", message, fix)
			break // one other place is enough
		}
	}
}

// rank says which of the entries of one address counts: one that is good, else one whose machine lives, else one that its
// source may have.
func (a *assembly) rank(e *entry) int {
	switch {
	case !e.broken:
		return 3
	case len(a.sources) > 0 && a.lives(e):
		return 2
	case !e.refused:
		return 1
	}
	return 0
}

// finish orders what was gathered.
func (a *assembly) finish() *Desired {
	d := a.desired
	d.VMs = make([]*VM, 0, len(a.entries))
	for start := 0; start < len(a.entries); {
		e := &a.entries[start]
		end := start + 1
		for ; end < len(a.entries) && a.entries[end].address == e.address; end++ {
			if other := &a.entries[end]; a.rank(other) > a.rank(e) {
				e = other
			}
		}
		if e.broken {
			d.Broken = append(d.Broken, Broken{Address: e.address, Position: e.position, Previous: e.previous})
		} else {
			d.VMs = append(d.VMs, e.vm)
		}
		start = end
	}
	slices.SortFunc(d.Opaque, Position.compare)
	slices.SortFunc(d.Paused, func(x, y Broken) int { return x.Address.Compare(y.Address) })
	d.Diagnostics.Sort()
	return d
}
