package plan_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// everythingLive is a host that can do all there is for running guests.
var everythingLive = plan.LiveSet{
	plan.LiveCPU, plan.LiveMemory, plan.LiveBalloon, plan.LiveDisk, plan.LiveDiskGrow, plan.LiveMedia, plan.LiveInterface, plan.LiveLink,
}

const cdrom = "          - name: media\n            cdrom: {bus: scsi}\n      volumes:"

func TestRunningDrift(t *testing.T) {
	const spec = "spec.template.spec."
	always, manual := manifest("a", "Always", "128Mi"), manifest("a", "Manual", "128Mi")
	withCDROM := strings.Replace(always, "      volumes:", cdrom, 1)
	memory := plan.Change{Path: spec + "domain.memory.guest", Before: "128Mi", After: "64Mi"}
	attached := plan.Change{Path: spec + "domain.devices.disks[vdz]", After: "present"}
	model := plan.Change{Path: spec + "domain.cpu.model", Before: "host-model", After: "qemu64"}
	for _, test := range []struct {
		reason      string
		manifest    string
		live        plan.LiveSet
		change      func(*plan.Domain)
		drift       []plan.Change
		action      plan.Action
		why         plan.Reason
		consequence plan.Consequence
		define      bool
		note        string
		blocked     string
	}{
		{reason: "the balloon", manifest: always, live: everythingLive, drift: []plan.Change{memory}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{reason: "a disk of others", manifest: always, live: everythingLive, drift: []plan.Change{attached}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{reason: "a link", manifest: always, live: everythingLive, drift: []plan.Change{{Path: spec + "domain.devices.interfaces[default].state", Before: "up", After: "down"}}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{reason: "a medium", manifest: withCDROM, live: everythingLive, drift: []plan.Change{{Path: spec + "volumes[media]", After: "/a.iso"}}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{reason: "the image of a disk", manifest: always, live: everythingLive, drift: []plan.Change{{Path: spec + "volumes[data]", Before: "/a", After: "/b"}}, action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true},
		{reason: "vCPUs that are gone", manifest: always, live: everythingLive, drift: []plan.Change{{Path: spec + "domain.cpu.sockets", Before: 2.0, After: 1.0}}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{reason: "vCPUs too many", manifest: always, live: everythingLive, drift: []plan.Change{{Path: spec + "domain.cpu.sockets", Before: 1.0, After: 2.0}}, action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true},
		{reason: "what no field stands for", manifest: always, live: everythingLive, drift: []plan.Change{{Path: "devices/disk[vda]/iotune/read_bytes_sec", After: "1"}}, action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true},
		{reason: "one of two needs a restart", manifest: always, live: everythingLive, drift: []plan.Change{attached, model}, action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true},
		{reason: "a host that cannot", manifest: always, live: plan.LiveSet{plan.LiveDisk}, drift: []plan.Change{memory}, action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true, note: "this host cannot change the memory"},
		{
			reason: "a guest that would not", manifest: always, live: everythingLive, drift: []plan.Change{memory}, change: func(d *plan.Domain) { d.LiveRefused, d.LiveRefusedReason = d.Hash, "no driver" },
			action: plan.ActionRestart, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceRestart, define: true, note: "no driver",
		},
		{reason: "people restart it", manifest: manual, live: everythingLive, drift: []plan.Change{model}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceNextBoot, blocked: "restarted by hand"},
		{reason: "people restart it, and it is live", manifest: manual, live: everythingLive, drift: []plan.Change{attached}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive},
		{
			reason: "the definition as well", manifest: always, live: everythingLive, drift: []plan.Change{attached}, change: func(d *plan.Domain) { d.Drift = []plan.Change{attached} },
			action: plan.ActionUpdate, why: plan.ReasonDrift, consequence: plan.ConsequenceLive, define: true,
		},
		{reason: "only reported", manifest: always + "---\n" + strings.Replace(fleet, "spec:\n", "spec:\n  drift: report\n", 1), live: everythingLive, drift: []plan.Change{attached}, action: plan.ActionUpdate, why: plan.ReasonRunningDrift, consequence: plan.ConsequenceLive, blocked: "only reported"},
		{reason: "a guest that is to go off", manifest: strings.Replace(always, "Always", "Halted", 1), live: everythingLive, drift: []plan.Change{model}, action: plan.ActionStop, why: plan.ReasonPower, consequence: plan.ConsequenceStop},
	} {
		t.Run(test.reason, func(t *testing.T) {
			want := desired(t, test.manifest)
			domains := plan.FromDesired(want, "base").Domains
			for _, domain := range domains {
				domain.State, domain.RunningHash, domain.RunningRecord, domain.RunningDrift = plan.StateRunning, domain.Hash, domain.Record, slices.Clone(test.drift)
				if test.change != nil {
					test.change(domain)
				}
			}
			p, err := plan.Build(want, plan.Observed{Domains: domains, Live: test.live}, plan.Options{Revision: "rev"})
			if err != nil || len(p.Steps) != 1 {
				t.Fatalf("%v, %v", p, err)
			}
			s := p.Steps[0]
			if s.Action != test.action || s.Reason != test.why || s.Consequence != test.consequence || s.Define != test.define || s.Live != (test.consequence == plan.ConsequenceLive) {
				t.Errorf("%s, %s, %s, define %v, live %v", s.Action, s.Reason, s.Consequence, s.Define, s.Live)
			}
			if !strings.Contains(s.Blocked, test.blocked) || (s.Blocked == "") != (test.blocked == "") {
				t.Errorf("blocked: %q", s.Blocked)
			}
			if len(s.RunningDrift) != len(test.drift) || !strings.Contains(s.RunningDrift[0].Note, test.note) {
				t.Errorf("running drift: %+v", s.RunningDrift)
			}
		})
	}
}

// TestEveryGapHasItsName: a VM that differs in every way at once shows each difference as what it is.
func TestEveryGapHasItsName(t *testing.T) {
	before, configured, wanted := manifest("a", "Always", "64Mi"), manifest("a", "Always", "128Mi"), manifest("a", "Always", "256Mi")
	domains := running(t, configured)
	old := desired(t, before).VMs[0]
	domains[0].RunningHash, domains[0].RunningRecord = old.Hash, old.Record
	domains[0].PendingSince = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	domains[0].Drift = []plan.Change{{Path: "spec.template.spec.domain.cpu.sockets", Before: 1.0, After: 2.0}}
	domains[0].RunningDrift = []plan.Change{{Path: "spec.template.spec.domain.devices.disks[vdz]", After: "present"}}
	p := build(t, desired(t, wanted), domains)
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"changes":[{"path":"spec.template.spec.domain.memory.guest","before":"64Mi","after":"256Mi"`, `"drift":[`, `"running_drift":[`, `"pending_restart":{"fields":["spec.template.spec.domain.memory.guest"],"since":"2026-11-22T03:00:00Z"}`} {
		if !strings.Contains(string(encoded), part) {
			t.Errorf("no %s in %s", part, encoded)
		}
	}
}

// TestPending: what the guest cannot notice is no reason to restart it.
func TestPending(t *testing.T) {
	one := manifest("a", "Always", "128Mi")
	of := func(text string) *schemas.VM { return desired(t, text).VMs[0] }
	domain := running(t, one)[0]
	for _, test := range []struct {
		reason, started string
		want            []string
	}{
		{"the same", one, nil},
		{"a label", strings.Replace(one, "  name: a\n", "  name: a\n  labels: {team: blue}\n", 1), nil},
		{"memory", manifest("a", "Always", "64Mi"), []string{"spec.template.spec.domain.memory.guest"}},
	} {
		domain.RunningHash, domain.RunningRecord = of(test.started).Hash, of(test.started).Record
		pending, err := domain.Pending()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if pending != nil {
			got = pending.Fields
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q", test.reason, got)
		}
	}
}
