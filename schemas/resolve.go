package schemas

import (
	"fmt"
	"slices"
	"strings"
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
}

// resolveReferences gives machines what they refer to.
func (a *assembly) resolveReferences() {
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || len(e.vm.references) == 0 {
			continue
		}
		a.found = a.found[:0]
		for j := range e.vm.references {
			a.lookup(&e.vm.references[j])
		}
		if last := e.vm.resolved.Load(); last != nil && last.fleet == a.desired.Fleet && slices.Equal(last.found, a.found) {
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
			e.vm.resolved.Store(&resolution{found: slices.Clone(a.found), fleet: a.desired.Fleet, vm: vm})
		}
		e.vm = vm
	}
}

// find returns the object at an address, unless it has mistakes.
func (a *assembly) find(address Address) *object {
	if _, broken := a.brokenObjects[address]; broken {
		return nil
	}
	return a.objects[address]
}

// findClaim returns the object that makes a claim. A DataVolume makes a claim of its name.
func (a *assembly) findClaim(address Address) *object {
	if found := a.find(address); found != nil {
		return found
	}
	return a.find(otherClaim(address))
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
func (a *assembly) lookup(r *reference) {
	if r.address.Kind == kindDevice {
		return
	}
	if !isClaim(r.address.Kind) {
		a.found = append(a.found, a.find(r.address))
		return
	}
	claim := a.findClaim(r.address)
	a.found = append(a.found, claim)
	if claim == nil {
		return
	}
	source := claim.value.(*claimSource) //nolint:forcetypeassert // of this kind
	for i := range source.links {
		a.found = append(a.found, a.find(source.links[i].address))
	}
	a.found = append(a.found, a.bound[claimName{r.address.Namespace, r.address.Name}])
}

// missed reports a reference that finds nothing, or something with mistakes.
func (a *assembly) missed(e *entry, r *reference) bool {
	severity := SeverityError
	kind := r.address.Kind
	message, fix := fmt.Sprintf("no %s %s in the namespace %s", kind, quoteValue(r.address.Name), r.address.Namespace), ""
	if isClusterKind(kind) {
		message = fmt.Sprintf("no %s %s", kind, quoteValue(r.address.Name))
	}
	position, broken := a.brokenObjects[r.address]
	if !broken && isClaim(kind) {
		position, broken = a.brokenObjects[otherClaim(r.address)]
	}
	if broken {
		message, fix = fmt.Sprintf("the %s %s at %s has mistakes", kind, quoteValue(r.address.Name), position), "mend the "+kind
	} else {
		fix = a.suggest(r.address)
		if a.allowMissing {
			severity = SeverityWarning
		}
	}
	a.tell(severity, r.position, e.address, r.path, message, fix)
	return severity == SeverityWarning
}

// suggest says what to do about an object that is not there: a similar name, or the same in another namespace.
func (a *assembly) suggest(address Address) string {
	var names []string
	var elsewhere *object
	a.missing++
	for other, object := range a.objects {
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
		found := a.objects[same]
		if found == nil {
			found = a.objects[otherClaim(same)]
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
	found := a.find(r.address)
	if found == nil {
		_, broken := a.brokenObjects[r.address]
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
	found := a.findClaim(r.address)
	if found == nil {
		return a.missed(e, r)
	}
	source := found.value.(*claimSource) //nolint:forcetypeassert // of this kind
	claim := source.claim
	claim.Namespace, claim.Name = r.address.Namespace, r.address.Name
	volume := a.bound[claimName{claim.Namespace, claim.Name}]
	for i := range source.links {
		link := &source.links[i]
		switch target := a.find(link.address); {
		case target == nil: // as was told of the claim
		case link.address.Kind == KindSecret:
			claim.SourceContent = target.value.(Content) //nolint:forcetypeassert // of this kind
		case link.address.Kind == KindPersistentVolume:
			volume = target
		}
	}
	if volume != nil {
		v := volume.value.(*volumeSource) //nolint:forcetypeassert // of this kind
		claim.Path, claim.Block = v.path, claim.Block || v.block
		if claim.Capacity > v.capacity && v.capacity > 0 {
			a.fail(r.position, e.address, r.path, fmt.Sprintf("the %s %s at %s asks for more than the PersistentVolume %s at %s has",
				found.address.Kind, quoteValue(claim.Name), found.position, quoteValue(volume.address.Name), volume.position), "ask for less, or name a larger volume")
			return false
		}
		claim.Capacity = max(claim.Capacity, v.capacity)
		claim.Source = nil // the volume has its data already
	}
	if out.claims == nil {
		out.claims = map[string]Claim{}
	}
	out.claims[r.use] = claim
	return true
}

// resolveNetwork checks that a network exists, as far as the repository has networks at all, and finds the device of an
// SR-IOV interface.
func (a *assembly) resolveNetwork(out *resolved, e *entry, r *reference) bool {
	found := a.find(r.address)
	if found == nil {
		switch {
		case r.device && !a.hasNetworks:
			severity := SeverityError
			if a.allowMissing {
				severity = SeverityWarning
			}
			a.tell(severity, r.position, e.address, r.path, fmt.Sprintf("no NetworkAttachmentDefinition %s/%s says which devices the network has", r.address.Namespace, r.address.Name),
				"add it, with the annotation "+annotationResource)
			return a.allowMissing
		case a.hasNetworks:
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

// resolveSubdomain warns of a subdomain that no headless Service makes resolvable. A repository without Services has them
// elsewhere, or needs none.
func (a *assembly) resolveSubdomain(e *entry, r *reference) {
	if !a.hasServices {
		return
	}
	found := a.find(r.address)
	switch {
	case found == nil:
		a.tell(SeverityWarning, r.position, e.address, r.path, fmt.Sprintf("no Service %s in the namespace %s makes the subdomain resolvable", quoteValue(r.address.Name), r.address.Namespace), a.suggest(r.address))
	case !found.value.(*service).headless: //nolint:forcetypeassert // of this kind
		a.tell(SeverityWarning, r.position, e.address, r.path, fmt.Sprintf("the Service %s at %s is not headless, so it makes no names under the subdomain", quoteValue(r.address.Name), found.position), "write clusterIP: None there")
	}
}

// checkServices warns of Services that select no machine.
func (a *assembly) checkServices() {
	if !a.hasServices {
		return
	}
	byLabel := map[string][]*VM{}
	pair := func(namespace, name, value string) string {
		return strings.Join([]string{namespace, name, value}, "\x00")
	}
	for address, object := range a.objects {
		if s, ok := object.value.(*service); ok {
			for name, value := range s.selector {
				byLabel[pair(address.Namespace, name, value)] = nil
			}
		}
	}
	for i := range a.entries {
		vm := a.entries[i].vm
		if vm == nil {
			continue
		}
		for name, value := range vm.labels {
			k := pair(vm.Address.Namespace, name, value)
			if _, wanted := byLabel[k]; wanted {
				byLabel[k] = append(byLabel[k], vm)
			}
		}
		k := pair(vm.Address.Namespace, labelVMName, vm.Address.Name)
		if _, wanted := byLabel[k]; wanted {
			byLabel[k] = append(byLabel[k], vm)
		}
	}
	for address, object := range a.objects {
		s, ok := object.value.(*service)
		if !ok || len(s.selector) == 0 {
			continue
		}
		var some []*VM
		first := true
		for name, value := range s.selector {
			if candidates := byLabel[pair(address.Namespace, name, value)]; first || len(candidates) < len(some) {
				some, first = candidates, false
			}
		}
		if !slices.ContainsFunc(some, func(vm *VM) bool { return selects(s.selector, vm) }) {
			a.tell(SeverityWarning, object.position, address, "spec.selector", "the Service selects no machine of its namespace",
				"write labels that a machine has under spec.template.metadata.labels")
		}
	}
}

// labelVMName is the label that KubeVirt gives every machine.
const labelVMName = "vm.kubevirt.io/name"

func selects(selector map[string]string, vm *VM) bool {
	for name, value := range selector {
		if have, ok := vm.labels[name]; ok && have == value || name == labelVMName && value == vm.Address.Name {
			continue
		}
		return false
	}
	return true
}

// checkLinks reports claims that refer to what is not there; machines that use them are broken by it.
func (a *assembly) checkLinks(objects []*object) {
	for _, o := range objects {
		source, ok := o.value.(*claimSource)
		if !ok {
			continue
		}
		for i := range source.links {
			link := &source.links[i]
			if a.find(link.address) != nil || isClaim(link.address.Kind) && a.find(otherClaim(link.address)) != nil {
				continue
			}
			if !a.missed(&entry{address: o.address}, link) {
				a.brokenObjects[o.address] = o.position
			}
		}
	}
}

// checkShared reports claims that several machines write to.
func (a *assembly) checkShared() {
	type user struct {
		entry     *entry
		reference *reference
	}
	users := map[claimName][]user{}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || e.broken || len(e.vm.Claims) == 0 {
			continue
		}
		for j := range e.vm.references {
			r := &e.vm.references[j]
			if isClaim(r.address.Kind) {
				k := claimName{r.address.Namespace, r.address.Name}
				users[k] = append(users[k], user{e, r})
			}
		}
	}
	for k, all := range users {
		if len(all) < 2 || !slices.ContainsFunc(all, func(u user) bool { return !u.reference.readOnly && !u.entry.vm.Claims[u.reference.use].Shared }) {
			continue
		}
		for i, u := range all {
			other := all[0]
			if i == 0 {
				other = all[1]
			}
			u.entry.broken = true
			a.fail(u.reference.position, u.entry.address, u.reference.path,
				fmt.Sprintf("%s uses the claim %s too, at %s", other.entry.address, quoteValue(k.name), other.reference.position),
				"give each machine its own claim, or use accessModes: [ReadWriteMany] with disks that take part")
		}
	}
}

// claimName is the namespace and name of a claim.
type claimName struct{ namespace, name string }
