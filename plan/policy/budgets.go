package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// History is what was done at a revision, as far as budgets count it.
type History struct {
	// Done are the steps that were carried out, or begun, at this revision.
	Done []Spent
	// Doubt says why Done may not be all; empty when it is. Then budgets of the revision have no room.
	Doubt string
}

// Spent is what a step takes of budgets. It is kept by whoever carries steps out, because a machine that was destroyed can
// be asked no longer.
type Spent struct {
	Address schemas.Address
	// Source is the repository that asked for it; empty for that of the Fleet. Each has revisions of its own, and what one of them
	// spends is no loss of another.
	Source string
	Labels map[string]string
	// Was is what the machine was before the step, where that is not the same: it counts for the budgets of both.
	Was []Named
	// Destroys says that the machine is retired or destroyed, or data of it is; Interrupts that its guest is power-cycled.
	Destroys, Interrupts bool
}

// Spend returns what a step takes of budgets, if anything. have is what the plan was made from.
func Spend(step *plan.Step, have plan.Observed) (spent Spent, counts bool) {
	s := subject{step: step, domain: domainOf(step, have)}
	return s.spends()
}

// in reports whether a selector selects the machine as it is or as it was.
func (s *Spent) in(selector *schemas.Selector) bool {
	return selector.Matches(s.Address.Namespace, s.Labels) || s.was(selector)
}

func (s *Spent) was(selector *schemas.Selector) bool {
	return slices.ContainsFunc(s.Was, func(was Named) bool { return was.in(selector) })
}

func (s *subject) spends() (Spent, bool) {
	retired := s.domain != nil && !s.domain.RetiredSince.IsZero() // counted when that was done
	out := Spent{
		Address:    s.step.Address,
		Source:     s.source(),
		Destroys:   s.step.Action == plan.ActionRetire || s.step.Consequence == plan.ConsequenceData || s.step.Consequence == plan.ConsequenceDestroy && !retired,
		Interrupts: s.step.Power == plan.PowerCycle,
	}
	if out.Destroys || out.Interrupts {
		now, was := s.wanted(), s.was()
		if now == nil {
			now, was = was, nil
		}
		if now != nil {
			out.Labels = now.Labels
		}
		if was != nil && !was.equal(*now) {
			out.Was = []Named{*was}
		}
		return out, true
	}
	return out, false
}

// account is one bound of a budget, for the revisions of one repository.
type account struct {
	budget *schemas.Budget
	source string
	counts func(*Spent) bool
	what   string
	limit  int
	base   int
	// spent are the machines that it was spent for: one that is restarted again costs nothing more.
	spent map[schemas.Address]bool
}

// HostBound is how many guests of a host a budget lets be interrupted at a time (restartPerHost). A plan does not say which of
// them come first: whoever carries it out begins the next when one is ready (apply.Interruptions).
type HostBound struct {
	// Budget is its name.
	Budget string
	// Limit is how many of the Base machines that it is about.
	Limit, Base int

	selector *schemas.Selector
	// was are the domains that it selects by what was applied last, by name.
	was map[string]bool
}

// Counts reports whether a step takes one of the places. was is what its machine was when another process began it.
func (b *HostBound) Counts(step *plan.Step, was []Named) bool {
	if step.Power != plan.PowerCycle || step.VM == nil {
		return false
	}
	return b.was[step.Domain] || b.selector.Matches(step.Address.Namespace, step.VM.Object.Labels) ||
		slices.ContainsFunc(was, func(named Named) bool { return named.in(b.selector) })
}

// HostBounds are the bounds of the budgets, for the machines that are wanted and live.
func (p *Policy) HostBounds(fleet string, want *schemas.Desired, have plan.Observed) []HostBound {
	var out []HostBound
	for i := range p.spec.Budgets {
		b := &p.spec.Budgets[i]
		if b.RestartPerHost == nil {
			continue
		}
		counts, was := p.base(&subjects{want: want, have: have, plan: &plan.Plan{Fleet: fleet}}, b)
		base := 0
		for _, n := range counts {
			base += n
		}
		out = append(out, HostBound{Budget: b.Name, Limit: amount(*b.RestartPerHost, base), Base: base, selector: &b.Selector, was: was})
	}
	return out
}

// turns says in the plan which of its restarts are not carried out together.
func (p *Policy) turns(s *subjects) {
	for _, bound := range p.HostBounds(s.plan.Fleet, s.want, s.have) {
		n := 0
		for i := range s.of {
			if step := s.of[i].step; step.Runs() && bound.Counts(step, nil) {
				n++
			}
		}
		if n > bound.Limit {
			s.plan.Notes = append(s.plan.Notes, fmt.Sprintf("%d restarts take turns: the budget %s lets %d of %d machines of a host be interrupted at a time", n, bound.Budget, bound.Limit, bound.Base))
		}
	}
}

// budget makes steps wait that would go beyond a budget. Only steps that wait for nothing else spend: those that are approved
// first, the others in the order of the plan.
func (p *Policy) budget(s *subjects) {
	accounts := p.accounts(s)
	if len(accounts) == 0 {
		return
	}
	for _, approved := range []bool{true, false} {
		for i := range s.of {
			one := &s.of[i]
			if one.approved != approved || !one.step.Runs() {
				continue
			}
			if spent, counts := one.spends(); counts {
				spend(accounts, one, &spent, p.options.History.Doubt)
			}
		}
	}
}

// spend takes a step out of the accounts that it is in, if all of them have room, and makes it wait otherwise.
func spend(accounts []account, one *subject, spent *Spent, doubt string) {
	var in []*account
	for i := range accounts {
		a := &accounts[i]
		if a.source != spent.Source || !a.counts(spent) || !spent.in(&a.budget.Selector) {
			continue
		}
		in = append(in, a)
		switch {
		case one.approved || a.spent[spent.Address]:
		case doubt != "":
			one.wait(plan.WaitBudget, time.Time{}, fmt.Sprintf("waits for gitvirt approve: nobody can tell what the budget %s has room for: %s", a.budget.Name, doubt))
			return
		case len(a.spent) >= a.limit:
			one.wait(plan.WaitBudget, time.Time{}, fmt.Sprintf("waits for gitvirt approve: the budget %s lets one revision %s %d of %d machines, and %d come before it", a.budget.Name, a.what, a.limit, a.base, len(a.spent)))
			return
		}
	}
	for _, a := range in {
		a.spent[spent.Address] = true
	}
}

// accounts opens the accounts of all budgets, with what was spent at this revision.
func (p *Policy) accounts(s *subjects) []account {
	destroys := func(spent *Spent) bool { return spent.Destroys }
	interrupts := func(spent *Spent) bool { return spent.Interrupts }
	var out []account
	if len(p.spec.Budgets) == 0 {
		return nil
	}
	sources := p.spenders(s)
	for i := range p.spec.Budgets {
		b := &p.spec.Budgets[i]
		var base map[string]int
		for _, bound := range []struct {
			value  *intstr.IntOrString
			counts func(*Spent) bool
			what   string
		}{
			{b.DestroyPerRevision, destroys, "destroy"},
			{b.RestartPerRevision, interrupts, "interrupt"},
		} {
			if bound.value == nil {
				continue
			}
			if base == nil {
				base, _ = p.base(s, b)
			}
			for _, source := range sources {
				a := account{
					budget: b, source: source, counts: bound.counts, what: bound.what, base: base[source], limit: amount(*bound.value, base[source]),
					spent: map[schemas.Address]bool{},
				}
				for j := range p.options.History.Done {
					if one := &p.options.History.Done[j]; one.Source == source && a.counts(one) && one.in(&b.Selector) {
						a.spent[one.Address] = true
					}
				}
				out = append(out, a)
			}
		}
	}
	return out
}

// spenders are the repositories that the steps are of, or that have spent something.
func (p *Policy) spenders(s *subjects) []string {
	all := map[string]bool{}
	for i := range s.of {
		all[s.of[i].source()] = true
	}
	for i := range p.options.History.Done {
		all[p.options.History.Done[i].Source] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// base counts the machines that a budget is about, by the repository that they are from: those that live, by what was applied last, and
// those that this revision was spent for. was are the former, by the names of their domains. A label counts when it is applied: a commit
// does not make room for its restarts by the machines that it labels.
func (p *Policy) base(s *subjects, b *schemas.Budget) (n map[string]int, was map[string]bool) {
	wanted := make(map[schemas.Address]*schemas.VM, len(s.want.VMs))
	for _, vm := range s.want.VMs {
		wanted[vm.Address] = vm
	}
	counted := make(map[schemas.Address]string, len(s.have.Domains))
	lives := make(map[schemas.Address]bool, len(s.have.Domains))
	was = make(map[string]bool, len(s.have.Domains))
	for _, domain := range s.have.Domains {
		if domain.Fleet != s.plan.Fleet || domain.State == plan.StateMissing {
			continue
		}
		lives[domain.Address] = true
		one := subject{step: &plan.Step{Address: domain.Address, VM: wanted[domain.Address]}, domain: domain}
		if !all(&b.Selector) {
			if named := one.was(); named != nil && !named.in(&b.Selector) || named == nil && !one.restricted(&b.Selector) {
				continue
			}
		}
		was[domain.Name], counted[domain.Address] = true, one.source()
	}
	for i := range p.options.History.Done {
		done := &p.options.History.Done[i]
		if done.was(&b.Selector) || done.Destroys && !lives[done.Address] && done.in(&b.Selector) {
			counted[done.Address] = done.Source
		}
	}
	n = map[string]int{}
	for _, source := range counted {
		n[source]++
	}
	return n, was
}

// amount is how many machines of n a number or a percentage is; percentages are rounded up.
func amount(value intstr.IntOrString, n int) int {
	if value.Type == intstr.Int {
		return int(value.IntVal)
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
	if err != nil {
		return 0 // could not be read: the policy is in doubt
	}
	return (n*percent + 99) / 100
}
