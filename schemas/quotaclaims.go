package schemas

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// claimed is a claim of a source that its manifests ask for.
type claimed struct {
	object *object
	// from is the source's own claim that it is a copy of; nil for none.
	from *claimed
	// sized says that its manifest names a size; a copy may leave that to what it is a copy of.
	sized bool
	// wants and has are sizes in bytes.
	wants, has int64
	// granted says that somebody was charged with it.
	granted bool
}

// account returns the claim of an object; it is made out to be a claim once, whoever uses it.
func (q *quota) account(claim *Claim, o *object) *claimed {
	name := claimName{claim.Namespace, claim.Name}
	if q.claims[name] == nil {
		q.claims[name] = &claimed{object: o, sized: claim.Capacity > 0, wants: largest(claim)}
	}
	return q.claims[name]
}

// largest is the size of a claim, which is no smaller than what it is a copy of.
func largest(claim *Claim) (capacity int64) {
	for ; claim != nil; claim = claim.CopyOf {
		capacity = max(capacity, claim.Capacity)
	}
	return capacity
}

// claimsOf are the source's own claims that a machine uses, with those that they are copies of, which have to be made first.
// PersistentVolumes are there already.
func (q *quota) claimsOf(e *entry) []*claimed {
	var out []*claimed
	for _, use := range e.vm.uses {
		used := e.vm.Claims[use.reference.use]
		o := use.claim
		var copied *claimed
		for claim := &used; claim != nil && claim.Path == ""; claim = claim.CopyOf {
			if claim != &used {
				o = q.findClaim(q.space, claimName{claim.Namespace, claim.Name}.address())
			}
			if o == nil || o.position.Source != q.space.source {
				break
			}
			c := q.account(claim, o)
			if copied != nil {
				copied.from = c
			}
			if copied = c; !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

// unusedClaims are those that no machine of the source uses, once it is known which are used.
func (q *quota) unusedClaims() []ask {
	var out []ask
	for address, o := range q.space.objects {
		_, broken := q.space.brokenObjects[address]
		if !isClaim(address.Kind) || broken || q.claims[claimName{address.Namespace, address.Name}] != nil {
			continue
		}
		claim, volume := q.claim(q.space, o, address, maxCopies)
		if volume == nil {
			out = append(out, ask{entry: &entry{address: address, position: o.position}, claims: []*claimed{q.account(&claim, o)}})
		}
	}
	return out
}

// see notes the claims that a machine uses which lives.
func (q *quota) see(l *living) {
	for name, claim := range l.claims {
		if known, seen := q.living[name]; !seen || claim.Capacity > known.Capacity {
			q.living[name] = claim
		}
	}
}

// keepClaims counts the claims of machines that live though nobody asks for them, unless somebody asks for the claims, or they are
// another repository's.
func (q *quota) keepClaims() {
	for name, claim := range q.living {
		if q.claims[name] != nil || claim.Path != "" {
			continue
		}
		if o := q.findClaim(q.space, name.address()); o == nil || o.position.Source == q.space.source {
			capacity, _ := q.capacity(name, maxCopies)
			q.used.storage = sum(q.used.storage, capacity)
		}
	}
}

func (c claimName) address() Address {
	return Address{Kind: KindPersistentVolumeClaim, Namespace: c.namespace, Name: c.name}
}

// measureClaim finds out what of a claim is there already.
func (q *quota) measureClaim(name claimName, c *claimed) {
	capacity, lives := q.capacity(name, maxCopies)
	switch {
	case !lives:
	case capacity == 0: // nobody can tell
		c.has = c.wants
	case !c.sized: // a copy stays as large as it was made
		c.has, c.wants = capacity, capacity
	default:
		c.has = min(capacity, c.wants)
	}
}

// capacity is the size of a claim that lives; 0 when nobody can tell. Records do not say what a copy is a copy of, but by name.
func (q *quota) capacity(name claimName, copies int) (capacity int64, lives bool) {
	claim, used := q.living[name]
	if !used {
		for _, address := range []Address{name.address(), otherClaim(name.address())} {
			if held, lives := q.held(address); lives && q.ours(held) {
				return requested(held.Record), true
			}
		}
		return 0, false
	}
	if claim.Source == nil || claim.Source.PVC == nil || copies == 0 {
		return claim.Capacity, true
	}
	from := claimName{claim.Source.PVC.Namespace, claim.Source.PVC.Name}
	original, lives := q.capacity(from, copies-1)
	if !lives {
		if o := q.findClaim(q.space, from.address()); o != nil {
			now, _ := q.claim(q.space, o, from.address(), copies-1)
			original = largest(&now)
		}
	}
	return max(claim.Capacity, original), true
}

// requested is the size that a PersistentVolumeClaim or a DataVolume asks for, as a cluster got it; 0 when it names none.
func requested(record []byte) (capacity int64) {
	type storage struct {
		Resources corev1.VolumeResourceRequirements `json:"resources"`
	}
	var manifest struct {
		Spec struct {
			storage
			PVC     storage `json:"pvc"`
			Storage storage `json:"storage"`
		} `json:"spec"`
	}
	if json.Unmarshal(record, &manifest) != nil {
		return 0
	}
	for _, from := range []storage{manifest.Spec.storage, manifest.Spec.PVC, manifest.Spec.Storage} {
		capacity = max(capacity, from.Resources.Requests.Storage().Value())
	}
	return capacity
}

// refuseClaims leaves out the claims of machines that were refused and that nobody else got: a cluster would make them, or let them grow.
func (q *quota) refuseClaims(refused []*ask) {
	for _, one := range refused {
		for _, c := range one.claims {
			if _, broken := q.space.brokenObjects[c.object.address]; broken || c.granted || c.wants == c.has || c.object.passed == nil {
				continue
			}
			q.breakClaim(c.object)
			message := fmt.Sprintf("it is not made, because the quota of the source %s has no room for %s, which uses it", q.space.source, one.entry.address)
			if c.has > 0 {
				message = fmt.Sprintf("it stays as it is, because the quota of the source %s has no room for %s, which uses it", q.space.source, one.entry.address)
			}
			q.fail(c.object.position, c.object.address, "metadata.name", message, "ask for less there, or have the quota raised in the Fleet")
		}
	}
}

func (q *quota) breakClaim(o *object) {
	q.space.brokenObjects[o.address] = o.position
	q.broken = append(q.broken, entry{address: o.address, position: o.position, broken: true, refused: true})
}
