package schemas

import (
	"fmt"
	"slices"
)

// resolution is what the references of a machine resolved to. It holds as long as they find the same objects.
type resolution struct {
	found []*object
	fleet *Fleet
	vm    *VM
}

// resolved collects what the references of one machine resolve to.
type resolved struct {
	contents map[string]Content
	// secret tells the keys of contents that are sensitive.
	secret  map[string]bool
	claims  map[string]Claim
	devices map[string]HostDeviceSelector
	uses    []claimUse
}

// claimUse is a claim that a machine uses, and where it says so.
type claimUse struct {
	claim     *object
	reference *reference
}

// resolveReferences gives machines what they refer to.
func (a *assembly) resolveReferences() {
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || len(e.vm.references) == 0 {
			continue
		}
		a.found = a.found[:0]
		in := a.space(e.position.Source)
		for j := range e.vm.references {
			a.lookup(in, &e.vm.references[j])
		}
		if last := e.vm.memory.resolved.Load(); last != nil && last.fleet == a.desired.Fleet && slices.Equal(last.found, a.found) {
			e.vm = last.vm
			continue
		}
		told := len(a.desired.Diagnostics)
		out := resolved{}
		for j := range e.vm.references {
			if !a.resolve(&out, e, &e.vm.references[j]) {
				e.broken = true
			}
		}
		if e.broken {
			continue
		}
		vm := e.vm.with(&out)
		if told == len(a.desired.Diagnostics) {
			e.vm.memory.resolved.Store(&resolution{found: slices.Clone(a.found), fleet: a.desired.Fleet, vm: vm})
		}
		e.vm = vm
	}
}

func otherClaim(address Address) Address {
	if address.Kind == KindDataVolume {
		address.Kind = KindPersistentVolumeClaim
	} else {
		address.Kind = KindDataVolume
	}
	return address
}

// isClaim tells the kinds that make a claim.
func isClaim(kind string) bool { return kind == KindPersistentVolumeClaim || kind == KindDataVolume }

// lookup adds the objects that decide what a reference resolves to.
func (a *assembly) lookup(s *space, r *reference) {
	if r.address.Kind == kindDevice {
		return
	}
	if !isClaim(r.address.Kind) {
		a.found = append(a.found, a.means(s, r))
		return
	}
	a.lookupClaim(s, a.claimMeant(s, r), r.address, maxCopies)
}

// maxCopies bounds how many claims may be copies one of the other.
const maxCopies = 16

// lookupClaim adds the objects that decide what a claim is, those of the claim that it is a copy of included.
func (a *assembly) lookupClaim(s *space, claim *object, address Address, copies int) {
	a.found = append(a.found, claim)
	if claim == nil {
		return
	}
	source := claim.value.(*claimSource) //nolint:forcetypeassert // of this kind
	for i := range source.links {
		switch link := source.links[i].address; {
		case !isClaim(link.Kind):
			a.found = append(a.found, a.find(s, link))
		case copies > 0:
			a.lookupClaim(s, a.findClaim(s, link), link, copies-1)
		}
	}
	a.found = append(a.found, a.boundTo(address))
}

// missed reports a reference that finds nothing, or something with mistakes.
func (a *assembly) missed(e *entry, r *reference) bool {
	severity := SeverityError
	kind := r.address.Kind
	var fix string
	message := fmt.Sprintf("no %s %s in the namespace %s", kind, quoteValue(r.address.Name), r.address.Namespace)
	if isClusterKind(kind) {
		message = fmt.Sprintf("no %s %s", kind, quoteValue(r.address.Name))
	}
	s := a.space(e.position.Source)
	position, broken := s.brokenObjects[r.address]
	if !broken && isClaim(kind) {
		position, broken = s.brokenObjects[otherClaim(r.address)]
	}
	if several, how := a.ambiguous(s, r.address); several != "" && !broken {
		message, fix = several, how
	} else if broken {
		message, fix = fmt.Sprintf("the %s %s at %s has mistakes", kind, quoteValue(r.address.Name), position), "mend the "+kind
	} else {
		if a.inCluster(r) {
			return true
		}
		fix = a.suggest(s, r.address)
		if a.allowMissing {
			severity = SeverityWarning
		}
	}
	a.tell(severity, r.position, e.address, r.path, message, fix)
	return severity == SeverityWarning
}

// suggest says what to do about an object that is not there: a similar name, or the same in another namespace.
func (a *assembly) suggest(s *space, address Address) string {
	var names []string
	var elsewhere *object
	a.missing++
	for other, object := range s.objects {
		if a.missing > 100 { // somebody dropped a folder; suggestions would only cost time
			break
		}
		if other.Kind != address.Kind && !(isClaim(other.Kind) && isClaim(address.Kind)) {
			continue
		}
		if other.Namespace == address.Namespace {
			names = append(names, other.Name)
		} else if other.Name == address.Name && (elsewhere == nil || other.Compare(elsewhere.address) < 0) {
			elsewhere = object
		}
	}
	slices.Sort(names)
	if near := closest(address.Name, names); near != "" {
		same := address
		same.Name = near
		found := s.objects[same]
		if found == nil {
			found = s.objects[otherClaim(same)]
		}
		return fmt.Sprintf("did you mean %q, at %s?", near, found.position)
	}
	if elsewhere != nil {
		return fmt.Sprintf("the one in the namespace %s, at %s, does not count: move it here", elsewhere.address.Namespace, elsewhere.position)
	}
	if isClusterKind(address.Kind) {
		return "add a " + address.Kind + " of this name"
	}
	return fmt.Sprintf("add a %s of this name in the namespace %s", address.Kind, address.Namespace)
}

// resolve adds what one reference resolves to; false breaks the machine.
func (a *assembly) resolve(out *resolved, e *entry, r *reference) bool {
	switch r.address.Kind {
	case kindDevice:
		return a.resolveDevice(out, e, r, r.address.Name)
	case KindService:
		a.resolveSubdomain(e, r)
		return true
	case KindNetwork:
		return a.resolveNetwork(out, e, r)
	case KindPersistentVolumeClaim, KindDataVolume:
		return a.resolveClaim(out, e, r)
	}
	return a.resolveContent(out, e, r)
}

func (a *assembly) resolveContent(out *resolved, e *entry, r *reference) bool {
	s := a.space(e.position.Source)
	found := a.means(s, r)
	if found == nil {
		_, broken := s.brokenObjects[r.address]
		return r.optional && !broken || a.missed(e, r)
	}
	content := found.value.(Content) //nolint:forcetypeassert // of this kind
	kind, name := r.address.Kind, quoteValue(r.address.Name)
	if wanted := slices.Concat(r.keys, r.anyOf); len(wanted) > 0 {
		value, ok := content.first(wanted...)
		switch {
		case !ok:
			a.fail(r.position, e.address, r.path, fmt.Sprintf("the %s %s at %s has no key %s", kind, name, found.position, wanted[0]), "add it under "+dataField(kind))
			return false
		case len(r.keys) > 0 && len(value) > maxCloudInit:
			a.fail(r.position, e.address, r.path, fmt.Sprintf("%s in the %s at %s is %d bytes long, at most %d are allowed", wanted[0], kind, found.position, len(value), maxCloudInit), "fetch the rest from within the guest")
			return false
		case len(r.keys) > 0:
			content = Content{r.as: value}
		}
	}
	if r.files {
		if long := content.longName(); long != "" {
			a.fail(r.position, e.address, r.path, fmt.Sprintf("the key %s in the %s %s at %s has %d characters, and a file of the volume has at most %d",
				quoteValue(long), kind, name, found.position, len(long), maxFileName), "shorten it")
			return false
		}
	}
	if out.contents == nil {
		out.contents, out.secret = map[string]Content{}, map[string]bool{}
	}
	if both := out.contents[r.use]; both != nil && len(r.keys) > 0 { // user data and network data
		both[r.as] = content[r.as]
	} else {
		out.contents[r.use] = content
	}
	out.secret[r.use] = kind == KindSecret
	return true
}

func dataField(kind string) string {
	if kind == KindSecret {
		return "stringData"
	}
	return "data"
}

func (a *assembly) resolveClaim(out *resolved, e *entry, r *reference) bool {
	s := a.space(e.position.Source)
	found := a.claimMeant(s, r)
	if found == nil {
		return a.missed(e, r)
	}
	claim, volume := a.claim(s, found, r.address, maxCopies)
	if size := sizeOf(volume); size > 0 && claim.Capacity > size {
		a.fail(r.position, e.address, r.path, fmt.Sprintf("the %s %s at %s asks for more than the PersistentVolume %s at %s has",
			found.address.Kind, quoteValue(claim.Name), found.position, quoteValue(volume.address.Name), volume.position), "ask for less, or name a larger volume")
		return false
	}
	if out.claims == nil {
		out.claims = map[string]Claim{}
	}
	out.claims[r.use] = claim
	out.uses = append(out.uses, claimUse{found, r})
	return true
}

// claim puts a claim together, with the claims that it is a copy of, and returns the PersistentVolume that it stands for, if
// any.
func (a *assembly) claim(s *space, found *object, address Address, copies int) (Claim, *object) {
	source := found.value.(*claimSource) //nolint:forcetypeassert // of this kind
	claim := source.claim
	claim.Namespace, claim.Name = address.Namespace, address.Name
	volume := a.boundTo(address)
	for i := range source.links {
		link := source.links[i].address
		if isClaim(link.Kind) {
			if target := a.findClaim(s, link); target != nil && copies > 0 {
				from, _ := a.claim(s, target, link, copies-1)
				claim.CopyOf = &from
			}
			continue
		}
		switch target := a.find(s, link); {
		case target == nil: // as was told of the claim
		case link.Kind == KindSecret:
			claim.SourceContent = target.value.(Content) //nolint:forcetypeassert // of this kind
		case link.Kind == KindPersistentVolume:
			volume = target
		}
	}
	if volume != nil {
		v := volume.value.(*volumeSource) //nolint:forcetypeassert // of this kind
		claim.Path, claim.Block, claim.Capacity = v.path, claim.Block || v.block, max(claim.Capacity, v.capacity)
		claim.Source, claim.CopyOf = nil, nil // the volume has its data already
	}
	return claim, volume
}

// sizeOf returns the size of a PersistentVolume in bytes; 0 when there is none or nothing says it.
func sizeOf(volume *object) int64 {
	if volume == nil {
		return 0
	}
	return volume.value.(*volumeSource).capacity //nolint:forcetypeassert // of this kind
}

// resolveNetwork checks that a network exists, as far as the repository has networks at all, and finds the device of an
// SR-IOV interface.
func (a *assembly) resolveNetwork(out *resolved, e *entry, r *reference) bool {
	s := a.space(e.position.Source)
	found := a.means(s, r)
	if found == nil {
		switch {
		case r.device && !s.hasNetworks:
			severity := SeverityError
			if a.allowMissing {
				severity = SeverityWarning
			}
			a.tell(severity, r.position, e.address, r.path, fmt.Sprintf("no NetworkAttachmentDefinition %s/%s says which devices the network has", r.address.Namespace, r.address.Name),
				"add it, with the annotation "+annotationResource)
			return a.allowMissing
		case s.hasNetworks:
			return a.missed(e, r)
		}
		return true
	}
	if !r.device {
		return true
	}
	network := found.value.(*attachment) //nolint:forcetypeassert // of this kind
	if network.resource == "" {
		a.fail(r.position, e.address, r.path, fmt.Sprintf("the NetworkAttachmentDefinition %s at %s names no resource", quoteValue(r.address.Name), found.position),
			"add the annotation "+annotationResource+" to it")
		return false
	}
	return a.resolveDevice(out, e, r, network.resource)
}

// resolveDevice finds what the Fleet permits for a resource.
func (a *assembly) resolveDevice(out *resolved, e *entry, r *reference, resource string) bool {
	selector, ok := a.desired.Fleet.device(resource)
	if !ok {
		fix := "add it to spec.permittedHostDevices of the Fleet"
		if a.desired.HasFleet {
			fix += " at " + a.desired.Fleet.Position.String()
		}
		if near := closest(resource, a.desired.Fleet.resources()); near != "" {
			fix = fmt.Sprintf("did you mean %s?", near)
		}
		severity := SeverityError
		if a.allowMissing {
			severity = SeverityWarning
		}
		a.tell(severity, r.position, e.address, r.path, "the Fleet permits no host device "+quoteValue(resource), fix)
		return a.allowMissing
	}
	if out.devices == nil {
		out.devices = map[string]HostDeviceSelector{}
	}
	out.devices[r.use] = selector
	return true
}
