package schemas

import "fmt"

// checkClaims decides between repositories that have a claim or a Service of one namespace and name: a claim is one image on a host, and
// an object of a cluster is one.
func (a *assembly) checkClaims() {
	if len(a.sources) > 0 {
		a.checkLeftObjects()
	}
	groups := map[Address][]*object{}
	for _, s := range a.sources {
		for _, o := range s.objects {
			if isClaim(o.address.Kind) || o.address.Kind == KindService {
				a.gatherRivals(groups, s, o)
			}
		}
	}
	if len(groups) == 0 {
		return
	}
	users := a.claimUsers()
	var broken []entry
	for k, group := range groups {
		broken = append(broken, a.objectRivals(k, group, users[claimName{k.Namespace, k.Name}])...)
	}
	a.entries = append(a.entries, broken...)
}

// gatherRivals adds an object to the group of its address when another repository has one too.
func (a *assembly) gatherRivals(groups map[Address][]*object, s *space, o *object) {
	k := o.address
	k.Kind = sameClaim(k.Kind)
	same := func(other *space) *object {
		if found := other.objects[o.address]; found != nil || !isClaim(o.address.Kind) {
			return found
		}
		return other.objects[otherClaim(o.address)]
	}
	rivals := false
	if other := same(a.main); other != nil {
		rivals = true
		if len(groups[k]) == 0 {
			groups[k] = []*object{other}
		}
	}
	for _, other := range a.within[o.address.Namespace] {
		rivals = rivals || other != s && same(other) != nil
	}
	if rivals {
		groups[k] = append(groups[k], o)
	}
}

// objectRivals decides about one address, and returns those that do not count. users are the machines that refer to such a claim.
func (a *assembly) objectRivals(k Address, group []*object, users []*entry) (broken []entry) {
	all := make([]rival, len(group))
	for i, o := range group {
		held, lives := a.held(k)
		has := lives && held.Source == o.position.Source
		for _, user := range users {
			has = has || isClaim(k.Kind) && user.position.Source == o.position.Source && a.hasClaim(user, claimName{k.Namespace, k.Name})
		}
		all[i] = rival{entry: &entry{address: o.address, position: o.position}, position: o.position, path: "metadata.name", has: has}
	}
	left, _ := contend(all)
	a.rivals(left, fmt.Sprintf("the %s %s of the namespace %s", k.Kind, quoteValue(k.Name), k.Namespace), "rename or remove one")
	for _, r := range left {
		if r.entry.broken {
			a.space(r.position.Source).brokenObjects[r.entry.address] = r.position
			broken = append(broken, *r.entry)
		}
	}
	return broken
}

// claimUsers are the machines that refer to claims, by those.
func (a *assembly) claimUsers() map[claimName][]*entry {
	out := map[claimName][]*entry{}
	for i := range a.entries {
		e := &a.entries[i]
		if e.vm == nil {
			continue
		}
		for j := range e.vm.references {
			if r := &e.vm.references[j]; isClaim(r.address.Kind) {
				k := claimName{r.address.Namespace, r.address.Name}
				out[k] = append(out[k], e)
			}
		}
	}
	return out
}

// claimRivals decides between machines of several repositories that write to one claim.
func (a *assembly) claimRivals(claim *object, users []claimUser) (own map[string][]claimUser) {
	all := make([]rival, 0, len(users))
	for _, u := range users {
		used := u.entry.vm.Claims[u.reference.use]
		all = append(all, rival{
			entry: u.entry, position: u.reference.position, path: u.reference.path, has: a.hasClaim(u.entry, claimName{used.Namespace, used.Name}),
		})
	}
	own = map[string][]claimUser{}
	left, several := contend(all)
	for _, u := range users {
		if !u.entry.refused {
			own[u.entry.position.Source] = append(own[u.entry.position.Source], u)
		}
	}
	if several {
		a.rivals(left, "the claim "+quoteValue(claim.address.Name), ownClaimFix)
	}
	return own
}
