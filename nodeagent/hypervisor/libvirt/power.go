package libvirt

import (
	"context"
	"fmt"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// SetPower implements hypervisor.Hypervisor.
func (h *Hypervisor) SetPower(ctx context.Context, name string, power hypervisor.Power) error {
	var what string
	var change func(*lv.Domain) error
	switch power {
	case hypervisor.PowerOn:
		what, change = "start", func(dom *lv.Domain) error { return start(dom, 0) }
	case hypervisor.PowerOnPaused:
		what, change = "start", func(dom *lv.Domain) error { return start(dom, lv.DOMAIN_START_PAUSED) }
	case hypervisor.PowerShutdown:
		what, change = "shut down", shutdown
	case hypervisor.PowerOff:
		what, change = "power off", powerOff
	case hypervisor.PowerResume:
		what, change = "resume", resume
	default:
		return fmt.Errorf("set power of domain %q: unknown power %q", name, power)
	}
	return doing(withDomain(ctx, h, name, change), what, name)
}

// start boots the guest. Memory that was saved (virsh managedsave) is dropped: it would be restored onto disks that are
// made anew at every power-on.
func start(dom *lv.Domain, flags lv.DomainCreateFlags) error {
	err := dom.CreateWithFlags(lv.DOMAIN_START_FORCE_BOOT | flags)
	if unsupported(err) {
		err = dom.Create()
		if err == nil && flags&lv.DOMAIN_START_PAUSED != 0 {
			err = dom.Suspend() // only drivers that pretend to run guests know no flags
		}
	}
	return tolerate(dom, err, hypervisor.State.Active)
}

// shutdown presses the power button. It asks for ACPI by name: with no flag QEMU's driver prefers the guest agent and
// waits for its answer.
func shutdown(dom *lv.Domain) error {
	err := dom.ShutdownFlags(lv.DOMAIN_SHUTDOWN_ACPI_POWER_BTN)
	if unsupported(err) {
		err = dom.Shutdown()
	}
	return tolerate(dom, err, off)
}

func powerOff(dom *lv.Domain) error {
	return tolerate(dom, dom.Destroy(), off)
}

func resume(dom *lv.Domain) error {
	// libvirt resumes a running guest without complaint; the check is for drivers that do not.
	return tolerate(dom, dom.Resume(), func(s hypervisor.State) bool { return s == hypervisor.StateRunning })
}

func off(s hypervisor.State) bool { return !s.Active() }

// tolerate drops the error of a change that was not needed: the domain is already where it should be. Asking afterwards
// leaves no gap in which somebody else can do the same.
func tolerate(dom *lv.Domain, err error, reached func(hypervisor.State) bool) error {
	if !hasCode(err, lv.ERR_OPERATION_INVALID, lv.ERR_INTERNAL_ERROR) {
		return err
	}
	state, reason, stateErr := dom.GetState()
	if stateErr != nil {
		return err
	}
	if now, _ := stateOf(state, reason); reached(now) {
		return nil
	}
	return err
}
