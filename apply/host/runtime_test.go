package host_test

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/forwards"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// with adds fields to the template's spec of a manifest, YAML at six spaces.
func with(manifest, fields string) string {
	return strings.Replace(manifest, "      terminationGracePeriodSeconds: 1\n", "      terminationGracePeriodSeconds: 1\n"+fields, 1)
}

// TestStartedPausedStaysPaused: neither is it drift, nor does the loop resume or restart the guest.
func TestStartedPausedStaysPaused(t *testing.T) {
	r := newRig(t)
	want := desired(t, with(manifest("a", "Always", "64Mi"), "      startStrategy: Paused\n"))
	r.converge(want)
	time.Sleep(200 * time.Millisecond) // a few re-reads
	if state := r.state("default_a"); state != hypervisor.StatePaused {
		t.Fatalf("the guest is %s", state)
	}
	if p := r.plan(want); len(p.Steps) != 0 {
		t.Fatalf("a paused guest makes steps: %+v", p.Steps)
	}
	if err := r.hypervisor.SetPower(context.Background(), "default_a", hypervisor.PowerResume); err != nil {
		t.Fatal(err)
	}
	r.eventually(want, "running without a step", func(p *plan.Plan) bool {
		return len(p.Steps) == 0 && r.host.Observed().Domains[0].State == plan.StateRunning
	})
	// How it starts next time is nothing that the running guest notices: it goes on.
	if p := r.plan(desired(t, manifest("a", "Always", "64Mi"))); len(p.Steps) != 1 || p.Steps[0].Consequence != plan.ConsequenceNextBoot || p.Steps[0].Power != plan.PowerKeep {
		t.Errorf("without startStrategy: %+v", p.Steps)
	}
}

// TestLivenessFailureIsACrash: where drift is only reported the guest is started again all the same.
func TestLivenessFailureIsACrash(t *testing.T) {
	r := newRig(t)
	guest := with(manifest("a", "Always", "64Mi"), "      livenessProbe: {guestAgentPing: {}, periodSeconds: 1, failureThreshold: 1}\n")
	report := strings.Replace(fleet, "metadata:", "spec: {drift: report}\nmetadata:", 1)
	want := desiredWith(t, report, guest)
	r.hypervisor.SetGuestAgent("default_a", nil)
	r.converge(want)
	p := r.eventually(want, "to be started again", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
	if step := p.Steps[0]; step.Power != plan.PowerOn || step.Blocked != "" || step.Reason != plan.ReasonPower || !strings.Contains(step.Summary, "crashed") {
		t.Errorf("got %+v", step)
	}
}

// TestNewKeysNeedNoRestart: a changed Secret arrives in the running guest.
func TestNewKeysNeedNoRestart(t *testing.T) {
	r := newRig(t)
	guest := with(manifest("a", "Always", "64Mi"), `      accessCredentials:
      - sshPublicKey:
          source: {secret: {secretName: keys}}
          propagationMethod: {qemuGuestAgent: {users: [root]}}
`)
	secret := func(key string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\nstringData: {mine: " + key + "}\n"
	}
	r.converge(desired(t, guest, secret("ssh-ed25519 FIRST")))
	var mu sync.Mutex
	var told strings.Builder
	r.hypervisor.SetGuestAgent("default_a", func(command string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		told.WriteString(command)
		return `{"return":{"supported_commands":[{"name":"guest-ssh-add-authorized-keys","enabled":true}]}}`, nil
	})
	saw := func(key string) func(*plan.Plan) bool {
		return func(*plan.Plan) bool {
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(told.String(), key)
		}
	}
	want := desired(t, guest, secret("ssh-ed25519 SECOND"))
	p := r.plan(want)
	if len(p.Steps) != 1 || p.Steps[0].Consequence != plan.ConsequenceLive || p.Steps[0].Power != plan.PowerKeep {
		t.Fatalf("got %+v", p.Steps)
	}
	started := r.live("default_a")
	r.converge(want)
	r.eventually(want, "told the new key", saw("ssh-ed25519 SECOND"))
	if now := r.live("default_a"); now == "" || now != started {
		t.Error("the guest was restarted")
	}
}

// live returns the root element of the running guest's definition, whose id changes with each start.
func (r *rig) live(name string) string {
	r.t.Helper()
	domain, err := r.driver.Domain(context.Background(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	root, _, _ := strings.Cut(domain.Live, ">")
	return root
}

// redirects are those of a host in memory.
type redirects struct {
	mu  sync.Mutex
	now map[forwards.Endpoint]uint16
}

func (r *redirects) List() (map[forwards.Endpoint]uint16, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.now), nil
}

func (r *redirects) Set(now map[forwards.Endpoint]uint16) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = maps.Clone(now)
	return nil
}

// TestPortsNeedNoRestart: what an interface opens changes in the running guest.
func TestPortsNeedNoRestart(t *testing.T) {
	r := newRig(t)
	guest := func(ports string) *schemas.Desired {
		text := strings.Replace(manifest("a", "Always", "64Mi"), "          disks:", "          interfaces:\n          - {name: default, masquerade: {}"+ports+"}\n          disks:", 1)
		return desired(t, with(text, "      networks:\n      - {name: default, pod: {}}\n"))
	}
	r.converge(guest(", ports: [{port: 80}]"))
	started := r.live("default_a")
	for _, step := range []struct {
		ports    string
		forwards int
	}{{", ports: [{port: 22}, {port: 80}]", 2}, {", portRanges: [{protocol: TCP, start: 80, end: 82}]", 3}, {"", 0}} {
		want := guest(step.ports)
		p := r.plan(want)
		if len(p.Steps) != 1 || p.Steps[0].Consequence != plan.ConsequenceLive || p.Steps[0].Power != plan.PowerKeep {
			t.Fatalf("%s: got %+v", step.ports, p.Steps)
		}
		r.converge(want)
		r.eventually(want, "forwarded", func(*plan.Plan) bool { return len(r.hypervisor.Forwards("default_a")) == step.forwards })
	}
	if now := r.live("default_a"); now == "" || now != started {
		t.Error("the guest was restarted")
	}
}
