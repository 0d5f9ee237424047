package plan

import (
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// power returns what has to happen to the power of a machine, and why: what a power schedule says, or else its run strategy.
func (b *builder) power(vm *schemas.VM, have *Domain) (PowerChange, string) {
	if !have.RetiredSince.IsZero() { // it was gitvirt that shut it down
		fresh := *have
		fresh.Ran = false
		have = &fresh
	}
	if b.policy != nil {
		switch power, reason := b.policy.Power(vm); {
		case power == PowerOff && have.active():
			return PowerOff, reason
		case power == PowerOff:
			return PowerKeep, reason
		case power == PowerOn && !have.active():
			return PowerOn, reason
		}
	}
	return wantsPower(vm, have), "runStrategy is " + string(vm.RunStrategy)
}

// wantsPower returns what a VM's run strategy makes of a domain's state: on, off or as it is.
func wantsPower(vm *schemas.VM, have *Domain) PowerChange {
	running := have.active()
	switch vm.RunStrategy {
	case kubevirtv1.RunStrategyAlways:
		if !running {
			return PowerOn
		}
	case kubevirtv1.RunStrategyRerunOnFailure:
		if !running && (!have.Ran || have.Stop != StopShutdown) {
			return PowerOn
		}
	case kubevirtv1.RunStrategyOnce:
		if !running && !have.Ran {
			return PowerOn
		}
	case kubevirtv1.RunStrategyHalted:
		if running {
			return PowerOff
		}
	}
	return PowerKeep
}

// startsNew reports whether a VM that does not exist yet is started when it is made.
func startsNew(vm *schemas.VM) bool {
	return wantsPower(vm, &Domain{State: StateStopped}) == PowerOn
}
