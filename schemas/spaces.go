package schemas

import (
	"fmt"
	"maps"
	"slices"
)

// space is what one repository has that machines refer to: that of the Fleet, or a source.
type space struct {
	// source is empty for the repository of the Fleet.
	source string
	// rights are those of a source; nil for the repository of the Fleet, and for a source that the Fleet does not name.
	rights  *FleetSource
	objects map[Address]*object
	// bound has the PersistentVolumes that name their claim.
	bound                    map[claimName]*object
	hasServices, hasNetworks bool
	// brokenObjects are objects with mistakes that others may refer to.
	brokenObjects map[Address]Position
	// opaque is a file of which nobody knows what it asks for; zero when there is none.
	opaque Position
}

func newSpace(source string, objects int) *space {
	return &space{source: source, objects: make(map[Address]*object, objects), brokenObjects: map[Address]Position{}}
}

// makeSpaces makes one space for each repository.
func (a *assembly) makeSpaces(files []*File) {
	counts := map[string]int{}
	for _, f := range files {
		counts[f.Source] += len(f.objects)
	}
	a.main = newSpace("", counts[""])
	for source, objects := range counts {
		if source != "" {
			if a.sources == nil {
				a.sources = map[string]*space{}
			}
			a.sources[source] = newSpace(source, objects)
		}
	}
}

// space returns that of a source, or of the repository of the Fleet.
func (a *assembly) space(source string) *space {
	if source == "" {
		return a.main
	}
	return a.sources[source]
}

// spaces lists all, that of the Fleet first.
func (a *assembly) spaces() []*space {
	out := []*space{a.main}
	for _, source := range slices.Sorted(maps.Keys(a.sources)) {
		out = append(out, a.sources[source])
	}
	return out
}

// giveRights looks up what the sources may ask for, once it is known which Fleet counts.
func (a *assembly) giveRights() {
	for name, s := range a.sources {
		s.rights = a.desired.Fleet.Source(name)
		if s.rights == nil || s.rights.Doubt {
			continue
		}
		if a.within == nil {
			a.within = map[string][]*space{}
		}
		for _, namespace := range s.rights.Namespaces {
			if !slices.Contains(a.within[namespace], s) {
				a.within[namespace] = append(a.within[namespace], s)
			}
		}
	}
}

// see remembers that the repository has objects of a kind, which makes it worth telling that one is missing.
func (s *space) see(address Address) {
	s.hasServices = s.hasServices || address.Kind == KindService
	s.hasNetworks = s.hasNetworks || address.Kind == KindNetwork
}

// own returns the repository's own object at an address, unless it has mistakes; here says that it has one.
func (s *space) own(address Address) (found *object, here bool) {
	if _, broken := s.brokenObjects[address]; broken {
		return nil, true
	}
	found = s.objects[address]
	return found, found != nil
}

// sees reports whether manifests of the repository may refer to what others have at an address.
func (s *space) sees(address Address) bool {
	switch {
	case s.source == "" || isClusterKind(address.Kind):
		return true
	case s.rights == nil:
		return false
	case address.Kind == KindNetwork: // which networks it may use is checked by itself
		return true
	}
	return s.rights.allowsNamespace(address.Namespace)
}

// find returns what manifests of a repository mean by an address, unless it has mistakes: their own object, else that of the
// repository of the Fleet, else that of the only other source that has one in the namespace.
func (a *assembly) find(s *space, address Address) *object {
	found, here := s.own(address)
	if here || len(a.sources) == 0 || !s.sees(address) {
		return found
	}
	if s != a.main {
		if found, here := a.main.own(address); here {
			return found
		}
	}
	if others := a.others(s, address); len(others) == 1 {
		found, _ = others[0].own(address)
	}
	return found
}

// means is find for a reference of a machine. What may be missing, and what may be in a cluster without being in git, is not taken
// from other sources: they could change a machine that they have nothing to do with.
func (a *assembly) means(s *space, r *reference) *object {
	if len(a.sources) == 0 || !r.optional && !a.inCluster(r) {
		return a.find(s, r.address)
	}
	found, here := s.own(r.address)
	if !here && s.sees(r.address) {
		found, _ = a.main.own(r.address)
	}
	return found
}

// others are the sources besides s that have something at an address, in a namespace that is theirs.
func (a *assembly) others(s *space, address Address) []*space {
	var out []*space
	for _, other := range a.within[address.Namespace] {
		if other == s || isClusterKind(address.Kind) {
			continue
		}
		if _, here := other.own(address); here {
			out = append(out, other)
		}
	}
	return out
}

// findClaim returns the object that makes a claim. A DataVolume makes a claim of its name.
func (a *assembly) findClaim(s *space, address Address) *object {
	if _, here := s.own(address); !here {
		if _, here := s.own(otherClaim(address)); here {
			return a.find(s, otherClaim(address))
		}
	}
	if found := a.find(s, address); found != nil {
		return found
	}
	return a.find(s, otherClaim(address))
}

// claimMeant is findClaim for a reference of a machine.
func (a *assembly) claimMeant(s *space, r *reference) *object {
	if len(a.sources) == 0 || !a.inCluster(r) {
		return a.findClaim(s, r.address)
	}
	other := *r
	other.address = otherClaim(r.address)
	if found := a.means(s, r); found != nil {
		return found
	}
	return a.means(s, &other)
}

// boundTo returns the PersistentVolume that names a claim; PersistentVolumes are of the repository of the Fleet alone.
func (a *assembly) boundTo(claim Address) *object {
	return a.main.bound[claimName{claim.Namespace, claim.Name}]
}

// ambiguous says that a reference finds something in several sources; "" when it does not.
func (a *assembly) ambiguous(s *space, address Address) (message, fix string) {
	if len(a.sources) == 0 || !s.sees(address) || len(a.others(s, address)) < 2 {
		return "", ""
	}
	return fmt.Sprintf("several sources have a %s %s in the namespace %s, and this repository has none", address.Kind, quoteValue(address.Name), address.Namespace),
		"have all but one of them remove it, or add one here"
}
