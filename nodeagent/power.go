package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

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
	e.agent.keeper.starting(ctx, &record)
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
