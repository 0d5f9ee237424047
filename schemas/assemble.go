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
	// Opaque lists the files that may ask for more than could be read.
	Opaque []string
	// Diagnostics are those of all files and those that show between files, sorted.
	Diagnostics Diagnostics
	// Files counts the manifest files.
	Files int
	// Partial says that only some of the files were read; then nothing is missing because it is not here. Assemble
	// never sets it.
	Partial bool
}

// Assemble puts the files of a revision together and checks what only shows between them. It changes no file.
func Assemble(files []*File) *Desired {
	a := &assembly{desired: &Desired{Files: len(files)}}
	a.gather(files)
	a.checkNames()
	a.checkClaims()
	a.resolveSecrets()
	return a.finish()
}

// entry is one object of the desired state: a machine, or a broken object.
type entry struct {
	address  Address
	position Position
	vm       *VM
	broken   bool
}

type assembly struct {
	desired *Desired
	entries []entry
	secrets map[Address]*Secret
	// brokenSecrets are Secrets with mistakes.
	brokenSecrets map[Address]Position
	// missing counts references to Secrets that are not there.
	missing int
}

func (a *assembly) gather(files []*File) {
	d := a.desired
	machines, secrets := 0, 0
	for _, f := range files {
		machines += len(f.VMs) + len(f.Broken)
		secrets += len(f.Secrets)
	}
	a.entries = make([]entry, 0, machines)
	a.secrets = make(map[Address]*Secret, secrets)
	a.brokenSecrets = map[Address]Position{}
	for _, f := range files {
		d.Diagnostics = append(d.Diagnostics, f.Diagnostics...)
		if f.Opaque {
			d.Opaque = append(d.Opaque, f.Path)
		}
		for _, vm := range f.VMs {
			a.entries = append(a.entries, entry{address: vm.Address, position: vm.Position, vm: vm})
		}
		for _, b := range f.Broken {
			a.entries = append(a.entries, entry{address: b.Address, position: b.Position, broken: true})
			if b.Address.Kind == KindSecret {
				a.brokenSecrets[b.Address] = b.Position
			}
		}
		a.gatherSecrets(f)
		if f.Fleet == nil {
			continue
		}
		if d.HasFleet {
			first, second := d.Fleet.Position, f.Fleet.Position
			if second.compare(first) < 0 {
				first, second = second, first
				d.Fleet = f.Fleet
			}
			a.fail(second, Address{Kind: KindFleet, Namespace: DefaultNamespace, Name: f.Fleet.Name}, "kind", fmt.Sprintf("a second Fleet; the first is at %s", first), "keep one")
			continue
		}
		d.Fleet, d.HasFleet = f.Fleet, true
	}
}

func (a *assembly) gatherSecrets(f *File) {
	for _, s := range f.Secrets {
		first, taken := a.secrets[s.Address]
		if !taken {
			a.secrets[s.Address] = s
			continue
		}
		for _, pair := range [][2]*Secret{{first, s}, {s, first}} {
			a.fail(pair[0].Position, s.Address, "metadata.name", fmt.Sprintf("%s is also at %s", s.Address, pair[1].Position), "keep one")
			a.brokenSecrets[s.Address] = first.Position
		}
	}
}

func (a *assembly) fail(at Position, address Address, path, message, fix string) {
	a.desired.Diagnostics = append(a.desired.Diagnostics, Diagnostic{
		Position: at, Severity: SeverityError, Address: address, Path: path, Message: message, Fix: fix,
	})
}

// isMachine tells the addresses that become a domain.
func (a Address) isMachine() bool {
	return a.Kind == KindVirtualMachine || a.Kind == KindVirtualMachineInstance
}

// checkNames finds names that are given twice. Objects of one namespace and name are neighbours once sorted; a
// VirtualMachine and a VirtualMachineInstance of one name would be one domain.
func (a *assembly) checkNames() {
	order := func(x, y entry) int {
		if c := x.address.Compare(y.address); c != 0 {
			return c
		}
		return x.position.compare(y.position)
	}
	if !slices.IsSortedFunc(a.entries, order) {
		slices.SortFunc(a.entries, order)
	}
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
}

func (a *assembly) checkSameName(group []entry) {
	for i := range group {
		e := &group[i]
		for j := range group {
			other := &group[j]
			if i == j {
				continue
			}
			same := e.address == other.address
			if !same && !(e.address.isMachine() && other.address.isMachine()) {
				continue
			}
			e.broken = true
			message, fix := fmt.Sprintf("%s is also at %s", e.address, other.position), "rename or remove one"
			if !same {
				message = fmt.Sprintf("the %s of the same name at %s would be the same domain", other.address.Kind, other.position)
			}
			a.fail(e.position, e.address, "metadata.name", message, fix)
			break // one other place is enough
		}
	}
}

// claimant is a machine's claim.
type claimant struct {
	entry *entry
	claim *claim
}

type claimKey struct {
	kind  claimKind
	value string
}

// checkClaims finds MAC addresses, firmware UUIDs and disk images that several machines lay claim to. Hashes, which
// were computed when the files were read, tell the few claims that need a closer look.
func (a *assembly) checkClaims() {
	total := 0
	for i := range a.entries {
		if vm := a.entries[i].vm; vm != nil {
			total += len(vm.claims)
		}
	}
	seen := make(map[uint64]struct{}, total)
	suspects := map[uint64]struct{}{}
	a.eachClaim(func(_ *entry, c *claim) {
		if _, taken := seen[c.hash]; taken {
			suspects[c.hash] = struct{}{}
		}
		seen[c.hash] = struct{}{}
	})
	if len(suspects) == 0 {
		return
	}
	groups := map[claimKey][]claimant{}
	a.eachClaim(func(e *entry, c *claim) {
		if _, suspect := suspects[c.hash]; suspect {
			k := claimKey{c.kind, c.value}
			if group := groups[k]; len(group) == 0 || group[len(group)-1].entry != e { // once per machine
				groups[k] = append(group, claimant{e, c})
			}
		}
	})
	for k, claimants := range groups {
		if len(claimants) > 1 && slices.ContainsFunc(claimants, func(c claimant) bool { return !c.claim.shared }) {
			a.reportConflict(k, claimants)
		}
	}
}

// eachClaim visits the claims that exclude one another.
func (a *assembly) eachClaim(visit func(*entry, *claim)) {
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil {
			continue
		}
		for j := range e.vm.claims {
			if c := &e.vm.claims[j]; c.kind != claimSecret {
				visit(e, c)
			}
		}
	}
}

func (a *assembly) reportConflict(k claimKey, claimants []claimant) {
	fix := "change one, or leave it out: gitvirt derives one"
	if k.kind == claimHostDisk {
		fix = "give each machine its own image, or make every disk of it shareable or read-only"
	}
	for i, c := range claimants {
		other := claimants[0]
		if i == 0 {
			other = claimants[1]
		}
		c.entry.broken = true
		a.fail(c.claim.position, c.entry.address, c.claim.path,
			fmt.Sprintf("%s has the %s %s too, at %s", other.entry.address, k.kind.said(), k.value, other.claim.position), fix)
	}
}

// finish orders what was gathered.
func (a *assembly) finish() *Desired {
	d := a.desired
	if d.Fleet == nil {
		d.Fleet = DefaultFleet()
	}
	d.VMs = make([]*VM, 0, len(a.entries))
	for i := range a.entries {
		e := &a.entries[i]
		switch {
		case !e.broken:
			d.VMs = append(d.VMs, e.vm)
		case len(d.Broken) == 0 || d.Broken[len(d.Broken)-1].Address != e.address:
			d.Broken = append(d.Broken, Broken{Address: e.address, Position: e.position})
		}
	}
	slices.Sort(d.Opaque)
	d.Diagnostics.Sort()
	return d
}

// resolveSecrets gives machines the content of the Secrets that they refer to.
func (a *assembly) resolveSecrets() {
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil {
			continue
		}
		var resolved map[string]Content
		for j := range e.vm.claims {
			c := &e.vm.claims[j]
			if c.kind != claimSecret {
				continue
			}
			value, ok := a.resolveSecret(e, c)
			if !ok {
				e.broken = true
				continue
			}
			if resolved == nil {
				resolved = map[string]Content{}
			}
			volume := resolved[VolumeContent(c.volume)]
			if volume == nil {
				volume = Content{}
				resolved[VolumeContent(c.volume)] = volume
			}
			if c.network {
				volume[ContentNetworkData] = value
			} else {
				volume[ContentUserData] = value
			}
		}
		if resolved != nil && !e.broken {
			e.vm = e.vm.withContents(resolved)
		}
	}
}

// resolveSecret returns the user data or network data of a Secret. The keys are KubeVirt's.
func (a *assembly) resolveSecret(e *entry, c *claim) (string, bool) {
	address := Address{Kind: KindSecret, Namespace: e.address.Namespace, Name: c.value}
	if position, broken := a.brokenSecrets[address]; broken {
		a.fail(c.position, e.address, c.path, fmt.Sprintf("the Secret %s at %s has mistakes", quoteValue(c.value), position), "mend the Secret")
		return "", false
	}
	secret, ok := a.secrets[address]
	if !ok {
		var names []string
		elsewhere := ""
		a.missing++
		for other := range a.secrets {
			if a.missing > 100 { // somebody dropped the folder of Secrets; suggestions would only cost time
				break
			}
			if other.Namespace == address.Namespace {
				names = append(names, other.Name)
			} else if other.Name == address.Name && (elsewhere == "" || other.Namespace < elsewhere) {
				elsewhere = other.Namespace
			}
		}
		slices.Sort(names)
		fix := fmt.Sprintf("add a Secret of this name in the namespace %s", address.Namespace)
		if near := closest(c.value, names); near != "" {
			fix = fmt.Sprintf("did you mean %q, at %s?", near, a.secrets[Address{KindSecret, address.Namespace, near}].Position)
		} else if elsewhere != "" {
			fix = fmt.Sprintf("the one in the namespace %s, at %s, does not count: move it here", elsewhere, a.secrets[Address{KindSecret, elsewhere, address.Name}].Position)
		}
		a.fail(c.position, e.address, c.path, fmt.Sprintf("no Secret %s in the namespace %s", quoteValue(c.value), address.Namespace), fix)
		return "", false
	}
	keys := []string{"userdata", "userData"}
	if c.network {
		keys = []string{"networkdata", "networkData"}
	}
	value, ok := secret.firstValue(keys...)
	switch {
	case !ok:
		a.fail(c.position, e.address, c.path, fmt.Sprintf("the Secret %s at %s has no key %s", quoteValue(c.value), secret.Position, keys[0]), "add it under stringData")
		return "", false
	case len(value) > maxCloudInit:
		a.fail(c.position, e.address, c.path, fmt.Sprintf("%s in the Secret at %s is %d bytes long, at most %d are allowed", keys[0], secret.Position, len(value), maxCloudInit), "fetch the rest from within the guest")
		return "", false
	}
	return value, true
}
