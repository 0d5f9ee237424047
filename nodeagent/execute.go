package nodeagent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/guestfiles"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
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
		if err := e.stop(ctx); err != nil {
			return err
		}
		return e.start(ctx)
	}
	return fmt.Errorf("%w: unknown power change %q", ErrInvalid, power)
}

// define prepares what the VM needs and writes the persistent definition. The running guest goes on with what it has
// until it is cycled; a definition that libvirt refuses costs no downtime.
func (e *execution) define(ctx context.Context) error {
	var before *domainxml.Record
	if e.now != nil {
		before = e.now.record
	}
	assignment, err := e.assign(ctx, before)
	if err != nil {
		return err
	}
	e.progress("preparing disks")
	volumes, err := e.agent.volumes.prepare(ctx, e.machine, e.live(), e.progress)
	if err != nil {
		return err
	}
	record := e.machine.record(volumes, before)
	record.Assignment = assignment
	if before != nil && e.request.GetPower() != "cycle" {
		record.Ran, record.Stop = before.Ran, before.Stop
	}
	record.Pending, record.Native = e.pending(record), e.native()
	definition, err := e.render(record)
	if err != nil {
		return err
	}
	var operations []domainxml.Operation
	live := e.changesGuest()
	if live {
		// All of it is decided before anything is touched.
		if operations, err = e.operations(ctx, record); err != nil {
			return e.refuse(record, err)
		}
	}
	if e.request.GetReplace() && e.defined() {
		if err := e.undefine(ctx, before); err != nil {
			return err
		}
	}
	if e.written(before, record) {
		// The trace may still be missing: it is left after the definition.
		err = e.agent.records.put(record)
	} else {
		err = e.write(ctx, record, definition)
	}
	if err != nil {
		return err
	}
	if err := e.agent.secrets.put(e.made, credentialsOf(e.machine)); err != nil {
		return err
	}
	if err := e.refresh(ctx, volumes); err != nil {
		return err
	}
	if live {
		return e.change(ctx, record, operations)
	}
	return nil
}

// undefine makes room for a domain that is made anew.
func (e *execution) undefine(ctx context.Context, before *domainxml.Record) error {
	if err := e.stop(ctx); err != nil {
		return err
	}
	// Without its trace first: a step that ends here leaves a VM that is to be created, not one that vanished.
	if err := e.agent.records.remove(before); err != nil {
		return err
	}
	if err := e.agent.hypervisor.Undefine(ctx, e.name); err != nil {
		return fmt.Errorf("undefining %s: %w", e.name, err)
	}
	return nil
}

// render returns the definition that a record stands for.
func (e *execution) render(record *domainxml.Record) (string, error) {
	machine := record.Machine(e.machine.spec(), e.agent.host(e.made, e.machine.spec()))
	machine.Record = record
	definition, err := domainxml.Render(machine)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return definition, nil
}

// write defines the domain and leaves its trace.
func (e *execution) write(ctx context.Context, record *domainxml.Record, definition string) error {
	e.progress("defining " + e.name)
	if err := e.agent.hypervisor.Define(ctx, definition); err != nil {
		return fmt.Errorf("defining %s: %w", e.name, err)
	}
	return e.agent.records.put(record)
}

// refresh makes ready what the next power-on needs, whoever switches the guest on. What a running guest has open is left.
func (e *execution) refresh(ctx context.Context, volumes []domainxml.Volume) error {
	open, err := e.open(ctx)
	if err != nil {
		return err
	}
	e.fresh = !e.active()
	return e.prepareVolumes(ctx, volumes, open)
}

// open returns what the running guest has open: what its record tells of, and what it was given since; nil when it is off.
func (e *execution) open(ctx context.Context) (map[string]bool, error) {
	if !e.active() {
		return nil, nil //nolint:nilnil // nothing is open
	}
	domain, err := e.agent.hypervisor.Domain(ctx, e.name)
	if err != nil {
		return nil, fmt.Errorf("reading domain %s: %w", e.name, err)
	}
	open := map[string]bool{}
	for _, path := range domainxml.Sources(domain.Live) {
		open[path] = true
	}
	if e.now.running != nil {
		for _, volume := range e.now.running.Volumes {
			open[volume.Path] = true
		}
	}
	return open, nil
}

// prepareVolumes makes the volumes of a definition ready. A config drive tells the guest the addresses of tagged devices,
// which libvirt chose when it took the definition.
func (e *execution) prepareVolumes(ctx context.Context, volumes []domainxml.Volume, open map[string]bool) error {
	if guestfiles.HasTags(e.machine.spec()) {
		domain, err := e.agent.hypervisor.Domain(ctx, e.name)
		if err != nil {
			return fmt.Errorf("reading domain %s: %w", e.name, err)
		}
		e.machine.definition = domain.Config
	}
	return e.agent.volumes.refresh(ctx, e.machine, volumes, open)
}

// mark writes the record into the definition and, when there is one, into the running guest.
func (e *execution) mark(ctx context.Context, record *domainxml.Record) error {
	content, err := record.Element()
	if err != nil {
		return err
	}
	if err := e.agent.hypervisor.SetMetadata(ctx, e.name, domainxml.MetadataPrefix, domainxml.MetadataURI, content); err != nil {
		return fmt.Errorf("writing the record of %s: %w", e.name, err)
	}
	return nil
}

// start makes the volatile disks anew and powers the domain on.
func (e *execution) start(ctx context.Context) error {
	if err := e.read(ctx); err != nil {
		return err
	}
	if !e.defined() {
		return fmt.Errorf("%w: domain %s is gone", ErrStale, e.name)
	}
	if e.active() {
		return nil
	}
	record := *e.now.record
	if err := e.ready(ctx, &record); err != nil {
		return err
	}
	if !e.fresh {
		if err := e.prepareVolumes(ctx, record.Volumes, nil); err != nil {
			return err
		}
	}
	// Also when nothing is defined: a step that was interrupted may have come no further than the definition.
	if err := e.agent.secrets.put(e.made, credentialsOf(e.machine)); err != nil {
		return err
	}
	e.progress("starting " + e.name)
	power := hypervisor.PowerOn
	if strategy := e.machine.spec().StartStrategy; strategy != nil && *strategy == kubevirtv1.StartStrategyPaused {
		power = hypervisor.PowerOnPaused
	}
	if err := e.agent.hypervisor.SetPower(ctx, e.name, power); err != nil {
		return fmt.Errorf("starting %s: %w", e.name, err)
	}
	record.Ran, record.Stop, record.Pending, record.Native, record.Retired = true, "", 0, nil, 0
	if err := e.mark(ctx, &record); err != nil {
		return err
	}
	return e.acquaint(ctx, &record)
}

// again is how often the guest is asked to shut down while it takes its time: one that is still booting misses the
// first request.
const again = 5 * time.Second

// stop asks the guest to shut down and, after its grace period, pulls the plug.
func (e *execution) stop(ctx context.Context) error {
	if !e.active() {
		return nil
	}
	grace := time.Duration(e.request.GetGraceSeconds()) * time.Second
	if grace > 0 {
		e.progress(fmt.Sprintf("asking the guest to shut down (up to %s)", grace))
		off, err := e.shutdown(ctx, grace)
		if off || err != nil {
			return err
		}
		e.progress("the guest did not shut down in time; pulling the plug")
	}
	if err := e.agent.hypervisor.SetPower(ctx, e.name, hypervisor.PowerOff); err != nil && !errors.Is(err, hypervisor.ErrNotFound) {
		return fmt.Errorf("stopping %s: %w", e.name, err)
	}
	return e.read(ctx)
}

// shutdown waits for the guest to power off by itself, for at most grace.
func (e *execution) shutdown(ctx context.Context, grace time.Duration) (off bool, err error) {
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	ask := time.NewTicker(again)
	defer ask.Stop()
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	request := func() error {
		err := e.agent.hypervisor.SetPower(ctx, e.name, hypervisor.PowerShutdown)
		if err != nil && (errors.Is(err, hypervisor.ErrUnavailable) || ctx.Err() != nil) {
			return fmt.Errorf("shutting %s down: %w", e.name, err)
		}
		return nil // a guest that cannot even be asked is stopped by force when its time is up
	}
	if err := request(); err != nil {
		return false, err
	}
	for {
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("shutting %s down: %w", e.name, context.Cause(ctx))
		case <-deadline.C:
			return false, nil
		case <-ask.C:
			if err := request(); err != nil {
				return false, err
			}
		case <-look.C:
			if err := e.read(ctx); err != nil {
				return false, err
			}
			if !e.active() {
				return true, nil
			}
		}
	}
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
	return e.agent.volumes.remove(e.made)
}
