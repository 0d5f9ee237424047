package schemas

import (
	"fmt"
	"slices"
	"strings"
)

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
			target := a.find(link.address)
			if target == nil && isClaim(link.address.Kind) {
				target = a.find(otherClaim(link.address))
			}
			if target != nil {
				if isClaim(link.address.Kind) && a.volumeOf(o) == nil && !a.copies(o, link, target) {
					a.brokenObjects[o.address] = o.position
				}
				continue
			}
			if !a.missed(&entry{address: o.address}, link) {
				a.brokenObjects[o.address] = o.position
			}
		}
	}
}

// volumeOf returns the PersistentVolume that a claim stands for; nil when the host makes its image.
func (a *assembly) volumeOf(claim *object) *object {
	source := claim.value.(*claimSource) //nolint:forcetypeassert // of this kind
	for i := range source.links {
		if source.links[i].address.Kind == KindPersistentVolume {
			return a.find(source.links[i].address)
		}
	}
	return a.bound[claimName{claim.address.Namespace, claim.address.Name}]
}

// copies reports whether the source of a copy can be one: a host copies the images that it made itself, and nothing is a copy of
// itself or larger than its copy.
func (a *assembly) copies(claim *object, link *reference, source *object) bool {
	if !a.ends(claim, source) {
		a.fail(link.position, claim.address, link.path, fmt.Sprintf("the %s %s would be a copy of itself in the end", claim.address.Kind, quoteValue(claim.address.Name)),
			"fill one of the claims from elsewhere")
		return false
	}
	has, wants := source.value.(*claimSource).claim.Capacity, claim.value.(*claimSource).claim.Capacity //nolint:forcetypeassert // of this kind
	if wants > 0 && has > wants {
		a.fail(link.position, claim.address, link.path, fmt.Sprintf("the %s %s at %s is larger than its copy", source.address.Kind, quoteValue(source.address.Name), source.position),
			"ask for at least as much storage as it has")
		return false
	}
	volume := a.volumeOf(source)
	if volume == nil {
		return true
	}
	a.fail(link.position, claim.address, link.path, fmt.Sprintf("the %s %s is the PersistentVolume %s at %s, and gitvirt copies only claims whose image it made itself",
		source.address.Kind, quoteValue(source.address.Name), quoteValue(volume.address.Name), volume.position),
		"import the image with http, or copy it on the host and name the copy in a PersistentVolume")
	return false
}

// ends reports whether following the sources of copies comes to an end.
func (a *assembly) ends(claim, source *object) bool {
	for range maxCopies {
		if source == nil || source == claim {
			break
		}
		var next *object
		for _, link := range source.value.(*claimSource).links { //nolint:forcetypeassert // of this kind
			if isClaim(link.address.Kind) {
				next = a.findClaim(link.address)
			}
		}
		if next == nil {
			return true
		}
		source = next
	}
	return false
}

// claimUser is a machine and how it refers to a claim.
type claimUser struct {
	entry     *entry
	reference *reference
}

// checkShared reports claims that several machines write to.
func (a *assembly) checkShared() {
	first := map[*object]claimUser{}
	several := map[*object][]claimUser{}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil || e.broken {
			continue
		}
		for _, use := range e.vm.uses {
			user := claimUser{e, use.reference}
			if other, taken := first[use.claim]; !taken {
				first[use.claim] = user
			} else if len(several[use.claim]) == 0 {
				several[use.claim] = []claimUser{other, user}
			} else {
				several[use.claim] = append(several[use.claim], user)
			}
		}
	}
	for claim, users := range several {
		if !slices.ContainsFunc(users, func(u claimUser) bool { return !u.reference.shared && !u.entry.vm.Claims[u.reference.use].Shared }) {
			continue
		}
		for i, u := range users {
			other := users[0]
			if i == 0 {
				other = users[1]
			}
			u.entry.broken = true
			a.fail(u.reference.position, u.entry.address, u.reference.path,
				fmt.Sprintf("%s uses the claim %s too, at %s", other.entry.address, quoteValue(claim.address.Name), other.reference.position),
				"give each machine its own claim, make every disk of it shareable or read-only, or use accessModes: [ReadWriteMany]")
		}
	}
}

// claimName is the namespace and name of a claim.
type claimName struct{ namespace, name string }
