package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/podfiles"
	"github.com/gitvirt/gitvirt/schemas"
)

// PodConfig is what the agent of one Pod needs to know.
type PodConfig struct {
	// Config is that of every agent. StateDir belongs to this Pod alone and goes with it; Resync is 30 s by default.
	Config
	// Address is the VM's.
	Address schemas.Address
	// Dir is the Pod's folder on the node, such as /var/lib/kubelet/pods/UID.
	Dir string
	// Connect returns the Pod's libvirt; source says where it is, anew for each connection.
	Connect func(name string, source func() (uri string, release func(), err error)) PodHypervisor
	// Facts adds to what rendering needs to know of the Pod: in Assignment.Taps, what was made for its interfaces. It is asked whenever the
	// domain is defined or started; nil adds nothing.
	Facts func(*domainxml.Host)
	// PodIP returns an address at which the guest is reached from the node, for probes; "" while there is none. nil is none.
	PodIP func() string
	// CapabilitiesDir is a folder of the node, for all Pods, that keeps what libvirt found out about QEMU: it spares each other Pod a second.
	// Empty keeps nothing.
	CapabilitiesDir string
	// Live is for all Pods of the node; nil has each libvirt asked.
	Live *PodLive
}

// PodHypervisor is a hypervisor that is to be closed.
type PodHypervisor interface {
	hypervisor.Hypervisor
	Close() error
}

// PodAgent is the agent of one VM in its Pod.
type PodAgent struct {
	*Agent
	connection PodHypervisor
	name       string // the domain's
	shared     string // the folder that is shared with the launcher, as it is seen from here
}

// podResync is how often the domain is read again without an event. Nobody but gitvirt edits definitions in a Pod.
const podResync = 30 * time.Second

// NewInPod returns the agent of a VM whose Pod has been started, or is about to be. Run makes it work; until the launcher has made its
// sockets everything fails with hypervisor.ErrUnavailable, and is to be tried again.
func NewInPod(config PodConfig) (*PodAgent, error) {
	if err := checkNames(config.Address); err != nil {
		return nil, err
	}
	if config.Dir == "" || config.Connect == nil {
		return nil, errors.New("the agent of a Pod needs the Pod's folder and a way to connect to its libvirt")
	}
	if config.Resync <= 0 {
		config.Resync = podResync
	}
	if config.Facts == nil {
		config.Facts = func(*domainxml.Host) {}
	}
	if config.PodIP == nil {
		config.PodIP = func() string { return "" }
	}
	p := &PodAgent{name: domainxml.DomainName(config.Address), shared: SharedFolder(config.Dir)}
	client := podfiles.Client{Dir: p.shared}
	seed := &capabilitiesSeed{client: client, cache: config.CapabilitiesDir}
	source := &podSource{shared: p.shared, seed: seed}
	p.connection = config.Connect("the libvirt of "+config.Address.String(), source.open)
	first := filepath.Join(config.StateDir, "started")
	a, err := newAgent(config.Config, &oneDomain{
		PodHypervisor: p.connection, address: config.Address, name: p.name, live: config.Live, untouched: func() bool { return untouched(first) },
	})
	if err != nil {
		return nil, errors.Join(err, p.connection.Close())
	}
	p.Agent = a
	a.volumes = &volumes{&podVolumes{
		files: layout.Layout{Dir: protocol.DisksDir}, client: client, domainType: config.DomainType,
	}, newReservations()}
	a.keeper = &podKeeper{shared: p.shared, seed: seed, first: first}
	a.reach = podReach(config.PodIP)
	a.hosts, err = newPodShare(config)
	if err != nil {
		return nil, errors.Join(err, p.connection.Close())
	}
	return p, nil
}

// SharedFolder is the folder that a Pod shares with this agent, in the Pod's folder on the node.
func SharedFolder(pod string) string {
	return filepath.Join(pod, "volumes", "kubernetes.io~empty-dir", protocol.RuntimeVolume)
}

// podSource is where the Pod's libvirt is.
type podSource struct {
	shared string
	seed   *capabilitiesSeed
	met    atomic.Bool // its socket has been there
}

// How long the socket of a daemon that has never been there is waited for, and how often it is looked for: it comes within a tenth of a
// second of the launcher, and who asks for it only then waits twice as long.
const (
	socketPatience = time.Second
	socketPause    = 5 * time.Millisecond
)

// open opens the socket of the Pod's libvirt for one connection.
func (p *podSource) open() (uri string, release func(), err error) {
	p.seed.plant()
	socket, err := protocol.OpenSocket(p.shared)
	for deadline := time.Now().Add(socketPatience); errors.Is(err, os.ErrNotExist) && !p.met.Load() && time.Now().Before(deadline); {
		time.Sleep(socketPause)
		socket, err = protocol.OpenSocket(p.shared)
	}
	if err != nil {
		return "", nil, err
	}
	p.met.Store(true)
	return socket.URI(), func() { _ = socket.Close() }, nil
}

// newPodShare is what a Pod has for its guest alone: nothing of the node, in whose place there is an empty folder.
func newPodShare(config PodConfig) (*hostShare, error) {
	nothing := filepath.Join(config.StateDir, "host")
	if err := os.MkdirAll(nothing, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	share, err := newHostShare(settings{hostRoot: nothing})
	if err != nil {
		return nil, err
	}
	share.pod = func() domainxml.Assignment {
		var host domainxml.Host
		config.Facts(&host)
		return host.Assignment
	}
	return share, nil
}

// Run follows the Pod's libvirt until ctx ends.
func (p *PodAgent) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { p.Watch(ctx, func(state PodState) { p.relieve(ctx, state) }) })
	p.Agent.Run(ctx)
}

// relieve releases a Pod that an earlier agent has held and whose guest runs. A step that is on its way does so itself.
func (p *PodAgent) relieve(ctx context.Context, state PodState) {
	if !state.Running() || !protocol.Held(p.shared) {
		return
	}
	unlock, idle := p.locks.try(p.name)
	if !idle {
		return
	}
	defer unlock()
	now, err := p.refresh(ctx, p.name)
	if err == nil && now != nil && now.domain.State.Active() {
		err = p.keeper.release()
	}
	if err != nil && ctx.Err() == nil {
		p.config.Logger.Warn("cannot release a Pod that was held", "error", err)
	}
}

// Close ends the connection to the Pod's libvirt; the guest is not touched. Run and Execute have to have returned.
func (p *PodAgent) Close() error { return p.connection.Close() }

// PodState is what is known of the guest of a Pod.
type PodState struct {
	// Unknown says why nothing is known; then the rest is empty.
	Unknown string
	// Domain is the domain; nil while there is none.
	Domain *api.Domain
	// Live is what can be done for running guests.
	Live []string
}

// Running reports whether there is a guest.
func (s PodState) Running() bool {
	return s.Domain != nil && s.Domain.GetState() != stateName(hypervisor.StateShutoff)
}

// Ready reports whether the guest runs and its readiness probe, if it has one, succeeds, with the reason why not.
func (s PodState) Ready() (ready bool, reason string) {
	switch {
	case s.Unknown != "":
		return false, s.Unknown
	case s.Domain == nil:
		return false, "the guest is not defined yet"
	case s.Domain.GetState() != stateName(hypervisor.StateRunning):
		return false, "the guest is " + s.Domain.GetState()
	case s.Domain.GetReady() == "" || s.Domain.GetReady() == "true":
		return true, ""
	}
	return false, s.Domain.GetReadyReason()
}

// Watch calls tell with what is known, at once and at every change, until ctx ends.
func (p *PodAgent) Watch(ctx context.Context, tell func(PodState)) {
	w := p.view.subscribe()
	defer p.view.unsubscribe(w)
	var last PodState
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		next := p.view.take(w)
		state := PodState{Unknown: next.unknown, Live: next.able}
		if next.unknown == "" {
			if !next.complete && next.domains[p.name] == nil && len(next.names) == 0 {
				state.Domain = last.Domain // only what can be done has changed
			}
			if domain, ok := next.message(p.name).(*api.Domain); ok {
				state.Domain = domain
			}
		}
		last = state
		tell(state)
	}
}

// podKeeper holds a Pod over the end of its guest.
type podKeeper struct {
	shared string
	seed   *capabilitiesSeed
	// first is a file that is there once a guest has been started in this Pod.
	first string
}

func (k *podKeeper) hold() error {
	if err := protocol.Hold(k.shared); err != nil {
		return fmt.Errorf("keeping the Pod while its guest is off: %w", err)
	}
	return nil
}

func (k *podKeeper) release() error {
	if err := protocol.Release(k.shared); err != nil {
		return fmt.Errorf("no longer keeping the Pod: %w", err)
	}
	return nil
}

// starting implements keeper. Before a guest has run in a Pod nothing but the launcher's image has, so that what libvirt knows of QEMU
// can be believed, also by the libvirts of other Pods.
func (k *podKeeper) starting(ctx context.Context, _ *domainxml.Record) {
	file, err := os.OpenFile(k.first, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_ = file.Close()
	k.seed.harvest(ctx)
}

// capabilitiesSeed brings what the libvirt of one Pod found out about QEMU to that of the next one. Failures cost a second and are told
// to nobody.
type capabilitiesSeed struct {
	client  podfiles.Client
	cache   string // a folder of the node
	planted atomic.Bool
}

// seedPatience bounds what is done for the sake of a second.
const seedPatience = time.Second

// plant gives the Pod's libvirt what is known, once, before it is asked anything.
func (s *capabilitiesSeed) plant() {
	if s.cache == "" || s.planted.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), seedPatience)
	defer cancel()
	names, err := filepath.Glob(filepath.Join(s.cache, "*.xml"))
	for _, name := range names {
		var content []byte
		if content, err = os.ReadFile(name); err == nil {
			err = s.client.GiveCapabilities(ctx, filepath.Base(name), content)
		}
		if err != nil {
			break
		}
	}
	s.planted.Store(!errors.Is(err, podfiles.ErrUnavailable)) // the launcher may not be there yet
}

// harvest keeps what this Pod's libvirt knows by now.
func (s *capabilitiesSeed) harvest(ctx context.Context) {
	if s.cache == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, seedPatience)
	defer cancel()
	name, content, err := s.client.Capabilities(ctx)
	if err != nil {
		return
	}
	if err := os.MkdirAll(s.cache, 0o700); err != nil {
		return
	}
	_, _ = diskfile.WriteSame(filepath.Join(s.cache, name), content, nil)
}

// podReach says that a guest is reached at an address of its Pod.
type podReach func() string

func (r podReach) addressOf(*attendant, int) (string, error) {
	if address := r(); address != "" {
		return address, nil
	}
	return "", errors.New("the guest's Pod has no address")
}

func (podReach) answers(context.Context, *attendant, int) (bool, error) { return true, nil }

// oneDomain shows the one domain of a Pod's libvirt that is the VM's. Whoever broke out of the Pod's QEMU can have its libvirt tell
// anything: other domains are not looked at, and one with another VM's record, whose name would become a path on the node, is an error.
type oneDomain struct {
	PodHypervisor
	address schemas.Address
	name    string
	// live is what is known of other Pods, untouched tells whether no guest has been started in this one yet.
	live      *PodLive
	untouched func() bool
}

// Names implements hypervisor.Hypervisor.
func (o *oneDomain) Names(ctx context.Context) ([]string, error) {
	switch _, err := o.PodHypervisor.Domain(ctx, o.name); {
	case errors.Is(err, hypervisor.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []string{o.name}, nil
}

// maxXML bounds the documents of a domain that are read.
const maxXML = 4 << 20

// Domain implements hypervisor.Hypervisor.
func (o *oneDomain) Domain(ctx context.Context, name string) (hypervisor.Domain, error) {
	if name != o.name {
		return hypervisor.Domain{}, fmt.Errorf("domain %q: %w", name, hypervisor.ErrNotFound)
	}
	domain, err := o.PodHypervisor.Domain(ctx, name)
	if err != nil {
		return domain, err
	}
	if domain.Name != name || len(domain.Config)+len(domain.Live) > maxXML {
		return hypervisor.Domain{}, fmt.Errorf("the libvirt of the Pod answers with another domain than %s", name)
	}
	for _, document := range []string{domain.Config, domain.Live} {
		record, err := domainxml.ParseRecord(document)
		if err != nil {
			continue // it has none, or it cannot be understood, which is told
		}
		if record.Address != o.address || record.Made() != o.address || record.DomainName() != name {
			return hypervisor.Domain{}, fmt.Errorf("domain %s of the Pod carries the record of another VM", name)
		}
	}
	return domain, nil
}

// Events implements hypervisor.Hypervisor.
func (o *oneDomain) Events(ctx context.Context, handle func(hypervisor.Event)) {
	o.PodHypervisor.Events(ctx, func(event hypervisor.Event) {
		if event.Name == o.name || event.Name == "" {
			handle(event)
		}
	})
}
