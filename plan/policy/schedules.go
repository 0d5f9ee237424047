package policy

import (
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Power says whether a schedule wants a machine on or off now, and why. A machine that several schedules are for is on when
// one of them says so. Machines whose run strategy is Halted or Manual have no schedule: the first says off, and the second
// that people decide.
func (p *Policy) Power(vm *schemas.VM) (plan.PowerChange, string) {
	if vm.RunStrategy == kubevirtv1.RunStrategyHalted || vm.RunStrategy == kubevirtv1.RunStrategyManual {
		return plan.PowerKeep, ""
	}
	power, reason := plan.PowerKeep, ""
	for i := range p.schedules {
		s := &p.schedules[i]
		if !s.Selector.Matches(vm.Address.Namespace, vm.Object.Labels) {
			continue
		}
		if s.on {
			return plan.PowerOn, "the power schedule " + s.Name + " says on until " + moment(s.times.Stop.Next(p.options.Now), s.times.Stop.Zone())
		}
		if power == plan.PowerKeep {
			power, reason = plan.PowerOff, "the power schedule "+s.Name+" says off until "+moment(s.times.Start.Next(p.options.Now), s.times.Start.Zone())
		}
	}
	return power, reason
}
