package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// manifest is a small VM; fields are lines that go below its template's spec.
func manifest(name, strategy string, memory string, extra ...string) string {
	text := fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: %s
spec:
  runStrategy: %s
  template:
    spec:
      terminationGracePeriodSeconds: 5
      domain:
        memory:
          guest: %s
        devices:
          disks:
          - name: root
            disk: {bus: virtio}
          - name: data
            disk: {bus: virtio}
          - name: init
            disk: {bus: virtio}
      volumes:
      - name: root
        containerDisk: {image: "registry.example/os:1"}
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud:
          userData: "#!/bin/sh\necho top-secret-marker"
`, name, strategy, memory)
	for _, line := range extra {
		text += line + "\n"
	}
	return text
}

const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata:\n  name: fleet\nspec:\n  platform: host\n"

// desired assembles manifests, one file each, and fails the test on any diagnostic.
func desired(t testing.TB, manifests ...string) *schemas.Desired {
	t.Helper()
	var files []*schemas.File
	for i, text := range manifests {
		files = append(files, schemas.Parse(fmt.Sprintf("vm-%d.yaml", i), []byte(text)))
	}
	want := schemas.Assemble(files)
	if want.Diagnostics.Errors() > 0 {
		t.Fatalf("manifests of the test: %v", want.Diagnostics)
	}
	return want
}

// running returns the domains that a fleet has when it runs as manifests say.
func running(t testing.TB, manifests ...string) []*plan.Domain {
	t.Helper()
	return plan.FromDesired(desired(t, manifests...), "base").Domains
}

// with changes a domain.
func with(domains []*plan.Domain, change func(*plan.Domain)) []*plan.Domain {
	for _, domain := range domains {
		change(domain)
	}
	return domains
}

func stopped(reason string) func(*plan.Domain) {
	return func(d *plan.Domain) {
		d.State, d.Stop, d.RunningHash, d.RunningRecord = plan.StateStopped, reason, "", nil
	}
}

func build(t testing.TB, want *schemas.Desired, domains []*plan.Domain) *plan.Plan {
	t.Helper()
	p, err := plan.Build(want, plan.Observed{Node: "host-1", Domains: domains}, plan.Options{Revision: "rev"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestBuildOneVM(t *testing.T) {
	one := manifest("a", "Always", "128Mi")
	for _, test := range []struct {
		reason      string
		want        []string
		have        []*plan.Domain
		action      plan.Action
		why         plan.Reason
		consequence plan.Consequence
		power       plan.PowerChange
		define      bool
		blocked     string
	}{
		{"nothing there: create and start", []string{one}, nil, plan.ActionCreate, plan.ReasonNew, plan.ConsequenceNone, plan.PowerOn, true, ""},
		{"halted: create only", []string{manifest("a", "Halted", "128Mi")}, nil, plan.ActionCreate, plan.ReasonNew, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"manual: create only", []string{manifest("a", "Manual", "128Mi")}, nil, plan.ActionCreate, plan.ReasonNew, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"as wanted: no step", []string{one}, running(t, one), "", "", "", "", false, ""},
		{"memory changed: restart", []string{manifest("a", "Always", "256Mi")}, running(t, one), plan.ActionRestart, plan.ReasonChanged, plan.ConsequenceRestart, plan.PowerCycle, true, ""},
		{"memory changed while off: next boot", []string{manifest("a", "Halted", "256Mi")}, running(t, manifest("a", "Halted", "128Mi")), plan.ActionUpdate, plan.ReasonChanged, plan.ConsequenceNextBoot, plan.PowerKeep, true, ""},
		{"manual VM that runs: configured, not restarted", []string{manifest("a", "Manual", "256Mi")}, with(running(t, manifest("a", "Manual", "128Mi")), func(d *plan.Domain) {
			d.State, d.RunningHash, d.RunningRecord = plan.StateRunning, d.Hash, d.Record
		}), plan.ActionUpdate, plan.ReasonChanged, plan.ConsequenceNextBoot, plan.PowerKeep, true, ""},
		{"halt a running VM: shut down", []string{manifest("a", "Halted", "128Mi")}, running(t, one), plan.ActionStop, plan.ReasonChanged, plan.ConsequenceStop, plan.PowerOff, true, ""},
		{"start a halted VM", []string{one}, running(t, manifest("a", "Halted", "128Mi")), plan.ActionUpdate, plan.ReasonChanged, plan.ConsequenceNone, plan.PowerOn, true, ""},
		{"grace period changed: nothing for the guest", []string{strings.Replace(one, "Seconds: 5", "Seconds: 9", 1)}, running(t, one), plan.ActionUpdate, plan.ReasonChanged, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"label added: nothing for the guest", []string{strings.Replace(one, "  name: a\n", "  name: a\n  labels: {team: blue}\n", 1)}, running(t, one), plan.ActionUpdate, plan.ReasonChanged, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"UUID changed: replace", []string{strings.Replace(one, "        memory:\n", "        firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n        memory:\n", 1)}, running(t, one), plan.ActionReplace, plan.ReasonChanged, plan.ConsequenceReplace, plan.PowerCycle, true, ""},
		{"disk shrinks: blocked", []string{strings.Replace(one, "1Gi", "512Mi", 1)}, running(t, one), plan.ActionRestart, plan.ReasonChanged, plan.ConsequenceRestart, plan.PowerCycle, true, "cannot shrink"},
		{"crashed: start", []string{one}, with(running(t, one), stopped(plan.StopCrashed)), plan.ActionStart, plan.ReasonPower, plan.ConsequenceNone, plan.PowerOn, false, ""},
		{"guest powered off, always: start", []string{one}, with(running(t, one), stopped(plan.StopShutdown)), plan.ActionStart, plan.ReasonPower, plan.ConsequenceNone, plan.PowerOn, false, ""},
		{"plug pulled by somebody: drift", []string{one}, with(running(t, one), stopped(plan.StopDestroyed)), plan.ActionStart, plan.ReasonDrift, plan.ConsequenceNone, plan.PowerOn, false, ""},
		{"rerun on failure, guest powered off: leave", []string{manifest("a", "RerunOnFailure", "128Mi")}, with(running(t, manifest("a", "RerunOnFailure", "128Mi")), stopped(plan.StopShutdown)), "", "", "", "", false, ""},
		{"rerun on failure, crashed: start", []string{manifest("a", "RerunOnFailure", "128Mi")}, with(running(t, manifest("a", "RerunOnFailure", "128Mi")), stopped(plan.StopCrashed)), plan.ActionStart, plan.ReasonPower, plan.ConsequenceNone, plan.PowerOn, false, ""},
		{"once, has run: leave", []string{manifest("a", "Once", "128Mi")}, with(running(t, manifest("a", "Once", "128Mi")), stopped(plan.StopCrashed)), "", "", "", "", false, ""},
		{"once, never ran: start", []string{manifest("a", "Once", "128Mi")}, with(running(t, manifest("a", "Once", "128Mi")), func(d *plan.Domain) { stopped("")(d); d.Ran = false }), plan.ActionStart, plan.ReasonPower, plan.ConsequenceNone, plan.PowerOn, false, ""},
		{"configured, guest runs the old one: restart", []string{one}, with(running(t, one), func(d *plan.Domain) {
			old := desired(t, manifest("a", "Always", "64Mi")).VMs[0]
			d.RunningHash, d.RunningRecord = old.Hash, old.Record
		}), plan.ActionRestart, plan.ReasonPendingRestart, plan.ConsequenceRestart, plan.PowerCycle, true, ""},
		{"definition edited by hand: correct it", []string{one}, with(running(t, one), func(d *plan.Domain) {
			d.Drift = []plan.Change{{Path: "vcpu@current", Before: "1", After: "2"}}
		}), plan.ActionUpdate, plan.ReasonDrift, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"undefined by hand while it runs: define", []string{one}, with(running(t, one), func(d *plan.Domain) { d.Transient = true }), plan.ActionUpdate, plan.ReasonDrift, plan.ConsequenceNone, plan.PowerKeep, true, ""},
		{"undefined by hand: create again", []string{one}, with(running(t, one), func(d *plan.Domain) { stopped("")(d); d.State = plan.StateMissing }), plan.ActionCreate, plan.ReasonDrift, plan.ConsequenceNone, plan.PowerOn, true, ""},
		{"paused by a person: leave", []string{one}, with(running(t, one), func(d *plan.Domain) { d.State = plan.StatePaused }), "", "", "", "", false, ""},
		{"removed from git: destroy", []string{fleet}, running(t, one), plan.ActionDestroy, plan.ReasonRemoved, plan.ConsequenceDestroy, plan.PowerKeep, false, ""},
		{"empty repository without a Fleet: destroy nothing", nil, running(t, one), plan.ActionDestroy, plan.ReasonRemoved, plan.ConsequenceDestroy, plan.PowerKeep, false, "no VM at all"},
		{"another fleet's domain: not ours", []string{fleet}, with(running(t, one), func(d *plan.Domain) { d.Fleet = "other" }), "", "", "", "", false, ""},
		{"record not understood: not destroyed", []string{fleet}, with(running(t, one), func(d *plan.Domain) { d.Problem = "garbage" }), plan.ActionDestroy, plan.ReasonRemoved, plan.ConsequenceDestroy, plan.PowerKeep, false, "garbage"},
	} {
		t.Run(test.reason, func(t *testing.T) {
			p := build(t, desired(t, test.want...), test.have)
			if test.action == "" {
				if len(p.Steps) != 0 {
					t.Fatalf("want no step, got %+v", p.Steps[0])
				}
				return
			}
			if len(p.Steps) != 1 {
				t.Fatalf("want one step, got %d", len(p.Steps))
			}
			step := p.Steps[0]
			if step.Action != test.action || step.Reason != test.why || step.Consequence != test.consequence || step.Power != test.power || step.Define != test.define {
				t.Errorf("got action %s, reason %s, consequence %s, power %q, define %v: %s", step.Action, step.Reason, step.Consequence, step.Power, step.Define, step.Summary)
			}
			if (test.blocked == "") != (step.Blocked == "") || !strings.Contains(step.Blocked, test.blocked) {
				t.Errorf("blocked: got %q, want %q", step.Blocked, test.blocked)
			}
		})
	}
}

func TestBuildPendingRestartOfManualVMIsBlocked(t *testing.T) {
	now := manifest("a", "Manual", "256Mi")
	have := with(running(t, now), func(d *plan.Domain) {
		old := desired(t, manifest("a", "Manual", "128Mi")).VMs[0]
		d.State, d.RunningHash, d.RunningRecord = plan.StateRunning, old.Hash, old.Record
	})
	p := build(t, desired(t, now), have)
	if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "restarted by hand") || !p.Empty() {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestBuildDriftPolicyReport(t *testing.T) {
	one := manifest("a", "Always", "128Mi")
	report := strings.Replace(fleet, "  platform: host\n", "  drift: report\n", 1)
	for reason, change := range map[string]func(*plan.Domain){
		"edited":      func(d *plan.Domain) { d.Drift = []plan.Change{{Path: "vcpu", Before: "1", After: "2"}} },
		"plug pulled": stopped(plan.StopDestroyed),
		"undefined":   func(d *plan.Domain) { stopped("")(d); d.State = plan.StateMissing },
	} {
		p := build(t, desired(t, report, one), with(running(t, one), change))
		if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "only reported") {
			t.Errorf("%s: got %+v", reason, p.Steps)
		}
	}
	p := build(t, desired(t, report, one), with(running(t, one), func(d *plan.Domain) { stopped(plan.StopReplaced)(d); d.State = plan.StateMissing }))
	if p.Empty() || p.Steps[0].Action != plan.ActionCreate || p.Steps[0].Reason != plan.ReasonChanged || len(p.Steps[0].Drift) > 0 {
		t.Errorf("a replacement that was interrupted is no drift: got %+v", p.Steps)
	}
	if p := build(t, desired(t, report, one), with(running(t, one), stopped(plan.StopCrashed))); p.Empty() {
		t.Error("a crash is no drift: the VM must be started under the policy report too")
	}
}

func TestBuildUnknownHostPlansNothing(t *testing.T) {
	p, err := plan.Build(desired(t, manifest("a", "Always", "128Mi")), plan.Observed{Unknown: "libvirt does not answer"}, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Steps) != 0 || p.UnknownCount != 1 || p.Unknown == "" {
		t.Fatalf("got %+v", p)
	}
}

func TestBuildBrokenManifestStopsOnlyItsVM(t *testing.T) {
	good, bad := manifest("good", "Always", "128Mi"), manifest("bad", "Always", "128Mi")
	files := []*schemas.File{
		schemas.Parse("good.yaml", []byte(strings.Replace(good, "128Mi", "256Mi", 1))),
		schemas.Parse("bad.yaml", []byte(strings.Replace(bad, "        memory:\n", "        memroy: {}\n        memory:\n", 1))),
	}
	p := build(t, schemas.Assemble(files), running(t, good, bad))
	if len(p.Steps) != 1 || p.Steps[0].Address.Name != "good" {
		t.Fatalf("want one step for good, got %+v", p.Steps)
	}
	if len(p.Held) != 1 || p.Held[0].Address.Name != "bad" {
		t.Fatalf("want bad held, got %+v", p.Held)
	}
}

func TestBuildOpaqueFileWithholdsDestroy(t *testing.T) {
	good, gone := manifest("good", "Always", "128Mi"), manifest("gone", "Always", "128Mi")
	files := []*schemas.File{schemas.Parse("good.yaml", []byte(good)), schemas.Parse("x.yaml", []byte("a: [\n"))}
	p := build(t, schemas.Assemble(files), running(t, good, gone))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.ActionDestroy || !strings.Contains(p.Steps[0].Blocked, "x.yaml") {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestBuildUnreadableRecordHoldsOnlyItsVM(t *testing.T) {
	one, two := manifest("one", "Always", "128Mi"), manifest("two", "Always", "128Mi")
	have := running(t, one, two)
	have[0].Record, have[0].Hash = []byte("{"), "other"
	p := build(t, desired(t, fleet, one, strings.Replace(two, "128Mi", "256Mi", 1)), have)
	if len(p.Held) != 1 || p.Held[0].Address.Name != "one" || len(p.Steps) != 1 || p.Steps[0].Address.Name != "two" {
		t.Fatalf("held %+v, steps %+v", p.Held, p.Steps)
	}
}

func TestBuildProtectedVMIsNotDestroyed(t *testing.T) {
	one := strings.Replace(manifest("a", "Always", "128Mi"), "  name: a\n", "  name: a\n  annotations: {gitvirt.io/protect: \"true\"}\n", 1)
	p := build(t, desired(t, fleet), running(t, one))
	if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "protected") {
		t.Fatalf("destroy: got %+v", p.Steps)
	}
	other := strings.Replace(one, "        memory:\n", "        firmware: {uuid: 5d307ca9-b3ef-428c-8861-06e72d69f223}\n        memory:\n", 1)
	p = build(t, desired(t, other), running(t, one))
	if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "protected") {
		t.Fatalf("replace: got %+v", p.Steps)
	}
}

func TestBuildOneFileDestroysNothing(t *testing.T) {
	one := manifest("a", "Always", "128Mi")
	want := desired(t, one)
	want.Partial = true
	p := build(t, want, running(t, one, manifest("b", "Always", "128Mi")))
	if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "only one file") {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestBuildBrokenManifestOfAnotherKindHoldsTheSameDomain(t *testing.T) {
	instance := "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: a}\nspec: {domain: {memory: {guest: 1Qx}, devices: {}}}\n"
	p := build(t, schemas.Assemble([]*schemas.File{schemas.Parse("a.yaml", []byte(instance)), schemas.Parse("f.yaml", []byte(fleet))}),
		running(t, manifest("a", "Always", "128Mi")))
	if len(p.Steps) != 0 || len(p.Held) != 1 {
		t.Fatalf("got steps %+v, held %+v", p.Steps, p.Held)
	}
}

func TestBuildReportedDriftKeepsNoGuestDown(t *testing.T) {
	one := manifest("a", "Always", "128Mi")
	report := strings.Replace(fleet, "  platform: host\n", "  drift: report\n", 1)
	p := build(t, desired(t, report, one), with(running(t, one), func(d *plan.Domain) {
		stopped(plan.StopCrashed)(d)
		d.Drift = []plan.Change{{Path: "vcpu", Before: "1", After: "2"}}
	}))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.ActionStart || p.Steps[0].Blocked != "" || p.Steps[0].Define || len(p.Steps[0].Drift) != 1 {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestBuildUUIDInAnotherCaseIsTheSame(t *testing.T) {
	with := func(uuid string) string {
		return strings.Replace(manifest("a", "Always", "128Mi"), "        memory:\n", "        firmware: {uuid: "+uuid+"}\n        memory:\n", 1)
	}
	p := build(t, desired(t, with("5d307ca9-b3ef-428c-8861-06e72d69f223")), running(t, with("5D307CA9-B3EF-428C-8861-06E72D69F223")))
	if len(p.Steps) != 1 || p.Steps[0].Action != plan.ActionUpdate || p.Steps[0].Power != plan.PowerKeep {
		t.Fatalf("got %+v", p.Steps)
	}
}

func TestBuildForeignDomainBlocksCreate(t *testing.T) {
	want := desired(t, manifest("a", "Always", "128Mi"))
	mac := schemas.MACAddress(want.VMs[0].Address, "default")
	uuid := schemas.FirmwareUUID(want.VMs[0].Address)
	for reason, foreign := range map[string]plan.Foreign{
		"same name": {Name: "default_a"},
		"same UUID": {Name: "other", UUID: strings.ToUpper(uuid)},
		"same MAC":  {Name: "other", MACs: []string{strings.ToUpper(mac)}},
	} {
		p, err := plan.Build(want, plan.Observed{Foreign: []plan.Foreign{foreign}}, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Steps) != 1 || p.Steps[0].Blocked == "" {
			t.Errorf("%s: want a blocked step, got %+v", reason, p.Steps)
		}
	}
}

func TestBuildDoesNotDependOnOrder(t *testing.T) {
	manifests := []string{fleet}
	for _, name := range []string{"a", "b", "c", "d"} {
		manifests = append(manifests, manifest(name, "Always", "128Mi"))
	}
	have := running(t, manifest("b", "Always", "64Mi"), manifest("e", "Always", "64Mi"))
	first := build(t, desired(t, manifests...), have)
	slices.Reverse(manifests)
	second := build(t, desired(t, manifests...), have)
	for i := range first.Steps {
		if first.Steps[i].Address != second.Steps[i].Address || first.Steps[i].Action != second.Steps[i].Action {
			t.Errorf("step %d: %v and %v", i, first.Steps[i].Address, second.Steps[i].Address)
		}
	}
}
