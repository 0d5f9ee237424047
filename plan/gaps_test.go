package plan_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestEveryGapIsNamed: what git wants otherwise, what somebody changed in the configuration and in the guest, what waits for a
// restart since when, and the power are told apart, each in words of its own.
func TestEveryGapIsNamed(t *testing.T) {
	var manifests []string
	have := plan.Observed{Node: "host-1", Live: everythingLive}
	for _, vm := range []struct{ name, strategy string }{{"db", "Halted"}, {"web", "Always"}} {
		configured := manifest(vm.name, vm.strategy, "256Mi")
		manifests = append(manifests, strings.Replace(configured, "        memory:", "        cpu: {cores: 2}\n        memory:", 1))
		domain, older := running(t, configured)[0], running(t, manifest(vm.name, "Always", "128Mi"))[0]
		domain.State, domain.Ran, domain.RunningHash, domain.RunningRecord = plan.StateRunning, true, older.Hash, older.Record
		domain.PendingSince = time.Date(2026, 11, 3, 4, 5, 6, 0, time.UTC)
		domain.Drift = []plan.Change{{Path: "devices/sound", After: "present", Consequence: plan.ConsequenceNone}}
		domain.RunningDrift = []plan.Change{{Path: "spec.template.spec.domain.devices.disks[vdz]", After: "present"}}
		have.Domains = append(have.Domains, domain)
	}
	p, err := plan.Build(desired(t, append(manifests, fleet)...), have, plan.Options{Revision: "rev"})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := p.Text(&out, plan.TextOptions{Node: "host-1"}); err != nil {
		t.Fatal(err)
	}
	golden(t, "gaps.txt", out.String())
}

// TestJSONSaysWhatIsKept: what no field of an adopted domain's manifest says is in the JSON, and comes back.
func TestJSONSaysWhatIsKept(t *testing.T) {
	kept := []string{"cputune/shares", "devices/sound"}
	encoded, err := json.Marshal(plan.Plan{FormatVersion: plan.FormatVersion, Steps: []plan.Step{{Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}, Action: plan.ActionAdopt, Adopt: "old", Kept: kept}}})
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		Steps []map[string]any `json:"steps"`
	}
	if err := json.Unmarshal(encoded, &read); err != nil {
		t.Fatal(err)
	}
	if got := read.Steps[0]["kept"]; !reflect.DeepEqual(got, []any{"cputune/shares", "devices/sound"}) {
		t.Errorf("kept is %v", got)
	}
	back, err := plan.ReadJSON(encoded)
	if err != nil || !slices.Equal(back.Steps[0].Kept, kept) {
		t.Errorf("read back: %v, %v", back, err)
	}
}
