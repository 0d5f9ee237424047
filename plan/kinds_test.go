package plan_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

const claimed = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: a}
spec:
  runStrategy: Always
  instancetype: {name: small}
  dataVolumeTemplates:
  - metadata: {name: a-root}
    spec:
      source: {registry: {url: "docker://quay.io/os:1"}}
      storage: {resources: {requests: {storage: 2Gi}}}
  template:
    spec:
      domain: {devices: {}}
      volumes:
      - {name: root, dataVolume: {name: a-root}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterInstancetype
metadata: {name: small}
spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}
---
apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachineClusterInstancetype
metadata: {name: also-small}
spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}
`

// TestBuildClaimsAndInstancetypes: what changes in what a machine refers to is shown as what it means for the machine.
func TestBuildClaimsAndInstancetypes(t *testing.T) {
	for _, test := range []struct {
		reason, before, after string
		path                  string
		old, new              any
		consequence           plan.Consequence
		blocked               string
	}{
		{"a claim grows", "storage: 2Gi", "storage: 3Gi", "claims[root].capacity", "2Gi", "3Gi", plan.ConsequenceRestart, ""},
		{"a claim shrinks", "storage: 2Gi", "storage: 1Gi", "claims[root].capacity", "2Gi", "1Gi", plan.ConsequenceRestart, "a disk cannot shrink from 2Gi to 1Gi"},
		{"another source", "os:1", "os:2", "claims[root].source.registry.url", "docker://quay.io/os:1", "docker://quay.io/os:2", plan.ConsequenceNone, ""},
		{"a larger instancetype", "memory: {guest: 1Gi}", "memory: {guest: 2Gi}", "spec.template.spec.domain.memory.guest", "1Gi", "2Gi", plan.ConsequenceRestart, ""},
		{"another instancetype that is the same", "{name: small}\n  data", "{name: also-small}\n  data", "spec.instancetype.name", "small", "also-small", plan.ConsequenceNone, ""},
	} {
		after := strings.Replace(claimed, test.before, test.after, 1)
		if after == claimed {
			t.Fatalf("%s: nothing to replace", test.reason)
		}
		p := build(t, desired(t, after), running(t, claimed))
		if len(p.Steps) != 1 || len(p.Steps[0].Changes) != 1 {
			t.Errorf("%s: %+v", test.reason, p.Steps)
			continue
		}
		change := p.Steps[0].Changes[0]
		if change.Path != test.path || change.Before != test.old || change.After != test.new || change.Consequence != test.consequence {
			t.Errorf("%s: %+v", test.reason, change)
		}
		if blocked := p.Steps[0].Blocked; !strings.Contains(blocked, test.blocked) || (blocked == "") != (test.blocked == "") {
			t.Errorf("%s: blocked by %q", test.reason, blocked)
		}
	}
	if p := build(t, desired(t, claimed), running(t, claimed)); !p.Empty() {
		t.Errorf("unchanged: %+v", p.Steps)
	}
}

// TestSourcesCredentialsAreNeverShown: that a signature or a token changed is shown, and not what it is.
func TestSourcesCredentialsAreNeverShown(t *testing.T) {
	source := func(http string) string {
		return strings.Replace(claimed, `registry: {url: "docker://quay.io/os:1"}`, "http: "+http, 1)
	}
	before := source(`{url: "https://example.org/a?hush=1", extraHeaders: ["Token: hush"]}`)
	for _, test := range []struct {
		reason, after string
		paths         []string
		shown         string
	}{
		{"another signature", source(`{url: "https://example.org/a?hush=2", extraHeaders: ["Token: hush"]}`), []string{"claims[root].source.http.url"}, "url: (sensitive)"},
		{"another address", source(`{url: "https://example.org/b?hush=1", extraHeaders: ["Token: hush"]}`), []string{"claims[root].source.http.url"}, "https://example.org/b?(sensitive)"},
		{"another token", source(`{url: "https://example.org/a?hush=1", extraHeaders: ["Token: hush2"]}`), []string{"claims[root].source.http.extraHeaders"}, "extraHeaders: (sensitive)"},
		{"from the registry", claimed, []string{"claims[root].source.http", "claims[root].source.registry"}, "https://example.org/a?(sensitive)"},
	} {
		p := build(t, desired(t, test.after), running(t, before))
		var text strings.Builder
		if err := p.Text(&text, plan.TextOptions{}); err != nil {
			t.Fatal(err)
		}
		encoded, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := paths(p); !slices.Equal(got, test.paths) {
			t.Errorf("%s: %v changed", test.reason, got)
		}
		if !strings.Contains(text.String(), test.shown) {
			t.Errorf("%s: want %s in\n%s", test.reason, test.shown, text.String())
		}
		if both := text.String() + string(encoded); strings.Contains(both, "hush") || strings.Contains(both, "sha256:") {
			t.Errorf("%s: a credential or its digest is shown:\n%s", test.reason, both)
		}
	}
}

const pool = `apiVersion: pool.kubevirt.io/v1beta1
kind: VirtualMachinePool
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  virtualMachineTemplate:
    metadata: {labels: {app: web}}
    spec:
      runStrategy: Always
      template: {spec: {domain: {memory: {guest: 1Gi}}}}
`

// TestBuildSets: machines leave a set from the highest number down, and never because of a mistake.
func TestBuildSets(t *testing.T) {
	for _, test := range []struct {
		reason, before, after string
		destroyed             []string
		held                  int
	}{
		{"as it is", "replicas: 3", "replicas: 3", nil, 0},
		{"a smaller one", "replicas: 3", "replicas: 1", []string{"web-1", "web-2"}, 0},
		{"none", "replicas: 3", "replicas: 0", []string{"web-0", "web-1", "web-2"}, 0},
		{"a mistake in the number", "replicas: 3", "replicas: x", nil, 1},
		{"a mistake in the template", "guest: 1Gi", "gest: 1Gi", nil, 4},
		{"a smaller one with a mistake", "replicas: 3", "replicas: 1\n  replcas: 1", nil, 1},
		{"a missing instancetype", "runStrategy: Always", "runStrategy: Always\n      instancetype: {name: x}", nil, 4},
		{"paused", "replicas: 3", "replicas: 1\n  paused: true", nil, 1},
	} {
		want := schemas.Assemble([]*schemas.File{
			schemas.Parse("gitvirt.yaml", []byte(fleet)), schemas.Parse("pool.yaml", []byte(strings.Replace(pool, test.before, test.after, 1))),
		})
		p := build(t, want, running(t, fleet, pool))
		var destroyed []string
		for _, step := range p.Steps {
			if step.Action != plan.ActionDestroy || step.Blocked != "" {
				t.Errorf("%s: %+v", test.reason, step)
			}
			destroyed = append(destroyed, step.Address.Name)
		}
		if strings.Join(destroyed, " ") != strings.Join(test.destroyed, " ") || len(p.Held) != test.held {
			t.Errorf("%s: destroys %v, holds %+v", test.reason, destroyed, p.Held)
		}
	}
}
