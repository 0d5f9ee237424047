package policy

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// History is what was done at a revision, as far as budgets count it.
type History struct {
	// Done are the steps that were carried out, or tried, at this revision.
	Done []Spent
	// UnderWay are those that are being carried out now; they are not among Done.
	UnderWay []Spent
}

// Spent is what a step takes of budgets. It is kept by whoever carries steps out, because a machine that was destroyed can
// be asked no longer.
type Spent struct {
	Address schemas.Address
	Labels  map[string]string
	// Destroys says that the machine is retired or destroyed, or data of it is; Interrupts that its guest is power-cycled.
	Destroys, Interrupts bool
}

// Spend returns what a step takes of budgets, if anything. have is what the plan was made from.
func Spend(step *plan.Step, have plan.Observed) (spent Spent, counts bool) {
	s := subject{step: step, domain: find(have.Domains, step.Address)}
	return s.spends()
}

func (s *subject) spends() (Spent, bool) {
	retired := s.domain != nil && !s.domain.RetiredSince.IsZero() // counted when that was done
	out := Spent{
		Address:    s.step.Address,
		Destroys:   s.step.Action == plan.ActionRetire || s.step.Consequence == plan.ConsequenceData || s.step.Consequence == plan.ConsequenceDestroy && !retired,
		Interrupts: s.step.Power == plan.PowerCycle,
	}
	if out.Destroys || out.Interrupts {
		out.Labels = s.labels()
		return out, true
	}
	return out, false
}

// account is one bound of a budget.
type account struct {
	budget *schemas.Budget
	counts func(*Spent) bool
	// atATime says that it bounds what happens together, which no approval lifts.
	atATime     bool
	what        string
	limit, base int
	spent       int
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
				spend(accounts, one, &spent)
			}
		}
	}
}

// spend takes a step out of the accounts that it is in, if all of them have room, and makes it wait otherwise.
func spend(accounts []account, one *subject, spent *Spent) {
	var in []*account
	for i := range accounts {
		a := &accounts[i]
		if !a.counts(spent) || !a.budget.Selector.Matches(spent.Address.Namespace, spent.Labels) {
			continue
		}
		in = append(in, a)
		if a.spent < a.limit || one.approved && !a.atATime {
			continue
		}
		if a.atATime {
			one.wait(plan.WaitBudget, time.Time{}, fmt.Sprintf("waits for others: the budget %s lets %d of %d machines of a host be interrupted at a time", a.budget.Name, a.limit, a.base))
		} else {
			one.wait(plan.WaitBudget, time.Time{}, fmt.Sprintf("waits for gitvirt approve: the budget %s lets one revision %s %d of %d machines, and %d come before it", a.budget.Name, a.what, a.limit, a.base, a.spent))
		}
		return
	}
	for _, a := range in {
		a.spent++
	}
}

// accounts opens the accounts of all budgets, with what was spent at this revision.
func (p *Policy) accounts(s *subjects) []account {
	destroys := func(spent *Spent) bool { return spent.Destroys }
	interrupts := func(spent *Spent) bool { return spent.Interrupts }
	var out []account
	for i := range p.spec.Budgets {
		b := &p.spec.Budgets[i]
		base := -1
		for _, bound := range []struct {
			value   *intstr.IntOrString
			counts  func(*Spent) bool
			what    string
			atATime bool
		}{
			{b.DestroyPerRevision, destroys, "destroy", false},
			{b.RestartPerRevision, interrupts, "interrupt", false},
			{b.RestartPerHost, interrupts, "interrupt", true},
		} {
			if bound.value == nil {
				continue
			}
			if base < 0 {
				base = p.base(s, b)
			}
			a := account{budget: b, counts: bound.counts, what: bound.what, atATime: bound.atATime, base: base, limit: amount(*bound.value, base)}
			spent := p.options.History.UnderWay
			if !bound.atATime {
				spent = append(spent[:len(spent):len(spent)], p.options.History.Done...)
			}
			for j := range spent {
				if one := &spent[j]; a.counts(one) && b.Selector.Matches(one.Address.Namespace, one.Labels) {
					a.spent++
				}
			}
			out = append(out, a)
		}
	}
	return out
}

// base counts the machines that a budget is about: those that live, and those that this revision destroyed.
func (p *Policy) base(s *subjects, b *schemas.Budget) int {
	wanted := make(map[schemas.Address]*schemas.VM, len(s.want.VMs))
	for _, vm := range s.want.VMs {
		wanted[vm.Address] = vm
	}
	lives := make(map[schemas.Address]bool, len(s.have.Domains))
	n := 0
	for _, domain := range s.have.Domains {
		if domain.Fleet != s.plan.Fleet || domain.State == plan.StateMissing {
			continue
		}
		lives[domain.Address] = true
		one := subject{step: &plan.Step{Address: domain.Address, VM: wanted[domain.Address]}, domain: domain}
		if one.in(&b.Selector) {
			n++
		}
	}
	for i := range p.options.History.Done {
		done := &p.options.History.Done[i]
		if done.Destroys && !lives[done.Address] && b.Selector.Matches(done.Address.Namespace, done.Labels) {
			n++
		}
	}
	return n
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
