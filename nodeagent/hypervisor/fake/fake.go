// Package fake is a hypervisor in memory, for tests of what drives one. It keeps what it is told, assigns what libvirt
// assigns and a reader may rely on (a UUID, metadata with its prefix, the live definition as a copy of the persistent
// one at the start), changes a running guest's devices, CPUs and memory in its live definition, refuses what libvirt refuses of a
// domain's outline and of such changes, and passes the suite of package conformance. It does not know libvirt's schema below
// <domain>, nor does it fill in devices and addresses, but for devices that are attached.
//
// A test plays the guests and the operator's hand with GuestPowersOff, GuestCrashes, IgnoresPowerButton, Pause and the like, and
// the faults with Fail, Down and Up.
package fake

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/eventqueue"
)

// Method names a method of hypervisor.Hypervisor.
type Method string

// The methods that can be made to fail.
const (
	Names       Method = "Names"
	Domain      Method = "Domain"
	Define      Method = "Define"
	SetPower    Method = "SetPower"
	SetMetadata Method = "SetMetadata"
	Undefine    Method = "Undefine"
	Addresses   Method = "Addresses"
	GuestAgent  Method = "GuestAgent"
	Monitor     Method = "Monitor"
	OpenConsole Method = "OpenConsole"
	Statistics  Method = "Statistics"

	HasPasswords Method = "HasPasswords"
	Replace      Method = "Replace"
	// Replacing is the middle of Replace: the old definition is gone, and with an error there will be no new one.
	Replacing Method = "Replacing"

	Validate     Method = "Validate"
	AttachDevice Method = "AttachDevice"
	DetachDevice Method = "DetachDevice"
	UpdateDevice Method = "UpdateDevice"
	SetVCPUs     Method = "SetVCPUs"
	SetMemory    Method = "SetMemory"
	ResizeDisk   Method = "ResizeDisk"
	LiveChanges  Method = "LiveChanges"
)

// Hook is called before a method does anything, with the name of its domain ("" for Names). When it returns an error, the
// method returns that and does nothing. It may delay the method by waiting, with regard to ctx, and may call the
// Hypervisor.
type Hook func(ctx context.Context, domain string) error

// Hypervisor is a hypervisor in memory. It is safe for concurrent use.
type Hypervisor struct {
	mu      sync.Mutex
	down    bool
	nextID  int
	domains map[string]*domain
	hooks   map[Method]Hook
	readers map[*eventqueue.Queue]struct{}
	able    []hypervisor.LiveChange
}

var _ hypervisor.Hypervisor = (*Hypervisor)(nil)

// domain is a domain and how its guest behaves.
type domain struct {
	hypervisor.Domain

	ignoresButton bool
	stopsAtBoot   hypervisor.StopReason // why, or StopUnknown when it goes on
	addresses     []string
	agent         Agent
	monitor       monitor
	console       *console // who has it; nil for nobody

	keepsDevices bool
	givesVCPUs   bool
	plugged      int               // how many devices were attached in its life
	sizes        map[string]uint64 // of disks, in bytes, by their target
}

// Agent answers the commands of a guest agent; an error is the agent's refusal.
type Agent func(command string) (reply string, err error)

// New returns a hypervisor without domains.
func New() *Hypervisor {
	return &Hypervisor{
		domains: map[string]*domain{},
		hooks:   map[Method]Hook{},
		readers: map[*eventqueue.Queue]struct{}{},
		able:    hypervisor.LiveChanges(),
	}
}

// Names implements hypervisor.Hypervisor.
func (h *Hypervisor) Names(ctx context.Context) ([]string, error) {
	if err := h.enter(ctx, Names, ""); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.domains)), nil
}

// Domain implements hypervisor.Hypervisor.
func (h *Hypervisor) Domain(ctx context.Context, name string) (hypervisor.Domain, error) {
	if err := h.enter(ctx, Domain, name); err != nil {
		return hypervisor.Domain{}, err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return hypervisor.Domain{}, err
	}
	out := d.Domain
	out.Config, out.Live = withoutPasswords(d.Config), withoutPasswords(d.Live)
	return out, nil
}

// Secret returns the persistent definition of a domain with its passwords; "" when there is none.
func (h *Hypervisor) Secret(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d, found := h.domains[name]; found {
		return d.Config
	}
	return ""
}

// SetPower implements hypervisor.Hypervisor.
func (h *Hypervisor) SetPower(ctx context.Context, name string, power hypervisor.Power) error {
	if err := h.enter(ctx, SetPower, name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return err
	}
	switch power {
	case hypervisor.PowerOn:
		if !d.State.Active() {
			h.start(d, hypervisor.StateRunning)
		}
	case hypervisor.PowerOnPaused:
		if !d.State.Active() {
			h.start(d, hypervisor.StatePaused)
		}
	case hypervisor.PowerShutdown:
		if d.State == hypervisor.StateRunning && !d.ignoresButton {
			h.stop(d, hypervisor.StopShutdown)
		}
	case hypervisor.PowerOff:
		if d.State.Active() {
			h.stop(d, hypervisor.StopDestroyed)
		}
	case hypervisor.PowerResume:
		if !d.State.Active() {
			return fmt.Errorf("resume domain %q: it is not running", name)
		}
		h.change(d, hypervisor.StateRunning)
	default:
		return fmt.Errorf("set power of domain %q: unknown power %q", name, power)
	}
	return nil
}

// SetMetadata implements hypervisor.Hypervisor.
func (h *Hypervisor) SetMetadata(ctx context.Context, name, prefix, uri, xml string) error {
	if err := h.enter(ctx, SetMetadata, name); err != nil {
		return err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil {
		return err
	}
	element, err := qualify(xml, prefix, uri)
	if err != nil {
		return fmt.Errorf("set metadata of domain %q: %w: %w", name, hypervisor.ErrInvalid, err)
	}
	if d.Config != "" {
		d.Config = replaceMetadata(d.Config, uri, element)
	}
	if d.Live != "" {
		d.Live = replaceMetadata(d.Live, uri, element)
	}
	h.emit(hypervisor.Event{Kind: hypervisor.EventChanged, Name: name})
	return nil
}

// Addresses implements hypervisor.Hypervisor.
func (h *Hypervisor) Addresses(ctx context.Context, name string) ([]string, error) {
	if err := h.enter(ctx, Addresses, name); err != nil {
		return nil, err
	}
	defer h.mu.Unlock()
	d, err := h.find(name)
	if err != nil || !d.State.Active() {
		return nil, err
	}
	return slices.Sorted(slices.Values(d.addresses)), nil
}

// GuestAgent implements hypervisor.Hypervisor.
func (h *Hypervisor) GuestAgent(ctx context.Context, name, command string) (string, error) {
	if err := h.enter(ctx, GuestAgent, name); err != nil {
		return "", err
	}
	d, err := h.find(name)
	var agent Agent
	if err == nil && d.State == hypervisor.StateRunning {
		agent = d.agent
	}
	h.mu.Unlock()
	switch {
	case err != nil:
		return "", err
	case agent == nil:
		return "", fmt.Errorf("%w: domain %q", hypervisor.ErrNoAgent, name)
	}
	return agent(command) // without the lock: what it plays may use the Hypervisor
}

// Events implements hypervisor.Hypervisor.
func (h *Hypervisor) Events(ctx context.Context, handle func(hypervisor.Event)) {
	queue := eventqueue.New()
	h.mu.Lock()
	h.readers[queue] = struct{}{}
	if !h.down {
		queue.Push(hypervisor.Event{Kind: hypervisor.EventConnected})
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.readers, queue)
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-queue.Ready():
		}
		for _, event := range queue.Take() {
			if ctx.Err() != nil {
				return
			}
			handle(event)
		}
	}
}

// enter begins a method: the hook first, then, with the lock held if it returns nil, the rest.
func (h *Hypervisor) enter(ctx context.Context, method Method, name string) error {
	h.mu.Lock()
	hook := h.hooks[method]
	h.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, name); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	if h.down {
		h.mu.Unlock()
		return fmt.Errorf("%w: it is down", hypervisor.ErrUnavailable)
	}
	return nil
}

// find returns a domain. The lock is held, as in all that follows.
func (h *Hypervisor) find(name string) (*domain, error) {
	if d, found := h.domains[name]; found {
		return d, nil
	}
	return nil, fmt.Errorf("%w: %q", hypervisor.ErrNotFound, name)
}

func (h *Hypervisor) start(d *domain, state hypervisor.State) {
	h.nextID++
	d.State, d.StopReason = state, hypervisor.StopUnknown
	d.Live = withID(d.Config, strconv.Itoa(h.nextID))
	d.monitor.start(d.Live)
	h.emit(hypervisor.Event{Kind: hypervisor.EventStarted, Name: d.Name})
	if d.stopsAtBoot != hypervisor.StopUnknown && state == hypervisor.StateRunning {
		h.stop(d, d.stopsAtBoot)
	}
}

func (h *Hypervisor) stop(d *domain, reason hypervisor.StopReason) {
	d.State, d.StopReason, d.Live = hypervisor.StateShutoff, reason, ""
	d.monitor.start("")
	if d.console != nil {
		d.console.end()
		d.console = nil
	}
	if d.Config == "" {
		delete(h.domains, d.Name) // transient
	}
	h.emit(hypervisor.Event{Kind: hypervisor.EventStopped, Name: d.Name, Stop: reason})
}

func (h *Hypervisor) change(d *domain, state hypervisor.State) {
	if d.State != state {
		d.State = state
		h.emit(hypervisor.Event{Kind: hypervisor.EventChanged, Name: d.Name})
	}
}

// emit queues an event for every reader. While the hypervisor is down there is nobody to tell.
func (h *Hypervisor) emit(event hypervisor.Event) {
	if h.down {
		return
	}
	for queue := range h.readers {
		queue.Push(event)
	}
}
