// Package nodeagent is what runs on each host: it tells the controller which domains live there and carries out the
// steps of plans on them. It decides nothing about what should run. It keeps its record in each domain's metadata and
// touches no domain that does not carry it.
//
// The parts: api (the gRPC service), domainxml (rendering, pure), hypervisor (libvirt behind one interface), disks,
// images, imports, cloudinit and guestfiles (what a VM's volumes are made of), hostdevices and cpus (what only one VM can
// have), capabilities (what a host can do at all), guestagent, probes and forwards (what is done for a running guest), guestmetrics
// (figures for guests), emulation (whether KVM really works).
package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/probes"
	"github.com/gitvirt/gitvirt/schemas"
)

// Config is what an Agent needs to know.
type Config struct {
	// Node is the host's name.
	Node string
	// StateDir holds disks, images and traces; see package disks for its layout.
	StateDir string
	// DomainType is "kvm" or "qemu" (software emulation).
	DomainType string
	// Resync is how often every domain is read again although no event asked for it: libvirt sends none for a
	// definition that is edited. 0 means 5 s.
	Resync time.Duration
	// Clock is the time of probes and of what is tried again in guests; nil means the real one.
	Clock probes.Clock
	// Now is the time that records note; nil means the real one.
	Now func() time.Time
	// Patience is how long a guest may take to put memory to use that it was given, or to give some back. 0 means 30 s.
	Patience time.Duration
	// Describe fills in what GetNode answers about the host; nil leaves it empty.
	Describe func(ctx context.Context, node *api.Node)
	Logger   *slog.Logger
}

// Agent carries out steps on one host and tells what lives there.
type Agent struct {
	config     Config
	hypervisor hypervisor.Hypervisor
	volumes    *volumes
	records    *records
	view       *view
	locks      *locks
	reader     *domainxml.Reader
	clock      probes.Clock
	hosts      *hostShare
	secrets    *credentialFiles
	refusals   *refusals
	keeper     keeper
	reach      reachability
	// followers run as long as Run does.
	followers []func(context.Context)
	// local and ports are a host's; nil for the agent of a Pod, whose disks are the cluster's and whose images are the kubelet's.
	local *hostVolumes
	ports *ports
	// failedReads, swept and learned belong to the goroutine of Run.
	failedReads int
	swept       bool
	learned     bool // what the host can do for running guests
}

// New opens the state directory and returns an agent for the domains of a host's hypervisor. Run makes it work.
func New(config Config, hypervisor hypervisor.Hypervisor, options ...Option) (*Agent, error) {
	settings := settings{}
	for _, option := range options {
		option(&settings)
	}
	a, err := newAgent(config, hypervisor)
	if err != nil {
		return nil, err
	}
	if a.hosts, err = newHostShare(settings); err != nil {
		return nil, err
	}
	if a.local, err = openVolumes(config.StateDir, config.DomainType, settings); err != nil {
		return nil, err
	}
	if owner, ok := hypervisor.(ownerReader); ok {
		a.local.owner = owner
	}
	a.volumes = &volumes{a.local, newReservations()}
	a.ports = &ports{agent: a, redirects: redirectsOf(settings, config.StateDir), guests: map[string]*openPorts{}}
	a.reach, a.keeper = a.ports, noKeeper{}
	a.followers = append(a.followers, a.followMetrics, a.ports.follow)
	return a, nil
}

// newAgent returns an agent that lacks what hosts and Pods have each in their way.
func newAgent(config Config, hypervisor hypervisor.Hypervisor) (*Agent, error) {
	if config.Node == "" || config.StateDir == "" || (config.DomainType != "kvm" && config.DomainType != "qemu") {
		return nil, errors.New("an agent needs a node name, a state directory and a domain type (kvm or qemu)")
	}
	if config.Resync <= 0 {
		config.Resync = 5 * time.Second
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Clock == nil {
		config.Clock = probes.SystemClock{}
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Patience <= 0 {
		config.Patience = 30 * time.Second
	}
	machines := filepath.Join(config.StateDir, "vms")
	if err := os.MkdirAll(machines, 0o711); err != nil { //nolint:gosec // QEMU's user must reach the disks below
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	traces, err := openRecords(machines)
	if err != nil {
		return nil, err
	}
	a := &Agent{
		config: config, hypervisor: hypervisor, records: traces, locks: newLocks(), clock: config.Clock,
		reader: domainxml.NewReader(), refusals: newRefusals(), secrets: &credentialFiles{dir: machines},
		view: newView("the agent has not read the host yet"),
	}
	a.followers = []func(context.Context){a.followAddresses, a.followGuests}
	return a, nil
}

// host returns what rendering a VM needs to know of this host.
func (a *Agent) host(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) domainxml.Host {
	return a.volumes.host(address, spec)
}

// pruneInterval is how often container disks are looked for that nothing uses any more.
const pruneInterval = time.Hour

// Run follows the hypervisor until ctx ends: it reads everything when the connection comes, one domain at each of its
// events, and everything again from time to time.
func (a *Agent) Run(ctx context.Context) {
	inbox := newInbox()
	var followers sync.WaitGroup
	followers.Go(func() { a.hypervisor.Events(ctx, inbox.add) })
	for _, follow := range a.followers {
		followers.Go(func() { follow(ctx) })
	}
	defer followers.Wait()
	resync := time.NewTicker(a.config.Resync)
	defer resync.Stop()
	prune := time.NewTicker(pruneInterval)
	defer prune.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-resync.C:
			started := time.Now()
			a.readAll(ctx)
			// On a host with very many domains reading is never more than a small part of the work.
			resync.Reset(max(a.config.Resync, 20*time.Since(started)))
		case <-inbox.wake:
			a.follow(ctx, inbox)
		case <-prune.C:
			a.sweep(ctx)
			a.pruneImages(ctx)
		}
	}
}

// follow looks at what the events since the last call named.
func (a *Agent) follow(ctx context.Context, inbox *inbox) {
	all, lost, names := inbox.take()
	if lost {
		a.view.lose("libvirt does not answer")
	}
	if all {
		a.learned = false // this libvirt may be another version
		a.readAll(ctx)
		return
	}
	for _, name := range names {
		now, err := a.refresh(ctx, name)
		if err != nil {
			a.lost(ctx, err)
			return
		}
		a.settle(ctx, name, now)
	}
}

// learn finds out what the host can do for running guests. Until that is known nothing is promised.
func (a *Agent) learn(ctx context.Context) {
	if a.learned {
		return
	}
	able, err := a.hypervisor.LiveChanges(ctx, a.config.DomainType)
	if err != nil {
		if ctx.Err() == nil {
			a.config.Logger.Warn("cannot find out what can be done for running guests", "error", err)
		}
		return
	}
	a.learned = true
	a.view.learn(able)
}

func (a *Agent) readAll(ctx context.Context) {
	a.learn(ctx)
	if err := a.refreshAll(ctx); err != nil {
		a.lost(ctx, err)
		return
	}
	a.failedReads = 0
	for name, now := range a.view.take(&watcher{all: true, dirty: map[string]bool{}}).domains {
		a.settle(ctx, name, now)
	}
	if !a.swept {
		a.swept = true
		a.sweep(ctx)
	}
}

// maxFailedReads is how often everything may fail to be read until what is known counts as too old.
const maxFailedReads = 3

// lost concludes from a failed read: the host is unknown when the hypervisor is gone; anything else is read again at
// the next resync.
func (a *Agent) lost(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	a.config.Logger.Warn("cannot read domains", "error", err)
	a.failedReads++
	if errors.Is(err, hypervisor.ErrUnavailable) || a.failedReads >= maxFailedReads {
		a.view.lose("libvirt does not answer: " + err.Error())
	}
}

// settleLimit bounds a write of settle: a domain whose QEMU hangs must not keep the agent from seeing the others.
const settleLimit = 2 * time.Second

// settle writes into the record what only this moment knows: that the guest has been started, and why it stopped.
// libvirt forgets the latter when its daemon restarts. A VM that a step is working on is left to the step.
func (a *Agent) settle(ctx context.Context, name string, now *seen) {
	if _, needed := settled(now); !needed {
		return
	}
	unlock, ok := a.locks.try(name)
	if !ok {
		return
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	// What was seen may be older than a step that has just ended.
	now, err := a.refresh(ctx, name)
	record, needed := settled(now)
	if err == nil && needed {
		var content string
		if content, err = record.Element(); err == nil {
			err = a.hypervisor.SetMetadata(ctx, name, domainxml.MetadataPrefix, domainxml.MetadataURI, content)
		}
		if err == nil {
			_, err = a.refresh(ctx, name)
		}
	}
	if err != nil && ctx.Err() == nil {
		a.config.Logger.Warn("cannot write a domain's record", "domain", name, "error", err)
	}
}

// settled returns what a domain's record should say by now, and whether it does not. While the guest runs an older
// configuration than the one that is defined, nothing is written: it would tell both that they are the same.
func settled(now *seen) (record domainxml.Record, needed bool) {
	if now == nil || now.record == nil || now.domain.Name == "" || now.problem != "" || now.domain.State == hypervisor.StateStarting {
		return record, false
	}
	if now.running != nil && now.running.Hash != now.record.Hash {
		return record, false
	}
	record = *now.record
	active, reason := now.domain.State.Active(), now.domain.StopReason
	switch {
	case active && (!record.Ran || record.Stop != ""):
		record.Ran, record.Stop = true, ""
	case !active && record.Ran && reason != hypervisor.StopUnknown && record.Stop != string(reason) && !killed(reason, &record):
		record.Stop = string(reason)
	default:
		return record, false
	}
	return record, true
}
