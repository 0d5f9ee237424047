package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// Redirects lead connections of the host from guests' ports to the ports that QEMU listens on.
type Redirects interface {
	// List returns what is in force.
	List() (map[forwards.Endpoint]uint16, error)
	// Set puts exactly these into force.
	Set(redirects map[forwards.Endpoint]uint16) error
}

// redirectsOf returns the redirects that belong to an agent by its state directory: two agents of one host share no table.
func redirectsOf(s settings, stateDir string) Redirects {
	if s.redirects != nil {
		return s.redirects
	}
	sum := sha256.Sum256([]byte(stateDir))
	return forwards.Redirects{Table: "gitvirt-" + hex.EncodeToString(sum[:4])}
}

// ports keeps the ports of guests behind user-mode networking open on their host, as their manifests say. What is open
// is in QEMU and in the kernel; this only remembers what it has seen to, and for whom.
type ports struct {
	agent     *Agent
	redirects Redirects

	mu     sync.Mutex
	guests map[string]*openPorts
}

// openPorts are the ports of one run of one configuration of a guest.
type openPorts struct {
	run     string         // which run of which configuration
	boot    string         // which run
	guest   forwards.Guest // without Netdev until the domain has been read
	wanted  []schemas.ForwardedPort
	listens map[schemas.ForwardedPort]uint16
	problem string
}

const (
	// portsRetry is how often ports that could not be opened are tried again.
	portsRetry = 5 * time.Second
	// portsReview is after how many of these all ports are looked at: a firewall that is loaded anew may have thrown away
	// the redirects, and somebody at QEMU's monitor may have closed a port.
	portsReview = 6
	// portsPatience bounds the work on one guest: its QEMU may hang.
	portsPatience = 5 * time.Second
	// portsAtOnce is how many guests are worked on at a time.
	portsAtOnce = 8
)

// follow keeps the ports of all guests until ctx ends.
func (p *ports) follow(ctx context.Context) {
	w := p.agent.view.subscribe()
	defer p.agent.view.unsubscribe(w)
	tick, ticks := p.agent.clock.After(portsRetry), 0
	for {
		retry, review := false, false
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			p.agent.view.take(w)
		case <-tick:
			tick, retry, ticks = p.agent.clock.After(portsRetry), true, ticks+1
			review = ticks%portsReview == 0
		}
		if domains, known := p.agent.view.all(); known {
			p.round(ctx, domains, retry, review)
		}
	}
}

// round brings the host to what the guests that run want. It works on those that are new or have changed; also on those
// that have a problem, for retry; and on all, for review.
func (p *ports) round(ctx context.Context, domains []*seen, retry, review bool) {
	gone, fresh := p.meet(domains)
	due := p.due(fresh, retry, review)
	if len(due) == 0 && len(gone) == 0 {
		return
	}
	have, err := p.redirects.List()
	stale := map[netip.Addr]bool{}
	for endpoint := range have {
		stale[endpoint.Address] = true
	}
	var group errgroup.Group
	group.SetLimit(portsAtOnce)
	for _, name := range due {
		g := p.guests[name]
		if len(g.wanted) == 0 && len(g.listens) == 0 && !stale[g.guest.Address] {
			continue // it never had a port: nobody disturbs its QEMU
		}
		group.Go(func() error {
			p.open(ctx, name, g)
			return nil
		})
	}
	_ = group.Wait() // what went wrong is told of each guest
	if ctx.Err() != nil {
		return
	}
	p.redirect(have, err)
	for _, name := range gone {
		p.agent.view.reach(name, reach{})
	}
	for _, name := range due {
		p.tell(name)
	}
}

// meet drops the guests that run no longer and takes in the ones that are new or have another configuration.
func (p *ports) meet(domains []*seen) (gone, fresh []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	present := map[string]bool{}
	for _, now := range domains {
		run := guestRun(now)
		if run == "" || now.domain.State == hypervisor.StateStarting {
			continue
		}
		name := now.domain.Name
		present[name] = true
		before := p.guests[name]
		if before != nil && before.run == run {
			continue
		}
		g := p.wants(now)
		if before != nil && before.boot == g.boot {
			g.listens = before.listens // what is wanted no longer has to be closed
		}
		g.run, p.guests[name] = run, g
		fresh = append(fresh, name)
	}
	for name := range p.guests {
		if !present[name] {
			delete(p.guests, name)
			gone = append(gone, name)
		}
	}
	return gone, fresh
}

// wants reads what a guest's configuration opens.
func (p *ports) wants(now *seen) *openPorts {
	name := now.domain.Name
	g := &openPorts{boot: now.domain.UUID + " " + now.domain.ID}
	object, _, err := schemas.ParseRecord(now.running.Spec, true)
	if err != nil {
		return g // observe tells that the record cannot be understood
	}
	in := schemas.UserModeInterface(&object.Spec.Template.Spec)
	if in == nil {
		return g
	}
	g.guest.Address = schemas.LoopbackAddress(now.running.Made(), in.Name)
	g.guest.Monitor = func(ctx context.Context, command string) (string, error) {
		return p.agent.hypervisor.Monitor(ctx, name, command)
	}
	var tooMany bool
	if g.wanted, tooMany = schemas.ForwardedPorts(in); tooMany {
		p.agent.config.Logger.Warn("a guest has too many ports", "domain", name, "most", schemas.MaxForwardedPorts)
	}
	return g
}

// due returns the guests to work on, in order, and settles whose an address is.
func (p *ports) due(fresh []string, retry, review bool) []string {
	owners := map[netip.Addr]string{}
	names := slices.Sorted(maps.Keys(p.guests))
	for _, holds := range []bool{true, false} { // who has the address keeps it
		for _, name := range names {
			g := p.guests[name]
			if len(g.wanted) > 0 && owners[g.guest.Address] == "" && (len(g.listens) > 0) == holds {
				owners[g.guest.Address] = name
			}
		}
	}
	var due []string
	for _, name := range names {
		g := p.guests[name]
		if owner := owners[g.guest.Address]; len(g.wanted) > 0 && owner != name {
			p.fail(g, fmt.Errorf("its address %s is that of domain %s too; rename one of the two machines", g.guest.Address, owner))
			p.tell(name)
			continue
		}
		if slices.Contains(fresh, name) || (retry && g.problem != "") || (review && len(g.wanted) > 0) {
			due = append(due, name)
		}
	}
	return due
}

// open makes QEMU listen for one guest.
func (p *ports) open(ctx context.Context, name string, g *openPorts) {
	ctx, cancel := context.WithTimeout(ctx, portsPatience)
	defer cancel()
	domain, err := p.agent.hypervisor.Domain(ctx, name)
	if err != nil {
		p.fail(g, err)
		return
	}
	netdev, err := forwards.Netdev(domain.Live)
	if err != nil {
		p.fail(g, err)
		return
	}
	p.mu.Lock()
	g.guest.Netdev = netdev
	guest := g.guest
	p.mu.Unlock()
	listens, err := forwards.Open(ctx, guest, g.wanted)
	p.mu.Lock()
	defer p.mu.Unlock()
	g.problem = ""
	if err != nil {
		g.problem = err.Error()
	}
	if listens != nil { // else nobody knows, and what was open most likely is
		g.listens = listens
	}
}

func (p *ports) fail(g *openPorts, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.problem = err.Error()
}

// redirect puts the redirects into force that lead to where QEMU listens now. have is what is in force, unless it could
// not be read.
func (p *ports) redirect(have map[forwards.Endpoint]uint16, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := map[forwards.Endpoint]uint16{}
	for _, g := range p.guests {
		for port, listen := range g.listens {
			want[forwards.Endpoint{Address: g.guest.Address, ForwardedPort: port}] = listen
		}
	}
	if err == nil && !maps.Equal(have, want) {
		err = p.redirects.Set(want)
	}
	if err == nil || len(want) == 0 {
		return // a host without nftables is as good as any to a guest without ports
	}
	for _, g := range p.guests {
		if len(g.listens) > 0 {
			g.listens, g.problem = nil, err.Error()
		}
	}
}

// tell shows watchers where a guest is reached, and why not.
func (p *ports) tell(name string) {
	p.mu.Lock()
	g := p.guests[name]
	now := reach{problem: g.problem}
	if len(g.listens) > 0 {
		now.address = g.guest.Address.String()
	}
	p.mu.Unlock()
	if p.agent.view.reach(name, now) && now.problem != "" {
		p.agent.config.Logger.Warn("cannot open ports of a guest", "domain", name, "error", now.problem)
	}
}

// find returns how a run of a guest is reached at a TCP port.
func (p *ports) find(name, run string, port int) (forwards.Guest, uint16, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.guests[name]
	if g == nil || g.run != run {
		return forwards.Guest{}, 0, errors.New("the ports of the guest are not open yet")
	}
	wanted := schemas.ForwardedPort{Protocol: "TCP", Port: uint16(port)} //nolint:gosec // probes check their ports
	switch listen := g.listens[wanted]; {
	case listen != 0:
		return g.guest, listen, nil
	case !slices.Contains(g.wanted, wanted):
		return forwards.Guest{}, 0, fmt.Errorf("the guest has only user-mode networking (masquerade), and the host forwards no port %d to it: add the port to the interface, use a bridge, or a probe by exec or guestAgentPing", port)
	case g.problem != "":
		return forwards.Guest{}, 0, fmt.Errorf("port %d of the guest is not open: %s", port, g.problem)
	}
	return forwards.Guest{}, 0, fmt.Errorf("port %d of the guest is not open yet", port)
}
