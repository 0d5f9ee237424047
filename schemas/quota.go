package schemas

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// size is what counts against a quota. Memory and storage are in bytes.
type size struct{ vms, cpus, memory, storage int64 }

func (s size) plus(t size) size {
	return size{sum(s.vms, t.vms), sum(s.cpus, t.cpus), sum(s.memory, t.memory), sum(s.storage, t.storage)}
}

// sum adds amounts, none of which is negative. What is more than can be counted stays at the most, so that nobody gets everything for
// asking for far too much.
func sum(x, y int64) int64 {
	if x > math.MaxInt64-y {
		return math.MaxInt64
	}
	return x + y
}

// product is sum for a multiplication.
func product(x, y int64) int64 {
	if y > 0 && x > math.MaxInt64/y {
		return math.MaxInt64
	}
	return x * y
}

func (s size) minus(t size) size {
	return size{s.vms - t.vms, s.cpus - t.cpus, s.memory - t.memory, s.storage - t.storage}
}

// least is the smaller of both, part by part.
func (s size) least(t size) size {
	return size{min(s.vms, t.vms), min(s.cpus, t.cpus), min(s.memory, t.memory), min(s.storage, t.storage)}
}

// sizeOf is the size of a machine of a source without its claims; nothing is counted in the repository of the Fleet.
func (c *checker) sizeOf(vm *kubevirtv1.VirtualMachine) size {
	if c.file.Source == "" || c.broke {
		return size{}
	}
	return sizeOfGuest(&vm.Spec.Template.Spec)
}

// sizeOfGuest is the size of a machine with its defaults, without its claims: what the guest may come to have.
func sizeOfGuest(spec *kubevirtv1.VirtualMachineInstanceSpec) size {
	out := size{vms: 1, cpus: 1}
	if cpu := spec.Domain.CPU; cpu != nil {
		sockets := max(cpu.Sockets, cpu.MaxSockets, 1)
		out.cpus = product(product(int64(sockets), int64(max(cpu.Cores, 1))), int64(max(cpu.Threads, 1)))
	}
	if memory := spec.Domain.Memory; memory != nil {
		for _, amount := range []*resource.Quantity{memory.Guest, memory.MaxGuest} {
			if amount != nil {
				out.memory = max(out.memory, amount.Value())
			}
		}
	}
	for i := range spec.Volumes {
		switch volume := &spec.Volumes[i]; {
		case volume.EmptyDisk != nil:
			out.storage = sum(out.storage, volume.EmptyDisk.Capacity.Value())
		case volume.HostDisk != nil && volume.HostDisk.Type == kubevirtv1.HostDiskExistsOrCreate:
			out.storage = sum(out.storage, volume.HostDisk.Capacity.Value())
		}
	}
	return out
}

// bound is one bound of a quota.
type bound struct {
	what  string
	limit int64
	of    func(size) int64
	// bytes says that it is a size.
	bytes bool
}

func (q *FleetQuota) bounds() []bound {
	all := []bound{
		{"vms", int64(q.VMs), func(s size) int64 { return s.vms }, false},
		{"cpus", int64(q.CPUs), func(s size) int64 { return s.cpus }, false},
		{"memory", q.Memory.Value(), func(s size) int64 { return s.memory }, true},
		{"storage", q.Storage.Value(), func(s size) int64 { return s.storage }, true},
	}
	return slices.DeleteFunc(all, func(b bound) bool { return b.limit == 0 })
}

func (b *bound) said(amount int64) string {
	if b.bytes {
		return resource.NewQuantity(amount, resource.BinarySI).String()
	}
	return fmt.Sprint(amount)
}

// checkQuotas refuses machines and claims of sources that go beyond the quota. What lives keeps what it has.
func (a *assembly) checkQuotas() {
	var broken []entry
	for _, s := range a.spaces() {
		if s.rights != nil && s.rights.Quota != nil && !s.rights.Doubt {
			q := quota{assembly: a, space: s, bounds: s.rights.Quota.bounds(), counted: map[claimName]bool{}}
			q.check()
			broken = append(broken, q.broken...)
		}
	}
	if len(broken) > 0 {
		a.entries = append(a.entries, broken...)
		a.sortEntries()
	}
}

// quota is the account of a source.
type quota struct {
	*assembly
	space  *space
	bounds []bound
	used   size
	// counted are the claims that somebody was charged with.
	counted map[claimName]bool
	// broken are claims that were refused.
	broken []entry
}

// ask is what somebody wants of a quota.
type ask struct {
	entry *entry
	wants size
	// has is what it has already; nothing for what does not live.
	has   size
	lives bool
}

func (q *quota) check() {
	asks := q.asks()
	var total size
	for i := range asks {
		total = total.plus(asks[i].wants)
	}
	if q.beyond(size{}, total) == nil {
		return
	}
	for i := range asks {
		if one := &asks[i]; one.lives {
			if living := q.livingOf(one.entry); living != nil && !living.unread {
				one.has = q.livingSize(living)
			} else {
				one.has = one.wants // an object of a cluster, or nobody can tell
			}
			q.used = q.used.plus(one.has.least(one.wants))
		}
	}
	for _, lives := range []bool{true, false} {
		for i := range asks {
			if asks[i].lives == lives {
				q.grant(&asks[i])
			}
		}
	}
}

// asks lists what the source wants, in order of address: its machines, each with the claims that it is the first to use, and the
// claims that no machine uses. What has mistakes and lives wants what it has.
func (q *quota) asks() []ask {
	var out []ask
	for i := range q.entries {
		e := &q.entries[i]
		if e.position.Source != q.space.source {
			continue
		}
		switch {
		case !e.broken && e.vm != nil:
			_, _, lives := q.made(e)
			out = append(out, ask{entry: e, wants: e.vm.size.plus(q.claims(e)), lives: lives})
		case e.address.IsMachine():
			if living := q.livingOf(e); living != nil && !living.unread {
				out = append(out, ask{entry: e, wants: q.livingSize(living), lives: true})
			}
		}
	}
	for address, o := range q.space.objects {
		source, ok := o.value.(*claimSource)
		k := claimName{address.Namespace, address.Name}
		if _, broken := q.space.brokenObjects[address]; !ok || broken || q.counted[k] || q.boundTo(address) != nil {
			continue
		}
		q.counted[k] = true
		held, lives := q.held(address)
		out = append(out, ask{
			entry: &entry{address: address, position: o.position}, wants: size{storage: source.claim.Capacity}, lives: lives && held.Source == q.space.source,
		})
	}
	slices.SortStableFunc(out, func(x, y ask) int { return x.entry.address.Compare(y.entry.address) })
	return out
}

// claims is the storage of the source's own claims that a machine is the first to use. PersistentVolumes are there already.
func (q *quota) claims(e *entry) size {
	var out size
	for _, use := range e.vm.uses {
		claim := e.vm.Claims[use.reference.use]
		k := claimName{claim.Namespace, claim.Name}
		if use.claim.position.Source != q.space.source || claim.Path != "" || q.counted[k] {
			continue
		}
		q.counted[k] = true
		capacity := claim.Capacity
		if capacity == 0 && claim.CopyOf != nil {
			capacity = claim.CopyOf.Capacity
		}
		out.storage = sum(out.storage, capacity)
	}
	return out
}

// livingSize is what a machine has, with its claims.
func (q *quota) livingSize(l *living) size {
	out := l.size
	for _, capacity := range l.claims {
		out.storage = sum(out.storage, capacity)
	}
	return out
}

// grant takes what is asked for out of the quota, or refuses it. Only what grows is asked of the quota.
func (q *quota) grant(one *ask) {
	grows := one.wants.minus(one.has.least(one.wants))
	b := q.beyond(q.used, grows)
	if b == nil {
		q.used = q.used.plus(grows)
		return
	}
	used := b.of(q.used)
	message := fmt.Sprintf("the quota of the source %s for %s is used up: %s is asked for, and %s of %s is in use", q.space.source, b.what, b.said(b.of(one.wants)), b.said(used), b.said(b.limit))
	if one.lives {
		message += fmt.Sprintf(", %s of it by this one, which stays as it is", b.said(b.of(one.has)))
	}
	e := one.entry
	if e.vm == nil && !e.address.IsMachine() {
		q.space.brokenObjects[e.address] = e.position
		q.broken = append(q.broken, entry{address: e.address, position: e.position, broken: true, refused: true})
	}
	e.broken = true
	q.fail(e.position, e.address, "metadata.name", message, fmt.Sprintf("ask for less, or have its quota.%s raised in the Fleet", b.what))
}

// beyond returns the first bound that what is used would grow beyond; nil when it stays within all that it grows towards.
func (q *quota) beyond(used, grows size) *bound {
	after := used.plus(grows)
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.of(grows) > 0 && b.of(after) > b.limit {
			return b
		}
	}
	return nil
}
