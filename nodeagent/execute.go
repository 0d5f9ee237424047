package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// The errors of Execute that a caller decides on.
var (
	// ErrStale: the domain is not what the plan saw.
	ErrStale = errors.New("the domain has changed since the plan was made")
	// ErrInvalid: the request can never be carried out as it is.
	ErrInvalid = errors.New("cannot be carried out")
)

// execution is one step on its way.
type execution struct {
	agent    *Agent
	request  *api.ExecuteRequest
	progress func(string)
	address  schemas.Address
	// name is the domain's. made is the address that it was made under: what belongs to it on the host is named after that.
	name string
	made schemas.Address
	// now is the domain as it was last read; nil when it does not exist.
	now *seen
	// machine is the wanted VM, nil for a destroy.
	machine *machine
	// fresh says that the volatile disks were made by this step and nobody has written to them yet.
	fresh bool
	// restoring says that the running guest is to become what its own record tells of, whatever is wanted by now.
	restoring bool
}

// Execute carries out one step. It is safe to repeat: each part does nothing when its work is done. A step that was
// interrupted anywhere leaves a state that the next plan understands.
func (a *Agent) Execute(ctx context.Context, request *api.ExecuteRequest, progress func(string)) (fingerprint string, err error) {
	e, err := a.newExecution(request, progress)
	if err != nil {
		return "", err
	}
	unlock, err := a.locks.lock(ctx, e.name)
	if err != nil {
		return "", err
	}
	defer unlock()
	if e.machine != nil {
		release, err := e.agent.volumes.reserved.use(e.machine)
		if err != nil {
			return "", err
		}
		defer release()
	}
	if err := e.check(ctx); err != nil {
		return "", err
	}
	failed := e.run(ctx)
	// Also of a step that failed is shown at once what was done; the error that counts is the step's.
	err = e.read(ctx)
	if err == nil {
		a.hosts.settle(e.name) // the record, which has just been read, says from now on what the VM has
	}
	if err == nil {
		err = e.giveUp()
	}
	if err == nil && e.active() {
		err = a.keeper.release()
	}
	if err = cmp.Or(failed, err); err != nil {
		return "", err
	}
	return e.fingerprint(), nil
}

// newExecution reads a request.
func (a *Agent) newExecution(request *api.ExecuteRequest, progress func(string)) (*execution, error) {
	e := &execution{agent: a, request: request, progress: progress}
	var err error
	if e.address, err = schemas.ParseAddress(request.GetAddress()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := checkNames(e.address); err != nil {
		return nil, err
	}
	e.name = cmp.Or(request.GetAdopt(), request.GetDomain(), a.view.nameOf(e.address))
	if !request.GetDestroy() && !request.GetRetire() {
		if e.machine, err = readMachine(e.address, request.GetVm()); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// read looks at the domain again.
func (e *execution) read(ctx context.Context) error {
	now, err := e.agent.refresh(ctx, e.name)
	if err != nil {
		return err
	}
	e.now = now
	return nil
}

func (e *execution) fingerprint() string {
	if e.now == nil {
		return ""
	}
	switch message := e.now.message.(type) {
	case *api.Domain:
		return message.GetFingerprint()
	case *api.Foreign:
		return message.GetFingerprint()
	}
	return ""
}

// defined reports whether libvirt has the domain.
func (e *execution) defined() bool { return e.now != nil && e.now.domain.Name != "" }

func (e *execution) active() bool { return e.defined() && e.now.domain.State.Active() }

// check compares the domain with what the plan saw, and keeps hands off the domains of others.
func (e *execution) check(ctx context.Context) error {
	if err := e.read(ctx); err != nil {
		return err
	}
	if err := e.owns(); err != nil {
		return err
	}
	if e.fingerprint() != e.request.GetPrecondition() {
		return fmt.Errorf("%w: domain %s", ErrStale, e.name)
	}
	e.made = e.address
	if e.now != nil && e.now.record != nil {
		e.made = e.now.record.Made()
	}
	if e.machine != nil {
		e.machine.made = e.made
		if e.now != nil && e.now.record != nil {
			e.machine.kept = e.now.record.Kept
		}
	}
	return nil
}

func (e *execution) run(ctx context.Context) error {
	switch {
	case e.request.GetDestroy():
		return e.destroy(ctx)
	case e.request.GetRetire():
		return e.retire(ctx)
	}
	if e.request.GetAdopt() != "" {
		return e.adopt(ctx)
	}
	power := e.request.GetPower()
	if e.request.GetDefine() {
		if err := e.define(ctx); err != nil {
			return err
		}
	} else if err := e.restore(ctx); err != nil {
		return err
	}
	switch power {
	case "":
		return nil
	case "on":
		return e.start(ctx)
	case "off":
		return e.stop(ctx)
	case "cycle":
		if err := e.agent.keeper.hold(); err != nil {
			return err
		}
		if err := e.stop(ctx); err != nil {
			return err
		}
		return e.start(ctx)
	}
	return fmt.Errorf("%w: unknown power change %q", ErrInvalid, power)
}

// retire stops the guest of a removed VM and marks its domain with the time, which the first of several retirements decides.
// Everything of it stays: a VM that comes back is started again.
func (e *execution) retire(ctx context.Context) error {
	if err := e.stop(ctx); err != nil {
		return err
	}
	if !e.defined() || e.now.record.Retired != 0 {
		return nil
	}
	e.progress("retiring " + e.name)
	record := *e.now.record
	record.Retired = e.agent.config.Now().Unix()
	if err := e.mark(ctx, &record); err != nil {
		return err
	}
	return e.agent.records.put(&record)
}

// destroy stops the guest and removes the domain with everything that goes with it; disks with data stay.
func (e *execution) destroy(ctx context.Context) error {
	if e.now == nil {
		return nil
	}
	record := e.now.record
	if err := e.stop(ctx); err != nil {
		return err
	}
	e.progress("undefining " + e.name)
	if err := e.agent.hypervisor.Undefine(ctx, e.name); err != nil {
		return fmt.Errorf("undefining %s: %w", e.name, err)
	}
	if err := e.agent.hosts.devices.Release(e.made.String(), nil); err != nil {
		return err
	}
	if err := e.agent.secrets.remove(e.made); err != nil {
		return err
	}
	if err := e.agent.records.remove(record); err != nil {
		return err
	}
	return e.agent.volumes.remove(ctx, e.made)
}
