package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a host with a fake hypervisor behind a real agent on a real socket.
type rig struct {
	t          *testing.T
	hypervisor *fake.Hypervisor
	// driver is what the agent drives: the fake, unless it is a real libvirt.
	driver    hypervisor.Hypervisor
	dir       string
	redirects redirects
	host      *host.Host
	stop      func()
	end       func() // ends the agent in the middle of what it does
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := newFakeRig(t)
	t.Cleanup(func() { r.stop() })
	return r
}

func newFakeRig(t *testing.T) *rig {
	t.Helper()
	h := fake.New()
	r := &rig{t: t, hypervisor: h, driver: h, dir: t.TempDir()}
	r.start()
	return r
}

// start starts an agent, as after a restart: only the hypervisor and the state directory are what they were.
func (r *rig) start() {
	r.t.Helper()
	agent, err := nodeagent.New(nodeagent.Config{
		Node: "host-1", StateDir: filepath.Join(r.dir, "agent"), DomainType: "qemu", Resync: 50 * time.Millisecond,
	}, r.driver, nodeagent.WithRedirects(&r.redirects))
	if err != nil {
		r.t.Fatal(err)
	}
	socket := filepath.Join(r.dir, "agent.sock")
	listener, err := api.Listen(socket)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := api.NewGRPCServer()
	api.RegisterAgentServer(server, nodeagent.NewServer(ctx, agent))
	conn, err := api.Dial(socket)
	if err != nil {
		r.t.Fatal(err)
	}
	r.host = host.New(conn)
	var group sync.WaitGroup
	group.Go(func() { agent.Run(ctx) })
	group.Go(func() { _ = server.Serve(listener) })
	following, unfollow := context.WithCancel(context.Background())
	group.Go(func() { r.host.Follow(following) })
	r.end = cancel
	r.stop = sync.OnceFunc(func() {
		unfollow()
		cancel()
		server.Stop()
		_ = conn.Close()
		group.Wait()
	})
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata:\n  name: fleet\n"

func manifest(name, strategy, memory string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: %s
spec:
  runStrategy: %s
  template:
    spec:
      terminationGracePeriodSeconds: 1
      domain:
        memory: {guest: %s}
        devices:
          disks:
          - name: data
            disk: {bus: virtio}
          - name: init
            disk: {bus: virtio}
      volumes:
      - name: data
        emptyDisk: {capacity: 1Mi}
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh"}
`, name, strategy, memory)
}

func desired(t testing.TB, manifests ...string) *schemas.Desired {
	t.Helper()
	return desiredWith(t, fleet, manifests...)
}

func desiredWith(t testing.TB, fleet string, manifests ...string) *schemas.Desired {
	t.Helper()
	var files []*schemas.File
	for i, text := range append(manifests, fleet) {
		files = append(files, schemas.Parse(fmt.Sprintf("%d.yaml", i), []byte(text)))
	}
	want := schemas.Assemble(files)
	if want.Diagnostics.Errors() > 0 {
		t.Fatal(want.Diagnostics)
	}
	return want
}

func (r *rig) plan(want *schemas.Desired) *plan.Plan {
	r.t.Helper()
	p, err := plan.Build(want, r.host.Observed(), plan.Options{Revision: "rev"})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func (r *rig) apply(p *plan.Plan) error {
	var errs []error
	for _, result := range apply.Run(context.Background(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, p.Executable(), r.host, apply.Options{}) {
		errs = append(errs, result.Err)
	}
	return errors.Join(errs...)
}

// patience is how long anything may take on a busy machine.
const patience = 4 * time.Minute

// converge plans and applies until nothing is left to do; each time it does first what is to be done before.
func (r *rig) converge(want *schemas.Desired, before ...func()) {
	r.t.Helper()
	var last error
	var p *plan.Plan
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, do := range before {
			do()
		}
		p = r.plan(want)
		if p.Unknown == "" && len(p.Steps) == 0 {
			return
		}
		last = r.apply(p)
	}
	r.t.Fatalf("does not converge: unknown %q, steps %+v, last error %v", p.Unknown, p.Steps, last)
}

// eventually waits until the plan satisfies a condition.
func (r *rig) eventually(want *schemas.Desired, what string, condition func(*plan.Plan) bool) *plan.Plan {
	r.t.Helper()
	var p *plan.Plan
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		began := time.Now()
		if p = r.plan(want); condition(p) {
			return p
		}
		time.Sleep(max(5*time.Millisecond, 4*time.Since(began))) // what is waited for needs the machine more
	}
	r.t.Fatalf("never %s: unknown %q, steps %+v", what, p.Unknown, p.Steps)
	return nil
}

func (r *rig) state(name string) hypervisor.State {
	r.t.Helper()
	r.hypervisor.Fail(fake.Domain, nil) // the story is over; what it makes fail must not fail here
	domain, err := r.hypervisor.Domain(context.Background(), name)
	switch {
	case errors.Is(err, hypervisor.ErrNotFound):
		return ""
	case err != nil:
		r.t.Fatal(err)
	}
	return domain.State
}

func TestLifeOfAVM(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("a", "Always", "64Mi")))
	if state := r.state("default_a"); state != hypervisor.StateRunning {
		t.Fatalf("after create: %s", state)
	}
	r.converge(desired(t, manifest("a", "Always", "128Mi")))
	domain, err := r.hypervisor.Domain(context.Background(), "default_a")
	if err != nil || !strings.Contains(domain.Live, "134217728") {
		t.Fatalf("the guest does not run with the new memory: %v\n%s", err, domain.Live)
	}
	r.converge(desired(t, manifest("a", "Halted", "128Mi")))
	if state := r.state("default_a"); state != hypervisor.StateShutoff {
		t.Fatalf("after halt: %s", state)
	}
	r.converge(desired(t))
	if state := r.state("default_a"); state != "" {
		t.Fatalf("after removal: %s", state)
	}
	disks, err := r.host.Disks(context.Background())
	if err != nil || len(disks) != 1 || disks[0].GetId() != "default/a/data" || disks[0].GetInUse() {
		t.Fatalf("the disk with data is not kept: %v %v", disks, err)
	}
	if _, err := r.host.DeleteDisks(context.Background(), []string{"default/a/nope"}); err == nil {
		t.Error("an unknown disk is deleted without an error")
	}
	if _, err := r.host.DeleteDisks(context.Background(), []string{"default/a/data"}); err != nil {
		t.Error(err)
	}
	if disks, err := r.host.Disks(context.Background()); err != nil || len(disks) != 0 {
		t.Errorf("after prune: %v %v", disks, err)
	}
}

func TestDiskOfExistingVMIsNotDeleted(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("a", "Always", "64Mi")))
	if _, err := r.host.DeleteDisks(context.Background(), []string{"default/a/data"}); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("got %v", err)
	}
}

// story is a sequence of wishes; after each the host must be as the last one says.
func story(t *testing.T) []*schemas.Desired {
	return []*schemas.Desired{
		desired(t, manifest("a", "Always", "64Mi")),
		desired(t, manifest("a", "Always", "128Mi"), manifest("b", "Once", "64Mi")),
		desired(t, manifest("b", "Halted", "64Mi")),
	}
}

// TestFailureAnywhereConverges lets the n-th call of a story fail, for every n.
func TestFailureAnywhereConverges(t *testing.T) {
	interrupted(t, func(r *rig) error { return hypervisor.ErrUnavailable }, func(*rig) {})
}

// TestAgentKilledAnywhereConverges ends the agent at the n-th call of a story, for every n.
func TestAgentKilledAnywhereConverges(t *testing.T) {
	interrupted(t, func(r *rig) error { r.end(); return context.Canceled }, func(r *rig) { r.restart() })
}

func interrupted(t *testing.T, fault func(*rig) error, mend func(*rig)) {
	t.Helper()
	calls := interruptAt(t, math.MaxInt64, fault, mend)
	for n := range calls {
		t.Run(fmt.Sprintf("call %d of %d", n+1, calls), func(t *testing.T) {
			t.Parallel()
			interruptAt(t, n+1, fault, mend)
		})
	}
}

// interruptAt plays the story with a fault at its n-th call, and returns how many calls there were.
func interruptAt(t *testing.T, n int64, fault func(*rig) error, mend func(*rig)) int64 {
	t.Helper()
	r := newRig(t)
	var calls atomic.Int64
	for _, method := range []fake.Method{fake.Domain, fake.Define, fake.SetPower, fake.SetMetadata, fake.Undefine} {
		r.hypervisor.Fail(method, func(context.Context, string) error {
			if calls.Add(1) == n {
				return fault(r)
			}
			return nil
		})
	}
	mended := false
	for _, want := range story(t) {
		r.converge(want, func() {
			if !mended && calls.Load() >= n {
				mended = true
				mend(r)
			}
		})
	}
	if r.state("default_a") != "" || r.state("default_b") != hypervisor.StateShutoff {
		t.Errorf("a is %q, b is %q", r.state("default_a"), r.state("default_b"))
	}
	return calls.Load()
}

func TestStalePlanIsRefused(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.converge(want)
	next := desired(t, manifest("a", "Always", "128Mi"))
	p := r.plan(next)
	r.hypervisor.EditConfig("default_a", func(xml string) string { return xml + "<!-- edited -->" })
	err := r.apply(p)
	if !errors.Is(err, apply.ErrStale) {
		t.Fatalf("want ErrStale, got %v", err)
	}
	r.converge(next)
}

func TestForeignDomainIsNotTouched(t *testing.T) {
	r := newRig(t)
	foreign := "<domain type='qemu'><name>default_a</name><uuid>00000000-0000-4000-8000-000000000001</uuid><memory unit='KiB'>65536</memory><os><type>hvm</type></os></domain>"
	if err := r.hypervisor.Define(context.Background(), foreign); err != nil {
		t.Fatal(err)
	}
	want := desired(t, manifest("a", "Always", "64Mi"))
	p := r.eventually(want, "blocked", func(p *plan.Plan) bool { return len(p.Steps) == 1 && p.Steps[0].Blocked != "" })
	// A caller that ignores the plan's word is refused by the agent as well.
	step := p.Steps[0]
	if err := r.host.Execute(context.Background(), apply.Target{Fleet: "fleet"}, step, func(string) {}); err == nil {
		t.Fatal("the agent touched a domain of others")
	}
	if state := r.state("default_a"); state != hypervisor.StateShutoff {
		t.Fatalf("the domain of others is %s", state)
	}
}

func TestDriftIsSeenAndCorrected(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.converge(want)
	r.hypervisor.EditConfig("default_a", func(xml string) string {
		return strings.Replace(xml, `<vcpu placement="static">1</vcpu>`, `<vcpu placement="static">3</vcpu>`, 1)
	})
	p := r.eventually(want, "drifted", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
	if step := p.Steps[0]; step.Reason != plan.ReasonDrift || len(step.Drift) == 0 || step.Power != plan.PowerKeep {
		t.Fatalf("got %+v", step)
	}
	r.converge(want)
}

// TestUnreadXMLIsTold: what somebody wrote into the definition that gitvirt does not know is told, and only there; it is
// no drift.
func TestUnreadXMLIsTold(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Halted", "64Mi"))
	r.converge(want)
	told := func(paths ...string) {
		t.Helper()
		p := r.eventually(want, fmt.Sprintf("telling %q", paths), func(*plan.Plan) bool {
			observed := r.host.Observed()
			return len(observed.Domains) == 1 && slices.Equal(observed.Domains[0].Unread, paths)
		})
		if len(p.Steps) != 0 {
			t.Errorf("unread XML makes steps: %+v", p.Steps)
		}
	}
	told()
	r.hypervisor.EditConfig("default_a", func(xml string) string {
		return strings.Replace(xml, "</domain>", `<teleporter range="9"/></domain>`, 1)
	})
	told("teleporter")
	r.restart()
	told("teleporter")
	r.hypervisor.EditConfig("default_a", func(xml string) string {
		return strings.Replace(xml, `<teleporter range="9"/>`, "", 1)
	})
	told()
}

func TestUndefinedByHandComesBack(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Halted", "64Mi"))
	r.converge(want)
	if err := r.hypervisor.Undefine(context.Background(), "default_a"); err != nil {
		t.Fatal(err)
	}
	p := r.eventually(want, "missing", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
	if p.Steps[0].Reason != plan.ReasonDrift {
		t.Fatalf("got %+v", p.Steps[0])
	}
	r.restart() // the trace survives the agent
	p = r.eventually(want, "missing after a restart", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
	if p.Steps[0].Reason != plan.ReasonDrift {
		t.Fatalf("after a restart: %+v", p.Steps[0])
	}
	r.converge(want)
}

func TestUndefinedWhileItRunsBecomesPersistentAgain(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.converge(want)
	if err := r.hypervisor.Undefine(context.Background(), "default_a"); err != nil {
		t.Fatal(err)
	}
	p := r.eventually(want, "transient", func(p *plan.Plan) bool { return len(p.Steps) == 1 })
	if step := p.Steps[0]; step.Reason != plan.ReasonDrift || step.Power != plan.PowerKeep {
		t.Fatalf("got %+v", step)
	}
	r.converge(want)
	if domain, err := r.hypervisor.Domain(context.Background(), "default_a"); err != nil || domain.Config == "" || domain.State != hypervisor.StateRunning {
		t.Fatalf("got %+v, %v", domain, err)
	}
}

func TestHypervisorDownIsUnknownNotAbsent(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.converge(want)
	r.hypervisor.Down()
	p := r.eventually(desired(t), "unknown", func(p *plan.Plan) bool { return p.Unknown != "" })
	if len(p.Steps) != 0 {
		t.Fatalf("planned on an unknown host: %+v", p.Steps)
	}
	r.hypervisor.Forget()
	r.hypervisor.Up()
	r.eventually(want, "known again and as wanted", func(p *plan.Plan) bool { return p.Unknown == "" && len(p.Steps) == 0 })
}

func TestStopReasonSurvivesHypervisorRestart(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "RerunOnFailure", "64Mi"))
	r.converge(want)
	r.hypervisor.GuestPowersOff("default_a")
	r.eventually(want, "noted", func(*plan.Plan) bool {
		domain, err := r.hypervisor.Domain(context.Background(), "default_a")
		return err == nil && strings.Contains(domain.Config, `stop="shutdown"`)
	})
	r.hypervisor.Forget()
	r.restart()
	p := r.eventually(want, "known", func(p *plan.Plan) bool { return p.Unknown == "" })
	if len(p.Steps) != 0 {
		t.Fatalf("a guest that powered itself off is started again: %+v", p.Steps)
	}
}

func TestGuestThatIgnoresThePowerButtonIsStopped(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("a", "Always", "64Mi")))
	r.hypervisor.IgnoresPowerButton("default_a", true)
	started := time.Now()
	r.converge(desired(t, manifest("a", "Halted", "64Mi")))
	if took := time.Since(started); took < time.Second {
		t.Errorf("the plug was pulled after %s, before the grace period of 1 s", took)
	}
}

// TestCopyOfADomainIsForeign: virt-clone and domrename keep the metadata, so two domains carry one record.
func TestCopyOfADomainIsForeign(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.converge(want)
	original, err := r.hypervisor.Domain(context.Background(), "default_a")
	if err != nil {
		t.Fatal(err)
	}
	clone := strings.Replace(original.Config, "<name>default_a</name>", "<name>aaa-clone</name>", 1)
	clone = strings.Replace(clone, "<uuid>"+original.UUID+"</uuid>", "<uuid>00000000-0000-4000-8000-000000000001</uuid>", 1)
	if err := r.hypervisor.Define(context.Background(), clone); err != nil {
		t.Fatal(err)
	}
	r.eventually(want, "foreign", func(*plan.Plan) bool { return len(r.host.Observed().Foreign) == 1 })
	if p := r.plan(want); len(p.Steps) != 0 {
		t.Fatalf("a copy makes steps: %+v", p.Steps)
	}
	r.converge(desired(t))
	if r.state("aaa-clone") == "" || r.state("default_a") != "" {
		t.Error("the copy was touched, or the original was not removed")
	}
}

// TestOneUnreadableDomainBlindsNobody: the others are planned, and it is neither changed nor destroyed.
func TestOneUnreadableDomainBlindsNobody(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("a", "Always", "64Mi"), manifest("b", "Always", "64Mi")))
	r.hypervisor.Fail(fake.Domain, func(_ context.Context, name string) error {
		if name == "default_a" {
			return errors.New("cannot acquire state change lock")
		}
		return nil
	})
	next := desired(t, manifest("b", "Always", "128Mi"))
	p := r.eventually(next, "told", func(p *plan.Plan) bool { return len(p.Steps) == 2 && p.Steps[0].Blocked != "" })
	if p.Unknown != "" || p.Steps[1].Address.Name != "b" || p.Steps[1].Blocked != "" {
		t.Fatalf("got unknown %q, steps %+v", p.Unknown, p.Steps)
	}
	r.hypervisor.Fail(fake.Domain, nil)
	r.converge(next)
}

// TestRestartThatFailedHalfwayIsDoneLater: the definition is new, the guest could not be stopped.
func TestRestartThatFailedHalfwayIsDoneLater(t *testing.T) {
	r := newRig(t)
	r.converge(desired(t, manifest("a", "Always", "64Mi")))
	next := desired(t, manifest("a", "Always", "128Mi"))
	failed := false
	r.hypervisor.Fail(fake.SetPower, func(context.Context, string) error {
		if failed {
			return nil
		}
		failed = true
		return hypervisor.ErrUnavailable
	})
	if err := r.apply(r.plan(next)); err == nil {
		t.Fatal("the step did not fail")
	}
	time.Sleep(200 * time.Millisecond) // a few re-reads
	r.converge(next)
	domain, err := r.hypervisor.Domain(context.Background(), "default_a")
	if err != nil || !strings.Contains(domain.Live, "134217728") {
		t.Fatalf("the guest still runs its old configuration: %v", err)
	}
}

// TestCreateThatLibvirtRefusedIsNoDrift: it never was there, so nobody took it away.
func TestCreateThatLibvirtRefusedIsNoDrift(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.eventually(want, "known", func(p *plan.Plan) bool { return p.Unknown == "" })
	r.hypervisor.Fail(fake.Define, func(context.Context, string) error { return hypervisor.ErrInvalid })
	if err := r.apply(r.plan(want)); !errors.Is(err, apply.ErrStalled) {
		t.Fatalf("got %v", err)
	}
	if p := r.plan(want); len(p.Steps) != 1 || p.Steps[0].Reason != plan.ReasonNew {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	r := newRig(t)
	if _, err := api.Listen(filepath.Join(r.dir, "agent.sock")); err == nil {
		t.Error("two agents listen on one socket")
	}
}

func TestAgentKnowsNoPathsOutside(t *testing.T) {
	r := newRig(t)
	want := desired(t, manifest("a", "Always", "64Mi"))
	r.eventually(want, "known", func(p *plan.Plan) bool { return p.Unknown == "" })
	step := r.plan(want).Steps[0]
	step.Address.Name = "../../etc"
	if err := r.host.Execute(context.Background(), apply.Target{}, step, func(string) {}); !errors.Is(err, apply.ErrStalled) {
		t.Errorf("got %v", err)
	}
}
