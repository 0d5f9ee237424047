package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// Options say what a plan is for.
type Options struct {
	// Revision is the commit of the wanted state, Base the one that is compared with, when there is one.
	Revision string
	Base     string
	// Provenance says what is recorded as the revision of the machines of a source; nil means Revision.
	Provenance func(source string) string
	// Policy says which steps wait or are blocked; nil means that none is.
	Policy Policy
	// Selection says which objects the plan is about; the zero value is all.
	Selection Selection
	// Pods is how machines become Pods; nil where they do not.
	Pods Pods
}

// Policy is what a team allows. It looks at steps and never at what differs: package policy has the one of a Fleet.
type Policy interface {
	// Hash changes with everything that the policy's verdicts depend on but the time.
	Hash() string
	// Power says whether a schedule wants a machine on or off now, and why; PowerKeep leaves it to its run strategy.
	Power(vm *schemas.VM) (power PowerChange, reason string)
	// Analyse gives steps, which have their IDs, their Waits, Blocked and Warnings. It changes nothing else.
	Analyse(p *Plan, want *schemas.Desired, have Observed)
}

// Build compares what git wants with what lives. It never fails on what it finds: whatever it cannot decide safely
// becomes a step that is blocked or an object that is held, with the reason. It fails on a Selection that nothing matches.
func Build(want *schemas.Desired, have Observed, options Options) (*Plan, error) {
	p := &Plan{
		FormatVersion: FormatVersion,
		Revision:      options.Revision,
		Base:          options.Base,
		Fleet:         want.Fleet.Name,
		Diagnostics:   want.Diagnostics,
		Steps:         []Step{},
	}
	want = rightful(want, have)
	for _, broken := range want.Broken {
		p.Held = append(p.Held, Held{Address: broken.Address, Reason: "its manifest has errors: " + broken.Position.Short()})
	}
	for _, paused := range want.Paused {
		p.Held = append(p.Held, Held{Address: paused.Address, Reason: "it is paused (spec.paused): its machines are left as they are"})
	}
	if options.Policy != nil {
		p.Policy = options.Policy.Hash()
	}
	b := builder{plan: p, provenance: options.Provenance, policy: options.Policy, pods: options.Pods, want: want, have: have, foreign: newForeignIndex(have.Foreign)}
	if have.Unknown != "" {
		p.Unknown = have.Unknown
		p.UnknownCount = len(want.VMs)
	} else {
		p.Steps = make([]Step, 0, differing(want.VMs, have.Domains))
		b.takeovers(have.Domains)
		b.merge(want, have.Domains)
		b.order()
		if b.pods != nil {
			b.objects()
		}
	}
	if err := b.narrow(options.Selection, have); err != nil {
		return nil, err
	}
	if err := p.identify(); err != nil { // first, because approvals name steps
		return nil, err
	}
	if options.Policy != nil && p.Unknown == "" {
		options.Policy.Analyse(p, want, have)
	}
	p.summarize()
	return p, nil
}

// differing is about how many steps a plan will have: steps are large, and thousands of them are moved each time that their list has
// to grow.
func differing(vms []*schemas.VM, domains []*Domain) int {
	count := 0
	for len(vms) > 0 && len(domains) > 0 {
		switch order := vms[0].Address.Compare(domains[0].Address); {
		case order < 0:
			vms, count = vms[1:], count+1
		case order > 0:
			domains, count = domains[1:], count+1
		default:
			if vms[0].Hash != domains[0].Hash {
				count++
			}
			vms, domains = vms[1:], domains[1:]
		}
	}
	return count + len(vms) + len(domains)
}

type builder struct {
	plan       *Plan
	provenance func(source string) string
	policy     Policy
	pods       Pods
	want       *schemas.Desired
	have       Observed
	foreign    foreignIndex
	// asking are the repositories that ask for any machine.
	asking  map[string]bool
	records schemas.RecordReader
	// takeover is what is known of machines whose domain exists under another name.
	takeover takeover
}

// merge walks both sides, each ordered by address, once.
func (b *builder) merge(want *schemas.Desired, domains []*Domain) {
	vms := want.VMs
	broken := make(map[string]bool, len(want.Broken))
	for _, object := range want.Broken {
		if kind := object.Address.Kind; kind == schemas.KindVirtualMachine || kind == schemas.KindVirtualMachineInstance {
			broken[domainxml.DomainName(object.Address)] = true // whatever its kind is now, it is the same domain
		}
	}
	left := func(domain *Domain) bool {
		return broken[domainxml.DomainName(domain.Address)] || b.member(domain)
	}
	for len(vms) > 0 || len(domains) > 0 {
		var order int
		switch {
		case len(domains) == 0:
			order = -1
		case len(vms) == 0:
			order = 1
		default:
			order = vms[0].Address.Compare(domains[0].Address)
		}
		switch {
		case order < 0:
			b.arrive(vms[0])
			vms = vms[1:]
		case order > 0:
			switch held := b.takeover.held[domains[0].Address]; {
			case left(domains[0]), b.takeover.moved[domains[0].Address]:
			case held != "":
				b.hold(domains[0].Address, held)
			default:
				b.destroy(domains[0])
			}
			domains = domains[1:]
		default:
			b.update(vms[0], domains[0])
			vms, domains = vms[1:], domains[1:]
		}
	}
}

// member reports whether a domain may belong to a set that is paused or has mistakes; nobody can tell how many machines
// such a set asks for.
func (b *builder) member(domain *Domain) bool {
	for _, sets := range [][]schemas.Broken{b.want.Broken, b.want.Paused} {
		if slices.ContainsFunc(sets, func(set schemas.Broken) bool {
			return domain.Address.IsMemberOf(set.Address) && speaksOf(b.want.Fleet, b.have, set.Position.Source, domain.Address)
		}) {
			return true
		}
	}
	return false
}

func (b *builder) add(step Step) { b.plan.Steps = append(b.plan.Steps, step) }

func (b *builder) step(vm *schemas.VM, action Action, reason Reason) Step {
	return Step{
		Address:      vm.Address,
		Action:       action,
		Reason:       reason,
		Domain:       domainxml.DomainName(vm.Address),
		Source:       vm.Position.Short(),
		GraceSeconds: domainxml.GraceSeconds(vm.Spec()),
		Revision:     b.recorded(vm.Position.Source),
		VM:           vm,
	}
}

// create plans a domain that is not there. missing is the trace of one that was applied and vanished.
func (b *builder) create(vm *schemas.VM, reason Reason, missing *Domain) {
	step := b.step(vm, ActionCreate, reason)
	step.Consequence = ConsequenceNone
	step.Define = true
	step.Summary = "will be created"
	power, why := b.power(vm, &Domain{State: StateStopped})
	if b.podless(power, nil) {
		b.plan.Unchanged++
		return
	}
	switch {
	case power == PowerOn:
		step.Power = PowerOn
		step.Summary = "will be created and started"
	case startsNew(vm):
		step.Summary = "will be created and stays off (" + why + ")"
	}
	switch {
	case missing == nil:
	case missing.Stop == StopReplaced:
		step.Summary = "was being replaced when that was interrupted and " + step.Summary
		step.Precondition, step.Domain = missing.Fingerprint, missing.Name
	default:
		step.Summary = "was undefined outside gitvirt and " + step.Summary
		step.Drift = []Change{{Path: "domain", Before: "defined", After: "missing", Consequence: ConsequenceNone}}
		step.Precondition, step.Domain = missing.Fingerprint, missing.Name
	}
	if err := b.inPod(&step, vm, nil); err != nil {
		b.hold(vm.Address, err.Error())
		return
	}
	step.Blocked = cmp.Or(b.takeover.refused[vm.Address], step.Blocked)
	if step.Blocked == "" && missing == nil {
		step.Blocked = b.occupied(vm.Address)
	}
	if step.Blocked == "" {
		step.Blocked = b.foreign.clash(vm)
	}
	b.block(&step)
	b.add(step)
}

// block applies the Fleet's drift policy to a step that only undoes drift.
func (b *builder) block(step *Step) {
	if step.Blocked == "" && (step.Reason == ReasonDrift || step.Reason == ReasonRunningDrift) && b.want.Fleet.Spec.Drift == schemas.DriftReport {
		step.Blocked = "drift is only reported (the Fleet's spec.drift is \"report\")"
	}
}

// update plans what an existing domain needs.
func (b *builder) update(vm *schemas.VM, have *Domain) {
	switch {
	case have.Problem != "":
		b.hold(vm.Address, "its domain's record cannot be understood: "+have.Problem)
		return
	case b.foreignFleet(have) != "":
		b.hold(vm.Address, b.foreignFleet(have))
		return
	case have.Leave != "":
		b.hold(vm.Address, have.Leave)
		return
	case have.State == StateMissing && have.Stop == StopReplaced:
		b.create(vm, ReasonChanged, have) // what an apply began is no drift
		return
	case have.State == StateMissing:
		b.create(vm, ReasonDrift, have)
		return
	}
	power, why := b.power(vm, have)
	inactive := have.RunningHash == ""
	if vm.Hash == have.Hash && (inactive || vm.Hash == have.RunningHash) && power == PowerKeep &&
		len(have.Drift) == 0 && len(have.RunningDrift) == 0 && !have.Transient && have.RetiredSince.IsZero() && have.Fleet == b.plan.Fleet && have.Holder() == vm.Position.Source ||
		b.podless(power, have) {
		b.plan.Unchanged++
		return
	}
	step, err := b.difference(vm, have)
	if err != nil {
		b.hold(vm.Address, err.Error())
		return
	}
	b.decide(&step, power, why, have)
	if step.Action == "" {
		b.plan.Unchanged++
		return
	}
	b.block(&step)
	b.add(step)
}

// decide lets the Fleet's policy on drift take part: where drift is only reported, a guest that is down for another
// reason is started all the same.
func (b *builder) decide(step *Step, power PowerChange, why string, have *Domain) {
	drift := step.Drift
	if b.want.Fleet.Spec.Drift == schemas.DriftReport && step.Reason == "" && power != PowerKeep {
		step.Drift = nil
	}
	step.decide(power, why, have)
	if len(step.Drift) < len(drift) {
		step.Drift = append(drift, step.Drift...)
	}
	b.protect(step, have)
}

func (b *builder) hold(address schemas.Address, reason string) {
	b.plan.Held = append(b.plan.Held, Held{Address: address, Reason: reason})
}

// difference fills a step with the changes of an existing domain, without deciding what is done.
func (b *builder) difference(vm *schemas.VM, have *Domain) (Step, error) {
	step := b.step(vm, "", "")
	step.Precondition, step.Domain = have.Fingerprint, have.Name
	step.Drift = have.Drift
	if have.Transient {
		step.Drift = append(step.Drift, Change{Path: "domain", Before: "persistent", After: "transient", Consequence: ConsequenceNone})
	}
	if have.Fleet != b.plan.Fleet {
		// A repository that got its Fleet later takes over what it applied before.
		step.Reason, step.Define, step.Consequence = ReasonChanged, true, ConsequenceNone
		step.Changes = []Change{{Path: "fleet", Before: have.Fleet, After: b.plan.Fleet, Consequence: ConsequenceNone}}
	}
	if holder := have.Holder(); holder != vm.Position.Source {
		step.Reason, step.Define, step.Consequence = ReasonChanged, true, ConsequenceNone
		step.Changes = append(step.Changes, otherSource(holder, vm.Position.Source))
	}
	if err := b.compare(&step, vm, have); err != nil {
		return step, err
	}
	b.comeBack(&step, have)
	if err := step.truths(vm, have, b.have.Live); err != nil {
		return step, err
	}
	for _, change := range step.Changes {
		step.Consequence = step.Consequence.Worse(change.Consequence)
	}
	if err := b.inPod(&step, vm, have); err != nil {
		return step, err
	}
	if shrunk := shrunkDisk(step.Changes); shrunk != "" {
		step.Blocked = shrunk
	}
	return step, nil
}

// compare fills a step with what git wants otherwise than the domain and its running guest have it.
func (b *builder) compare(step *Step, vm *schemas.VM, have *Domain) error {
	j := judge{live: b.have.Live, room: have.Headroom, off: !have.active()}
	moved := have.Address != vm.Address || len(have.Former) > 0
	if have.LiveRefused == vm.Hash {
		j.refused = have.LiveRefusedReason
	}
	switch {
	case have.RunningHash != "" && have.RunningHash != vm.Hash:
		changes, err := b.changesTo(vm, have.RunningRecord, moved, j)
		if err != nil {
			return fmt.Errorf("it cannot be compared with the running guest: %w", err)
		}
		if vm.Hash == have.Hash && !pends(changes) {
			return nil
		}
		if vm.Hash == have.Hash && step.Reason == "" {
			step.Reason = ReasonPendingRestart
		}
		// Written again although it may be written already: the record then says that gitvirt is about to stop the guest.
		step.Define = true
		step.add(changes)
	case vm.Hash != have.Hash:
		changes, err := b.changesTo(vm, have.Record, moved, j)
		if err != nil {
			return fmt.Errorf("it cannot be compared with what was applied: %w", err)
		}
		if have.RunningHash == vm.Hash {
			for i := range changes {
				changes[i].Consequence, changes[i].Note = ConsequenceNone, "the guest runs it so already"
			}
		}
		step.add(changes)
	}
	if vm.Hash != have.Hash {
		step.Reason, step.Define = ReasonChanged, true
	}
	return nil
}

func (s *Step) add(changes []Change) {
	if len(s.Changes) > 0 {
		changes = append(s.Changes, changes...)
	}
	s.Changes = changes
}

// pends reports whether a running guest has to be touched to get what is configured already. What waits for the next boot and
// what the host does by itself does not ask for it.
func pends(changes []Change) bool {
	return slices.ContainsFunc(changes, func(change Change) bool {
		return change.plugs() || severity[change.Consequence] >= severity[ConsequenceRestart]
	})
}

func orUnknown(s string) string {
	if s == "" {
		return "the repository"
	}
	return s
}
