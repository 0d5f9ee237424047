package schemas

import (
	"fmt"
	"slices"
	"strings"
)

// resolveSubdomain warns of a subdomain that no headless Service makes resolvable. A repository without Services has them
// elsewhere, or needs none.
func (a *assembly) resolveSubdomain(e *entry, r *reference) {
	s := a.space(e.position.Source)
	if !s.hasServices {
		return
	}
	found := a.find(s, r.address)
	switch {
	case found == nil:
		a.tell(SeverityWarning, r.position, e.address, r.path, fmt.Sprintf("no Service %s in the namespace %s makes the subdomain resolvable", quoteValue(r.address.Name), r.address.Namespace), a.suggest(s, r.address))
	case !found.value.(*service).headless: //nolint:forcetypeassert // of this kind
		a.tell(SeverityWarning, r.position, e.address, r.path, fmt.Sprintf("the Service %s at %s is not headless, so it makes no names under the subdomain", quoteValue(r.address.Name), found.position), "write clusterIP: None there")
	}
}

// checkServices warns of Services that select no machine.
func (a *assembly) checkServices() {
	services := a.services()
	if len(services) == 0 {
		return
	}
	byLabel := map[string][]*VM{}
	pair := func(namespace, name, value string) string {
		return strings.Join([]string{namespace, name, value}, "\x00")
	}
	for _, object := range services {
		for name, value := range object.value.(*service).selector { //nolint:forcetypeassert // of this kind
			byLabel[pair(object.address.Namespace, name, value)] = nil
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
	for _, object := range services {
		s, address := object.value.(*service), object.address //nolint:forcetypeassert // of this kind
		if len(s.selector) == 0 {
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

// services lists those of all repositories.
func (a *assembly) services() []*object {
	var out []*object
	for _, s := range a.spaces() {
		if !s.hasServices {
			continue
		}
		for _, object := range s.objects {
			if _, ok := object.value.(*service); ok {
				out = append(out, object)
			}
		}
	}
	return out
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

// checkLinks reports claims that refer to what is not there; machines that use them are broken by it. What is found out of one claim does not
// depend on whether another was looked at before.
func (a *assembly) checkLinks(files []*File) {
	type mistake struct {
		space *space
		claim *object
	}
	var mistakes []mistake
	for _, f := range files {
		s := a.space(f.Source)
		for _, o := range f.objects {
			source, ok := o.value.(*claimSource)
			if !ok {
				continue
			}
			if _, broken := s.brokenObjects[o.address]; broken && f.Source != "" {
				continue // as was said
			}
			for i := range source.links {
				if !a.checkLink(s, o, &source.links[i]) {
					mistakes = append(mistakes, mistake{s, o})
				}
			}
		}
	}
	for _, m := range mistakes {
		m.space.brokenObjects[m.claim.address] = m.claim.position
	}
}

// checkLink reports whether a claim may and can be made of what a link leads to.
func (a *assembly) checkLink(s *space, o *object, link *reference) bool {
	target := a.find(s, link.address)
	if target == nil && isClaim(link.address.Kind) {
		target = a.find(s, otherClaim(link.address))
	}
	switch {
	case s != a.main && link.address.Kind == KindPersistentVolume && !isFor(target, o.address):
		a.fail(link.position, o.address, link.path, fmt.Sprintf("the PersistentVolume %s is not for this claim", quoteValue(link.address.Name)),
			"have its claimRef name the claim, in the repository of the Fleet")
		return false
	case target == nil:
		return a.missed(&entry{address: o.address, position: o.position}, link)
	}
	return !isClaim(link.address.Kind) || a.volumeOf(s, o) != nil || a.copies(s, o, link, target)
}

// isFor reports whether a PersistentVolume names a claim as the one that it is for.
func isFor(volume *object, claim Address) bool {
	if volume == nil {
		return false
	}
	v, ok := volume.value.(*volumeSource)
	return ok && v.namespace == claim.Namespace && v.name == claim.Name
}

// volumeOf returns the PersistentVolume that a claim stands for; nil when the host makes its image.
func (a *assembly) volumeOf(s *space, claim *object) *object {
	source := claim.value.(*claimSource) //nolint:forcetypeassert // of this kind
	for i := range source.links {
		if source.links[i].address.Kind == KindPersistentVolume {
			return a.find(s, source.links[i].address)
		}
	}
	return a.boundTo(claim.address)
}

// copies reports whether the source of a copy can be one: a host copies the images that it made itself, and nothing is a copy of
// itself or larger than its copy.
func (a *assembly) copies(s *space, claim *object, link *reference, source *object) bool {
	if !a.ends(s, claim, source) {
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
	volume := a.volumeOf(s, source)
	if volume == nil {
		return true
	}
	a.fail(link.position, claim.address, link.path, fmt.Sprintf("the %s %s is the PersistentVolume %s at %s, and gitvirt copies only claims whose image it made itself",
		source.address.Kind, quoteValue(source.address.Name), quoteValue(volume.address.Name), volume.position),
		"import the image with http, or copy it on the host and name the copy in a PersistentVolume")
	return false
}

// ends reports whether following the sources of copies comes to an end.
func (a *assembly) ends(s *space, claim, source *object) bool {
	for range maxCopies {
		if source == nil || source == claim {
			break
		}
		var next *object
		for _, link := range source.value.(*claimSource).links { //nolint:forcetypeassert // of this kind
			if isClaim(link.address.Kind) {
				next = a.findClaim(s, link.address)
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
		switch {
		case !exclusive(users):
		case len(a.sources) == 0:
			a.reportShared(claim, users)
		default:
			for _, same := range a.claimRivals(claim, users) {
				a.reportShared(claim, same)
			}
		}
	}
}

// exclusive reports whether one of several machines wants a claim for itself.
func exclusive(users []claimUser) bool {
	return len(users) > 1 && slices.ContainsFunc(users, func(u claimUser) bool { return !u.reference.shared && !u.entry.vm.Claims[u.reference.use].Shared })
}

const ownClaimFix = "give each machine its own claim, make every disk of it shareable or read-only, or use accessModes: [ReadWriteMany]"

// reportShared reports machines of one repository that write to one claim.
func (a *assembly) reportShared(claim *object, users []claimUser) {
	if !exclusive(users) {
		return
	}
	for i, u := range users {
		other := users[0]
		if i == 0 {
			other = users[1]
		}
		u.entry.broken = true
		a.fail(u.reference.position, u.entry.address, u.reference.path,
			fmt.Sprintf("%s uses the claim %s too, at %s", other.entry.address, quoteValue(claim.address.Name), other.reference.position), ownClaimFix)
	}
}

// claimName is the namespace and name of a claim.
type claimName struct{ namespace, name string }
