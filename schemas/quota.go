package schemas

import (
	"fmt"
	"maps"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// sizeOfGuest is the size of a machine with its defaults, without its claims: what the guest may come to have, and what is set aside
// for it on a node. The Fleet's platform is not known where files are read, so that both count everywhere.
func sizeOfGuest(spec *kubevirtv1.VirtualMachineInstanceSpec) size {
	out := size{vms: 1, cpus: 1}
	if cpu := spec.Domain.CPU; cpu != nil {
		sockets := max(cpu.Sockets, cpu.MaxSockets, 1)
		out.cpus = product(product(int64(sockets), int64(max(cpu.Cores, 1))), int64(max(cpu.Threads, 1)))
	}
	for _, resources := range []corev1.ResourceList{spec.Domain.Resources.Requests, spec.Domain.Resources.Limits} {
		out.cpus = max(out.cpus, resources.Cpu().Value()) // rounded up
		out.memory = max(out.memory, resources.Memory().Value())
		out.storage = max(out.storage, resources.StorageEphemeral().Value())
	}
	if memory := spec.Domain.Memory; memory != nil {
		for _, amount := range []*resource.Quantity{memory.Guest, memory.MaxGuest} {
			if amount != nil {
				out.memory = max(out.memory, amount.Value())
			}
		}
		if reserved := memory.ReservedOverhead; reserved != nil && reserved.AddedOverhead != nil {
			out.memory = sum(out.memory, reserved.AddedOverhead.Value())
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
	quotas := map[string]*quota{}
	for _, s := range a.sources {
		if s.rights != nil && s.rights.Quota != nil && !s.rights.Doubt {
			quotas[s.source] = &quota{
				assembly: a, space: s, bounds: s.rights.Quota.bounds(), claims: map[claimName]*claimed{}, living: map[claimName]Claim{},
			}
		}
	}
	if len(quotas) == 0 {
		return
	}
	if a.holding != nil {
		a.holding.Machines(func(address Address, held Held) {
			if q := quotas[held.Source]; q != nil && q.ours(held) {
				q.machines = append(q.machines, machineRecord{address, held.Record})
			}
		})
	}
	var broken []entry
	for _, source := range slices.Sorted(maps.Keys(quotas)) {
		quotas[source].check()
		broken = append(broken, quotas[source].broken...)
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
	// machines are all that live and were made from the source, be they asked for or not.
	machines []machineRecord
	used     size
	// claims are those that are asked for, living those that machines use which live.
	claims map[claimName]*claimed
	living map[claimName]Claim
	// broken are claims that were refused.
	broken []entry
}

type machineRecord struct {
	address Address
	record  []byte
}

// ours reports whether something that lives was made from the source, for this Fleet.
func (q *quota) ours(held Held) bool {
	return held.Source == q.space.source && (held.Fleet == "" || held.Fleet == q.desired.Fleet.Name)
}

// ask is what somebody wants of a quota.
type ask struct {
	entry *entry
	// wants and has are what it wants and what of that it has already, without its claims: the first who gets a claim is charged with it.
	wants, has size
	claims     []*claimed
	lives      bool
}

// check counts what is asked for, and what lives though nobody asks for it any more: a member of a paused set, what is in a file that
// cannot be read, what is still to be destroyed. Records are read only where that is needed.
func (q *quota) check() {
	asks := q.asks()
	total := q.used
	for i := range asks {
		total = total.plus(asks[i].wants)
	}
	for _, c := range q.claims {
		total.storage = sum(total.storage, c.wants)
	}
	if q.beyond(size{}, total) == nil {
		return
	}
	q.measure(asks)
	var refused []*ask
	for _, lives := range []bool{true, false} {
		for i := range asks {
			if one := &asks[i]; one.lives == lives && !q.grant(one) {
				refused = append(refused, one)
			}
		}
	}
	q.refuseClaims(refused)
}

// asks lists what the source wants, in order of address: its machines, and the claims that no machine uses.
func (q *quota) asks() []ask {
	var out []ask
	asked := map[Address]bool{}
	for i := range q.entries {
		e := &q.entries[i]
		if e.position.Source != q.space.source || e.broken || e.vm == nil {
			continue
		}
		address, _, lives := q.made(e)
		if lives {
			asked[objectOf(address)] = true
		}
		out = append(out, ask{entry: e, wants: e.vm.size, claims: q.claimsOf(e), lives: lives})
	}
	out = append(out, q.unusedClaims()...)
	for _, m := range q.machines {
		if !asked[objectOf(m.address)] {
			q.keep(q.livingAt(m.address, m.record))
		}
	}
	q.keepClaims()
	slices.SortStableFunc(out, func(x, y ask) int { return x.entry.address.Compare(y.entry.address) })
	return out
}

// keep counts a machine that lives though nobody asks for it.
func (q *quota) keep(l *living) {
	if l.unread {
		q.used.vms = sum(q.used.vms, 1)
		return
	}
	q.used = q.used.plus(l.size)
	q.see(l)
}

// measure finds out what of all that is asked for is there already.
func (q *quota) measure(asks []ask) {
	for i := range asks {
		one := &asks[i]
		if !one.lives {
			continue
		}
		if living := q.livingOf(one.entry); living != nil && !living.unread {
			one.has = living.size.least(one.wants)
			q.see(living)
			continue
		}
		one.has = one.wants // nobody can tell
		for _, c := range one.claims {
			c.has = c.wants
		}
	}
	for name, c := range q.claims {
		q.measureClaim(name, c)
	}
	for _, c := range q.claims {
		// What a copy was made of is there, too, though nothing uses it.
		for from, copies := c.from, maxCopies; from != nil && copies > 0; from, copies = from.from, copies-1 {
			from.has = max(from.has, min(from.wants, c.has))
		}
	}
	for _, c := range q.claims {
		q.used.storage = sum(q.used.storage, c.has)
	}
	for i := range asks {
		one := &asks[i]
		q.used = q.used.plus(one.has)
		if one.entry.vm == nil {
			one.lives = one.claims[0].has > 0
		}
	}
}

// grant takes what is asked for out of the quota, or refuses it. Only what grows is asked of the quota.
func (q *quota) grant(one *ask) bool {
	wants, has := one.wants, one.has
	for _, c := range one.claims {
		if !c.granted {
			wants.storage, has.storage = sum(wants.storage, c.wants), sum(has.storage, c.has)
		}
	}
	grows := wants.minus(has)
	b := q.beyond(q.used, grows)
	if b == nil {
		q.used = q.used.plus(grows)
		for _, c := range one.claims {
			c.granted = true
		}
		return true
	}
	message := fmt.Sprintf("the quota of the source %s for %s is used up: %s is asked for, and %s of %s is in use", q.space.source, b.what, b.said(b.of(wants)), b.said(b.of(q.used)), b.said(b.limit))
	if one.lives {
		message += fmt.Sprintf(", %s of it by this one, which stays as it is", b.said(b.of(has)))
	}
	e := one.entry
	if e.vm == nil {
		q.breakClaim(one.claims[0].object)
	}
	e.broken = true
	q.fail(e.position, e.address, "metadata.name", message, fmt.Sprintf("ask for less, or have its quota.%s raised in the Fleet", b.what))
	return false
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
