package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/probes"
	"github.com/gitvirt/gitvirt/schemas"
)

// The errors of Await that a caller decides on.
var (
	// ErrNeverReady: the guest cannot become ready any more, such as one that is off.
	ErrNeverReady = errors.New("it will not become ready")
	// ErrNotReadyInTime: the guest was not ready when the time was up.
	ErrNotReadyInTime = errors.New("it is not ready in time")
)

const (
	// awaitPeriod is how often a guest that is waited for is asked.
	awaitPeriod = time.Second
	// askPatience bounds one question.
	askPatience = 5 * time.Second
	// awaitDefault and awaitMost bound the whole.
	awaitDefault = 5 * time.Minute
	awaitMost    = 24 * time.Hour
)

// finding is what one look at a guest has shown.
type finding struct {
	ready bool
	// never says that no further look can show anything else.
	never bool
	// text says what was found. A guest may have a say in it.
	text string
}

// Await waits until a guest is ready in the asked way and returns what was found.
func (a *Agent) Await(ctx context.Context, request *api.AwaitRequest) (string, error) {
	address, name, err := a.find(request.GetAddress(), request.GetDomain())
	if err != nil {
		return "", err
	}
	want := schemas.Ready{Kind: schemas.ReadyKind(request.GetReady()), Port: int32(request.GetPort())} //nolint:gosec // checked below
	switch want.Kind {
	case "", schemas.ReadyRunning, schemas.ReadyAgent, schemas.ReadyCloudInit, schemas.ReadyProbe:
	case schemas.ReadyTCP:
		if request.GetPort() < 1 || request.GetPort() > 65535 {
			return "", fmt.Errorf("%w: %d is no port", ErrInvalid, request.GetPort())
		}
	default:
		return "", fmt.Errorf("%w: %q is no way of being ready", ErrInvalid, want.Kind)
	}
	patience := time.Duration(request.GetTimeoutSeconds()) * time.Second
	if patience <= 0 {
		patience = awaitDefault
	}
	limit := a.clock.After(min(patience, awaitMost))
	found := a.lookTwice(ctx, address, name, want)
	if found.ready {
		return found.text, nil
	}
	w := a.view.subscribe()
	defer a.view.unsubscribe(w)
	for {
		switch {
		case found.ready:
			return found.text, nil
		case ctx.Err() != nil:
			return "", fmt.Errorf("waiting for %s: %w", name, context.Cause(ctx))
		case found.never:
			return "", fmt.Errorf("%w: %s", ErrNeverReady, guestText(found.text))
		}
		select {
		case <-ctx.Done():
		case <-limit:
			return "", fmt.Errorf("%w: %s", ErrNotReadyInTime, guestText(found.text))
		case <-w.wake:
			if !a.view.news(w, name) {
				continue // it is about others
			}
		case <-a.clock.After(awaitPeriod):
		}
		found = a.lookTwice(ctx, address, name, want)
	}
}

// lookTwice reads a domain anew before its guest is given up: two readings may overtake each other, so that what is known may
// for a moment be older than the step whose guest is waited for.
func (a *Agent) lookTwice(ctx context.Context, address schemas.Address, name string, want schemas.Ready) finding {
	found := a.look(ctx, address, name, want)
	if !found.never {
		return found
	}
	if _, err := a.refresh(ctx, name); err != nil {
		return found
	}
	return a.look(ctx, address, name, want)
}

// find returns the domain that a request is about.
func (a *Agent) find(text, domain string) (address schemas.Address, name string, err error) {
	if address, err = schemas.ParseAddress(text); err != nil {
		return address, "", fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := checkNames(address); err != nil {
		return address, "", err
	}
	if domain != "" {
		return address, domain, nil
	}
	return address, a.view.nameOf(address), nil
}

// look finds out whether a guest is ready now.
func (a *Agent) look(ctx context.Context, address schemas.Address, name string, want schemas.Ready) finding {
	if a.view.blind() {
		return finding{text: "libvirt does not answer"}
	}
	now := a.view.get(name)
	switch {
	case now == nil || now.domain.Name == "":
		return finding{never: true, text: "there is no such machine on this host"}
	case now.record == nil || now.record.Address != address:
		return finding{never: true, text: "the domain " + name + " is not its own"}
	case now.problem != "":
		return finding{never: true, text: now.problem}
	case !now.domain.State.Active():
		return a.lookOff(now, want)
	case now.domain.State == hypervisor.StateStarting:
		return finding{text: "the guest is being started"}
	case now.domain.State == hypervisor.StatePaused || now.domain.State == hypervisor.StatePMSuspended:
		return finding{text: "the guest is paused"}
	case now.domain.State == hypervisor.StateShutdown:
		return finding{text: "the guest is shutting down"}
	case now.domain.State == hypervisor.StateCrashed:
		return finding{never: true, text: "the guest crashed"}
	case want.Kind == schemas.ReadyRunning, want.Kind == "" && (now.running == nil || !asks(now.running, "readinessProbe")):
		return finding{ready: true, text: "the guest runs"}
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	switch want.Kind {
	case schemas.ReadyAgent:
		if err := a.guestAgent(name).Ping(ctx); err != nil {
			return finding{text: "the guest agent does not answer"}
		}
		return finding{ready: true, text: "the guest agent answers"}
	case schemas.ReadyCloudInit:
		return a.lookCloudInit(ctx, name)
	case schemas.ReadyTCP:
		return a.lookPort(ctx, now, want.Port)
	case schemas.ReadyProbe, schemas.ReadyRunning:
	}
	return a.lookProbe(now)
}

// lookOff is what is found of a guest that is off. One that runs until its work is done has done it when it has shut
// itself down.
func (a *Agent) lookOff(now *seen, want schemas.Ready) finding {
	stop := now.domain.StopReason
	if stop == hypervisor.StopUnknown || killed(stop, now.record) {
		stop = hypervisor.StopReason(now.record.Stop)
	}
	if stop == hypervisor.StopShutdown && (want.Kind == "" || want.Kind == schemas.ReadyRunning) {
		object, _, err := schemas.ParseRecord(now.record.Spec, true)
		if err == nil && object.Spec.RunStrategy != nil &&
			(*object.Spec.RunStrategy == kubevirtv1.RunStrategyOnce || *object.Spec.RunStrategy == kubevirtv1.RunStrategyRerunOnFailure) {
			return finding{ready: true, text: "the guest has run and shut itself down"}
		}
	}
	texts := map[hypervisor.StopReason]string{
		hypervisor.StopShutdown: "the guest shut itself down", hypervisor.StopCrashed: "the guest crashed",
		hypervisor.StopDestroyed: "the guest was switched off", hypervisor.StopFailed: "the guest could not start",
	}
	if text, ok := texts[stop]; ok {
		return finding{never: true, text: text}
	}
	return finding{never: true, text: "the guest is off"}
}

// lookProbe is what the readiness probe says.
func (a *Agent) lookProbe(now *seen) finding {
	if now.running == nil || !asks(now.running, "readinessProbe") {
		return finding{never: true, text: "the machine has no readiness probe"}
	}
	switch said := a.view.healthOf(now.domain.Name); said.ready {
	case "true":
		return finding{ready: true, text: "the readiness probe succeeds"}
	case "":
		return finding{text: "readiness probe: the guest has not been asked yet"}
	default:
		return finding{text: "readiness probe: " + said.readyReason}
	}
}

// lookPort connects to a port of the guest, by the way that its probes have.
func (a *Agent) lookPort(ctx context.Context, now *seen, port int32) finding {
	object, _, err := schemas.ParseRecord(now.running.Spec, true)
	if err != nil {
		return finding{never: true, text: "its record cannot be understood: " + err.Error()}
	}
	if hostReaches(&object.Spec.Template.Spec) {
		a.refreshAddresses(ctx, now) // which are otherwise asked for now and then
	}
	guest := &attendant{agent: a, name: now.domain.Name, run: guestRun(now), spec: &object.Spec.Template.Spec}
	probe := &kubevirtv1.Probe{Handler: kubevirtv1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}}}
	check, err := probes.NewCheck(probe, guest)
	if err != nil {
		return finding{never: true, text: err.Error()}
	}
	if result, message := check(ctx); result != probes.Success {
		return finding{text: fmt.Sprintf("port %d does not answer: %s", port, message)}
	}
	return finding{ready: true, text: fmt.Sprintf("port %d answers", port)}
}

// Where cloud-init says that it is done: of this boot, with what went wrong, and of the first.
const (
	cloudInitResult   = "/run/cloud-init/result.json"
	cloudInitFinished = "/var/lib/cloud/instance/boot-finished"
	cloudInitLimit    = 64 << 10
)

// lookCloudInit asks the guest agent for the files that cloud-init leaves, and where it hands out no files for cloud-init's
// own word. The errors that cloud-init tells of may quote user data; only their number is told.
func (a *Agent) lookCloudInit(ctx context.Context, name string) finding {
	agent := a.guestAgent(name)
	if err := agent.Ping(ctx); err != nil {
		return finding{text: "the guest agent does not answer, which is asked for cloud-init"}
	}
	if content, err := agent.ReadFile(ctx, cloudInitResult, cloudInitLimit); err == nil {
		var result struct {
			V1 struct {
				Errors []json.RawMessage `json:"errors"`
			} `json:"v1"`
		}
		if err := json.Unmarshal(content, &result); err != nil {
			return finding{text: "what cloud-init writes is not complete yet"}
		}
		if n := len(result.V1.Errors); n > 0 {
			return finding{never: true, text: fmt.Sprintf("cloud-init ended with %d error(s); read %s in the guest", n, cloudInitResult)}
		}
		return finding{ready: true, text: "cloud-init is done"}
	}
	if _, err := agent.ReadFile(ctx, cloudInitFinished, 1); err == nil {
		return finding{ready: true, text: "cloud-init is done"}
	}
	if _, output, err := agent.Exec(ctx, "cloud-init", "status"); err == nil {
		switch said := string(output); {
		case strings.Contains(said, "status: done"), strings.Contains(said, "status: disabled"):
			return finding{ready: true, text: "cloud-init is done"}
		case strings.Contains(said, "status: error"):
			return finding{never: true, text: "cloud-init ended with errors; ask \"cloud-init status --long\" in the guest"}
		}
	}
	return finding{text: "cloud-init is not done"}
}
