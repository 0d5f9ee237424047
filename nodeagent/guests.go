package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/nodeagent/guestagent"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/probes"
	"github.com/gitvirt/gitvirt/schemas"
)

// followGuests keeps somebody at each running guest that has probes or access credentials, until ctx ends.
func (a *Agent) followGuests(ctx context.Context) {
	w := a.view.subscribe()
	defer a.view.unsubscribe(w)
	attended := map[string]*attendant{}
	defer func() {
		for _, at := range attended {
			at.cancel()
		}
		for _, at := range attended {
			at.work.Wait()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		}
		next := a.view.take(w)
		if next.unknown != "" {
			continue // guests run on while nobody can see them
		}
		if next.complete {
			for name := range attended {
				if next.domains[name] == nil {
					next.names = append(next.names, name)
				}
			}
		}
		for _, name := range next.names {
			a.attend(ctx, attended, name, next.domains[name])
		}
	}
}

// attendant looks after one run of one guest.
type attendant struct {
	agent *Agent
	name  string
	run   string // which run of which configuration
	spec  *kubevirtv1.VirtualMachineInstanceSpec

	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	health  health
	address string // the last one that was known of this run: that of a guest that hangs may be forgotten
}

// attend starts, replaces or ends the attendant of a guest as its state wants.
func (a *Agent) attend(ctx context.Context, attended map[string]*attendant, name string, now *seen) {
	run := runOf(now)
	before := attended[name]
	if before != nil && before.run == run {
		return
	}
	if before != nil {
		before.cancel()
		before.work.Wait()
		delete(attended, name)
	}
	if run == "" {
		a.view.heal(name, absentHealth(now))
		return
	}
	object, _, err := schemas.ParseRecord(now.running.Spec, true)
	if err != nil {
		return // observe tells that the record cannot be understood
	}
	at := &attendant{agent: a, name: name, run: run, spec: &object.Spec.Template.Spec}
	attended[name] = at
	if now.domain.State == hypervisor.StateStarting {
		at.expect(ctx)
		return
	}
	at.start(ctx, now.running.Made())
}

// runOf names the run of a guest that has something to be looked after; "" for all others. A paused guest can answer
// nothing, which is no fault of its.
func runOf(now *seen) string {
	if now == nil || now.running == nil || now.problem != "" {
		return ""
	}
	switch now.domain.State {
	case hypervisor.StateStarting:
		return guestRun(now) + startingRun
	case hypervisor.StateRunning:
	default:
		return ""
	}
	if !asks(now.running, "livenessProbe") && !asks(now.running, "readinessProbe") && !asks(now.running, "accessCredentials") {
		return ""
	}
	return guestRun(now)
}

// guestRun names the run and the configuration of a guest; "" when there is none, or its record cannot be relied on.
func guestRun(now *seen) string {
	if now == nil || now.running == nil || now.problem != "" || !now.domain.State.Active() {
		return ""
	}
	return now.domain.UUID + " " + now.domain.ID + " " + now.running.Hash
}

// asks reports whether a record may have a field, without the work of decoding it: most have none.
func asks(record *domainxml.Record, field string) bool {
	return bytes.Contains(record.Spec, []byte(`"`+field+`"`))
}

// absentHealth is what is told of a guest without an attendant: one that has a readiness probe is not ready.
func absentHealth(now *seen) health {
	if now == nil || now.running == nil || now.domain.State != hypervisor.StatePaused ||
		!asks(now.running, "readinessProbe") {
		return health{}
	}
	return health{ready: "false", readyReason: "the guest is paused"}
}

// start begins what there is to do for the guest; each part ends with the attendant.
func (at *attendant) start(ctx context.Context, address schemas.Address) {
	ctx, at.cancel = context.WithCancel(ctx)
	at.tell(func(*health) {}) // what was told of the run before is over
	if probe := at.spec.ReadinessProbe; probe != nil {
		at.tell(func(h *health) { h.ready, h.readyReason = "false", "the guest has not been asked yet" })
		at.probe(ctx, probe, probes.Failure, at.ready)
	}
	if probe := at.spec.LivenessProbe; probe != nil {
		at.probe(ctx, probe, probes.Success, func(verdict probes.Verdict) { at.alive(ctx, verdict) })
	}
	if len(at.spec.AccessCredentials) > 0 {
		at.work.Go(func() { at.propagate(ctx, address) })
	}
}

// tell changes what watchers are told of the guest. The guest itself has a say in the reasons.
func (at *attendant) tell(change func(*health)) {
	at.mu.Lock()
	defer at.mu.Unlock()
	change(&at.health)
	at.health.readyReason, at.health.credentials = guestText(at.health.readyReason), guestText(at.health.credentials)
	at.agent.view.heal(at.name, at.health)
}

func (at *attendant) probe(ctx context.Context, probe *kubevirtv1.Probe, initial probes.Result, report func(probes.Verdict)) {
	check, err := probes.NewCheck(probe, at)
	if err != nil {
		report(probes.Verdict{Result: probes.Unknown, Message: err.Error()})
		return
	}
	at.work.Go(func() { probes.Run(ctx, at.agent.clock, probes.TimingOf(probe), check, initial, report) })
}

func (at *attendant) ready(verdict probes.Verdict) {
	at.tell(func(h *health) {
		switch verdict.Result {
		case probes.Success:
			h.ready, h.readyReason = "true", ""
		case probes.Failure:
			h.ready, h.readyReason = "false", verdict.Message
		case probes.Unknown:
			h.ready, h.readyReason = "unknown", verdict.Message
		}
	})
}

// alive switches a guest off whose liveness probe failed; its run strategy says what follows, as after a crash.
func (at *attendant) alive(ctx context.Context, verdict probes.Verdict) {
	log := at.agent.config.Logger.With("domain", at.name, "reason", guestText(verdict.Message))
	switch verdict.Result {
	case probes.Success:
	case probes.Unknown:
		log.Warn("the liveness probe cannot be carried out")
	case probes.Failure:
		log.Warn("the liveness probe failed; the guest is switched off")
		for {
			err := at.agent.kill(ctx, at.name, at.run)
			if err == nil || ctx.Err() != nil {
				return
			}
			// The probe tells its verdict once: nobody else would try again.
			log.Warn("cannot switch the guest off", "error", err)
			select {
			case <-ctx.Done():
				return
			case <-at.agent.clock.After(killRetry):
			}
		}
	}
}

// killed reports whether a guest that somebody switched off is one that the agent killed.
func killed(reason hypervisor.StopReason, record *domainxml.Record) bool {
	return reason == hypervisor.StopDestroyed && record.Stop == string(hypervisor.StopCrashed)
}

// kill switches off one run of a guest and says in the record that it crashed. A step that is under way comes first. To kill
// a run that is over succeeds.
func (a *Agent) kill(ctx context.Context, name, run string) error {
	unlock, err := a.locks.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	now, err := a.refresh(ctx, name)
	if err != nil || runOf(now) != run || now.record == nil {
		return err
	}
	// From here on the guest's end must not stop what has to be written about it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	record := *now.record
	record.Ran, record.Stop = true, string(hypervisor.StopCrashed)
	mark := func() error {
		content, err := record.Element()
		if err != nil {
			return err
		}
		return a.hypervisor.SetMetadata(ctx, name, domainxml.MetadataPrefix, domainxml.MetadataURI, content)
	}
	// The running guest has a copy of the record. Where it runs an older configuration the copy must not change, and libvirt lets
	// nobody write to one that is being started.
	before := now.running.Hash == now.record.Hash && now.domain.State != hypervisor.StateStarting
	if before {
		if err := mark(); err != nil {
			return fmt.Errorf("writing the record of %s: %w", name, err)
		}
	}
	if err := a.hypervisor.SetPower(ctx, name, hypervisor.PowerOff); err != nil {
		return fmt.Errorf("stopping %s: %w", name, err)
	}
	if !before {
		if err := mark(); err != nil && !errors.Is(err, hypervisor.ErrNotFound) {
			return fmt.Errorf("writing the record of %s: %w", name, err)
		}
	}
	_, err = a.refresh(ctx, name)
	return err
}

// killLimit bounds how long a guest that is switched off holds its lock.
const killLimit = 30 * time.Second

// killRetry is how often a guest that could not be switched off is tried again.
const killRetry = 5 * time.Second

// credentialsRetry is how often a guest whose agent does not answer is tried again.
const credentialsRetry = 5 * time.Second

// credentialsTimeout bounds one try.
const credentialsTimeout = 30 * time.Second

// propagate brings the access credentials into the guest, as often as it takes.
func (at *attendant) propagate(ctx context.Context, address schemas.Address) {
	for {
		attempt, cancel := context.WithTimeout(ctx, credentialsTimeout)
		err := at.agent.applyCredentials(attempt, at.name, address, at.spec)
		cancel()
		if ctx.Err() != nil {
			return
		}
		at.tell(func(h *health) {
			h.credentials = ""
			if err != nil {
				h.credentials = err.Error()
			}
		})
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-at.agent.clock.After(credentialsRetry):
		}
	}
}

func (a *Agent) applyCredentials(ctx context.Context, name string, address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) error {
	if !slices.ContainsFunc(spec.AccessCredentials, throughAgent) {
		return nil
	}
	wanted, err := a.secrets.get(address)
	if err != nil {
		return err
	}
	if wanted == nil {
		return errors.New("the access credentials are no longer on this host; apply the VM again")
	}
	agent := a.guestAgent(name)
	if err := agent.Ping(ctx); err != nil {
		return err
	}
	return wanted.apply(ctx, agent)
}

func (a *Agent) guestAgent(name string) guestagent.Agent {
	return guestagent.New(func(ctx context.Context, command string) (string, error) {
		return a.hypervisor.GuestAgent(ctx, name, command)
	})
}

// Ping implements probes.Guest.
func (at *attendant) Ping(ctx context.Context) error { return at.agent.guestAgent(at.name).Ping(ctx) }

// Exec implements probes.Guest.
func (at *attendant) Exec(ctx context.Context, program string, arguments ...string) (int, []byte, error) {
	return at.agent.guestAgent(at.name).Exec(ctx, program, arguments...)
}

// Address implements probes.Guest.
func (at *attendant) Address(port int) (string, error) { return at.agent.reach.addressOf(at, port) }

// Answers implements probes.Guest.
func (at *attendant) Answers(ctx context.Context, port int) (bool, error) {
	return at.agent.reach.answers(ctx, at, port)
}

// reachability is how the ports of a guest are reached from here.
type reachability interface {
	// addressOf is where a port of a guest is reached.
	addressOf(at *attendant, port int) (string, error)
	// answers reports whether who takes a connection there is the guest.
	answers(ctx context.Context, at *attendant, port int) (bool, error)
}

// addressOf implements reachability on a host.
func (p *ports) addressOf(at *attendant, port int) (string, error) {
	if !hostReaches(at.spec) {
		guest, _, err := p.find(at.name, at.run, port)
		return guest.Address.String(), err
	}
	at.mu.Lock()
	defer at.mu.Unlock()
	if domain := at.agent.view.domain(at.name); domain != nil {
		for _, text := range domain.GetAddresses() {
			if _, err := netip.ParseAddr(text); err == nil {
				at.address = text
				break
			}
		}
	}
	if at.address == "" {
		return "", errors.New("no address of the guest is known yet")
	}
	return at.address, nil
}

// answers implements reachability on a host. On a network that the host is on nobody but the guest takes a connection.
func (p *ports) answers(ctx context.Context, at *attendant, port int) (bool, error) {
	if hostReaches(at.spec) {
		return true, nil
	}
	guest, listen, err := p.find(at.name, at.run, port)
	if err != nil {
		return false, err
	}
	return forwards.Answers(ctx, guest, listen)
}

// hostReaches reports whether the guest has an interface on a network that the host is on.
func hostReaches(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Interfaces, func(in kubevirtv1.Interface) bool { return in.Bridge != nil })
}
