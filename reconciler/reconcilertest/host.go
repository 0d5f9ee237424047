package reconcilertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// Host is a host in memory: domains that are defined, started, stopped, and changed behind gitvirt's back. It is safe
// for concurrent use.
type Host struct {
	// Delays are how long things take, by the host's clock (the process's).
	DefineDelay, StartDelay, ShutdownDelay time.Duration

	mu      sync.Mutex
	domains map[schemas.Address]*plan.Domain
	unknown string
	edits   map[schemas.Address]int
	faults  map[schemas.Address]Fault
	sick    map[schemas.Address]string
	finds   map[schemas.Address]apply.Findings
	kept    []status.KeptDisk
	log     []Execution
	cached  *plan.Observed
	silent  bool
	busy    int // steps that are being carried out now, and at most
	most    int
	changed chan struct{}
}

// Fault decides what happens when a step is carried out: an error is its outcome, before anything is done.
type Fault func(step plan.Step) error

// Execution is a step that the host was asked to carry out.
type Execution struct {
	Address schemas.Address
	Action  plan.Action
	Err     error
}

// NewHost returns an empty host.
func NewHost() *Host {
	return &Host{
		domains: map[schemas.Address]*plan.Domain{}, edits: map[schemas.Address]int{}, faults: map[schemas.Address]Fault{},
		sick: map[schemas.Address]string{}, finds: map[schemas.Address]apply.Findings{},
		changed: make(chan struct{}, 1),
	}
}

// Observed implements reconciler.Platform.
func (h *Host) Observed() plan.Observed {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cached == nil {
		h.cached = h.picture()
	}
	return *h.cached
}

func (h *Host) picture() *plan.Observed {
	observed := &plan.Observed{Node: "node-1", Unknown: h.unknown, Live: plan.LiveSet{plan.LiveCPU}}
	if h.unknown != "" {
		return observed
	}
	for _, domain := range h.domains {
		observed.Domains = append(observed.Domains, domain)
	}
	slices.SortFunc(observed.Domains, func(a, b *plan.Domain) int { return a.Address.Compare(b.Address) })
	return observed
}

// Changed implements reconciler.Platform.
func (h *Host) Changed() <-chan struct{} { return h.changed }

// KeptDisks implements reconciler.DiskLister.
func (h *Host) KeptDisks(context.Context) ([]status.KeptDisk, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.kept), nil
}

// tell drops the picture; the caller holds mu.
func (h *Host) tell() {
	h.cached = nil
	if h.silent {
		return
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// put replaces a domain by a changed copy; the caller holds mu.
func (h *Host) put(domain plan.Domain) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %s %s %d %d %v", domain.State, domain.Revision, domain.Hash, domain.RunningHash, len(domain.Drift), h.edits[domain.Address], domain.Transient))
	domain.Headroom = &plan.Headroom{MaxVCPUs: 8}
	domain.Fingerprint = hex.EncodeToString(sum[:8])
	h.domains[domain.Address] = &domain
	h.tell()
}

// change edits a domain; a domain that is not there is left so.
func (h *Host) change(address schemas.Address, edit func(*plan.Domain)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	domain, ok := h.domains[address]
	if !ok {
		return
	}
	next := *domain
	edit(&next)
	h.put(next)
}

func off(stop string) func(*plan.Domain) {
	return func(d *plan.Domain) {
		d.State, d.Stop, d.RunningHash, d.RunningRecord, d.Addresses = plan.StateStopped, stop, "", nil, nil
	}
}

// Crash is a guest that panics.
func (h *Host) Crash(address schemas.Address) { h.change(address, off(plan.StopCrashed)) }

// PullPlug is virsh destroy.
func (h *Host) PullPlug(address schemas.Address) { h.change(address, off(plan.StopDestroyed)) }

// PowerOff is a guest that shuts itself down.
func (h *Host) PowerOff(address schemas.Address) { h.change(address, off(plan.StopShutdown)) }

// Edit is virsh edit.
func (h *Host) Edit(address schemas.Address) {
	h.change(address, func(d *plan.Domain) {
		h.edits[address]++
		d.Drift = []plan.Change{{Path: "vcpu", Before: "1", After: "4", Consequence: plan.ConsequenceNone}}
	})
}

// Vanish is virsh destroy and virsh undefine.
func (h *Host) Vanish(address schemas.Address) {
	h.change(address, func(d *plan.Domain) {
		off("")(d)
		d.State = plan.StateMissing
	})
}

// SetUnknown makes the host unreadable; "" ends that.
func (h *Host) SetUnknown(why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unknown = why
	h.tell()
}

// Silence keeps the host from telling of changes, as when an event is lost.
func (h *Host) Silence(silent bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = silent
}

// SetFault makes steps of a machine fail; nil ends that.
func (h *Host) SetFault(address schemas.Address, fault Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault == nil {
		delete(h.faults, address)
		return
	}
	h.faults[address] = fault
}

// Domain returns a domain.
func (h *Host) Domain(address schemas.Address) (plan.Domain, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	domain, ok := h.domains[address]
	if !ok {
		return plan.Domain{}, false
	}
	return *domain, true
}

// Executions returns what the host was asked to do since the last call.
func (h *Host) Executions() []Execution {
	h.mu.Lock()
	defer h.mu.Unlock()
	log := h.log
	h.log = nil
	return log
}

// MostAtOnce returns how many steps were carried out at the same time, at most.
func (h *Host) MostAtOnce() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most
}

// Execute implements apply.Executor.
func (h *Host) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	h.mu.Lock()
	h.busy++
	h.most = max(h.most, h.busy)
	h.mu.Unlock()
	err := h.execute(ctx, target, step, progress)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy--
	h.log = append(h.log, Execution{Address: step.Address, Action: step.Action, Err: err})
	return err
}

// Await implements apply.Executor: a guest is ready as soon as it runs, unless SetSick says why it is not.
func (h *Host) Await(ctx context.Context, guest apply.Guest, timeout time.Duration) error {
	until := time.NewTimer(timeout)
	defer until.Stop()
	for {
		h.mu.Lock()
		domain, why := h.domains[guest.Address], h.sick[guest.Address]
		h.mu.Unlock()
		switch {
		case domain == nil || domain.State != plan.StateRunning:
			return apply.NotReadyError{Reason: "the guest is off", Never: true}
		case why == "":
			return nil
		}
		select {
		case <-ctx.Done():
			return apply.ErrLeft
		case <-until.C:
			return apply.NotReadyError{Reason: why}
		case <-time.After(time.Second):
		}
	}
}

// SetSick says why a guest that runs is not ready; "" ends that.
func (h *Host) SetSick(address schemas.Address, why string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if why == "" {
		delete(h.sick, address)
		return
	}
	h.sick[address] = why
}

func (h *Host) execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	if err := h.begin(step); err != nil {
		return err
	}
	if step.Action == plan.ActionDestroy {
		return h.destroy(ctx, step, progress)
	}
	if step.Define {
		if err := h.define(ctx, target, step, progress); err != nil {
			return err
		}
	}
	if step.Power == plan.PowerOff || step.Power == plan.PowerCycle {
		if err := h.shutdown(ctx, step.Address, progress); err != nil {
			return err
		}
	}
	if step.Power == plan.PowerOn || step.Power == plan.PowerCycle {
		return h.start(ctx, step.Address, progress)
	}
	return nil
}

// begin checks what the plan saw.
func (h *Host) begin(step plan.Step) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.unknown != "" {
		return fmt.Errorf("%w: %s", apply.ErrRetry, h.unknown)
	}
	fingerprint := ""
	if domain, ok := h.domains[step.Address]; ok {
		fingerprint = domain.Fingerprint
	}
	if fingerprint != step.Precondition {
		return fmt.Errorf("%w: %s", apply.ErrStale, step.Address)
	}
	if fault := h.faults[step.Address]; fault != nil {
		return fault(step)
	}
	return nil
}

// pause is how long something takes.
func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", apply.ErrRetry, context.Cause(ctx))
	case <-timer.C:
		return nil
	}
}

func (h *Host) define(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	progress("defining")
	target = target.For(&step)
	if err := pause(ctx, h.DefineDelay); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	domain := plan.Domain{Address: step.Address, Name: step.Domain, UUID: schemas.FirmwareUUID(step.Address), State: plan.StateStopped}
	if before, ok := h.domains[step.Address]; ok && before.State != plan.StateMissing && step.Action != plan.ActionReplace {
		domain = *before
	}
	domain.Fleet, domain.Revision, domain.Source = target.Fleet, target.Revision, step.Source
	domain.Hash, domain.Record, domain.Drift, domain.Transient = step.VM.Hash, step.VM.Record, nil, false
	if domain.State != plan.StateStopped && step.ReachesGuest() {
		domain.RunningHash, domain.RunningRecord = domain.Hash, domain.Record
	}
	domain.Disks = nil
	for _, volume := range step.VM.Spec().Volumes {
		kind, keep := domainxml.VolumeKind(volume)
		domain.Disks = append(domain.Disks, plan.Disk{Volume: volume.Name, Kind: kind, Keep: keep, Path: "/disks/" + step.Address.Name + "/" + volume.Name, CapacityBytes: 1 << 30})
	}
	h.put(domain)
	return nil
}

func (h *Host) start(ctx context.Context, address schemas.Address, progress func(string)) error {
	progress("starting")
	if err := pause(ctx, h.StartDelay); err != nil {
		return err
	}
	h.change(address, func(d *plan.Domain) {
		d.State, d.Stop, d.Ran, d.RunningHash, d.RunningRecord = plan.StateRunning, "", true, d.Hash, d.Record
		d.Addresses = []string{"192.0.2.7"}
	})
	return nil
}

func (h *Host) shutdown(ctx context.Context, address schemas.Address, progress func(string)) error {
	progress("asking the guest to shut down")
	if err := pause(ctx, h.ShutdownDelay); err != nil {
		return err
	}
	h.change(address, off(plan.StopShutdown))
	return nil
}

func (h *Host) destroy(ctx context.Context, step plan.Step, progress func(string)) error {
	if err := h.shutdown(ctx, step.Address, progress); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if domain, ok := h.domains[step.Address]; ok {
		for _, disk := range domain.Disks {
			if disk.Keep {
				h.kept = append(h.kept, status.KeptDisk{
					Owner: step.Address, Node: "node-1", Disk: status.Disk{Volume: disk.Volume, Kind: disk.Kind, Path: disk.Path, CapacityBytes: disk.CapacityBytes},
				})
			}
		}
	}
	delete(h.domains, step.Address)
	h.tell()
	return nil
}

// SetFindings decides what a check says of the steps of a machine.
func (h *Host) SetFindings(address schemas.Address, found apply.Findings) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finds[address] = found
}

// Check implements apply.Checker.
func (h *Host) Check(_ context.Context, _ apply.Target, step plan.Step) (apply.Findings, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.finds[step.Address], nil
}
