package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

const tenantFleet = `apiVersion: gitvirt.io/v1alpha1
kind: Fleet
metadata: {name: fleet}
spec:
  policy: {apply: {destroy: automatic}}
  sources:
  - {name: team-a, git: {url: "https://git.example.com/a.git"}, namespaces: [a, shared]}
  - {name: team-b, git: {url: "https://git.example.com/b.git"}, namespaces: [b, shared]}
`

const tenantMachine = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s, namespace: %s}
spec: {runStrategy: %s, template: {spec: {domain: {memory: {guest: 64Mi}}}}}
---
`

func tenantVM(namespace, name string) string {
	return fmt.Sprintf(tenantMachine, name, namespace, "Always")
}

func tenantSet(namespace, name, paused string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceReplicaSet
metadata: {name: %s, namespace: %s}
spec: {replicas: 1, paused: %s, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {domain: {memory: {guest: 64Mi}}}}}
---
`, name, namespace, paused)
}

// TestSourcesWithholdWhatIsTheirs: what is wrong with one repository stops removals of its own machines, and of no others.
func TestSourcesWithholdWhatIsTheirs(t *testing.T) {
	const keep, alone = "keep", "# without a machine\n"
	lives := []struct{ source, namespace, name string }{
		{"", "infra", "of-main"}, {"team-a", "a", "of-a"}, {"team-b", "b", "of-b"}, {"team-b", "shared", "set-0"},
	}
	for _, test := range []struct {
		reason string
		fleet  string
		// texts are the manifests by repository; each has one machine besides that stays.
		texts map[string]string
		want  string
	}{
		{"nothing is wrong", tenantFleet, nil, "infra/of-main a/of-a b/of-b shared/set-0"},
		{"a file of a source cannot be read", tenantFleet, map[string]string{"team-a": "kind: ["}, "infra/of-main b/of-b shared/set-0"},
		{"a file of the main repository cannot be read", tenantFleet, map[string]string{"": "kind: ["}, ""},
		{"a source asks for nothing", tenantFleet, map[string]string{"team-a": keep}, "infra/of-main b/of-b shared/set-0"},
		{
			"a source asks for nothing but a Service with a mistake", tenantFleet,
			map[string]string{"team-a": alone + "apiVersion: v1\nkind: Service\nmetadata: {name: x, namespace: a}\nspec: {ports: [{port: nothing}]}\n"},
			"infra/of-main b/of-b shared/set-0",
		},
		{
			"a source speaks of what is not its own", tenantFleet,
			map[string]string{"team-a": fmt.Sprintf(tenantMachine, "of-b", "b", "Sometimes") + tenantVM("infra", "of-main")},
			"infra/of-main a/of-a b/of-b shared/set-0",
		},
		{"a set with mistakes in a namespace of others", tenantFleet, map[string]string{"team-a": tenantSet("b", "of", "maybe") + tenantSet("infra", "of", "true")}, "infra/of-main a/of-a b/of-b shared/set-0"},
		{"a set with mistakes in a shared namespace is careful", tenantFleet, map[string]string{"team-a": tenantSet("shared", "set", "maybe")}, "infra/of-main a/of-a b/of-b"},
		{"a paused set in a shared namespace is careful", tenantFleet, map[string]string{"team-a": tenantSet("shared", "set", "true")}, "infra/of-main a/of-a b/of-b"},
		{"a machine with mistakes stays", tenantFleet, map[string]string{"team-a": fmt.Sprintf(tenantMachine, "of-a", "a", "Sometimes")}, "infra/of-main b/of-b shared/set-0"},
		{
			"a source is gone from the Fleet", strings.Replace(tenantFleet, "name: team-a,", "name: team-c,", 1),
			map[string]string{"team-a": keep, "team-c": tenantVM("a", "new")},
			"infra/of-main a/of-a b/of-b shared/set-0",
		},
		{
			"the namespaces of a source shrink", strings.Replace(tenantFleet, "[a, shared]", "[shared]", 1),
			map[string]string{"team-a": tenantVM("a", "of-a") + tenantVM("shared", "x")},
			"infra/of-main b/of-b shared/set-0",
		},
		{"an entry has mistakes", strings.Replace(tenantFleet, "namespaces: [a, shared]", "namespace: [a]", 1), nil, "infra/of-main"},
		{"the list may be a misspelt one", strings.Replace(tenantFleet, "  sources:", "  source:", 1), nil, "infra/of-main"},
		{"there is no Fleet", "", nil, "infra/of-main"},
	} {
		files := []*schemas.File{schemas.Parse("keep.yaml", []byte(tenantVM("infra", "keep")))}
		if test.fleet != "" {
			files = append(files, schemas.Parse("gitvirt.yaml", []byte(test.fleet)))
		}
		for _, source := range []string{"", "team-a", "team-b", "team-c"} {
			text := test.texts[source]
			if text == keep {
				continue
			}
			files = append(files, schemas.ParseFrom(source, "vms.yaml", []byte(text)))
			if (source == "team-a" || source == "team-b") && !strings.HasPrefix(text, alone) {
				files = append(files, schemas.ParseFrom(source, "keep.yaml", []byte(tenantVM("shared", "keep-"+source))))
			}
		}
		var have plan.Observed
		for _, one := range lives {
			have.Domains = append(have.Domains, tenantDomain(t, one.source, one.namespace, one.name))
		}
		slices.SortFunc(have.Domains, func(x, y *plan.Domain) int { return x.Address.Compare(y.Address) })
		want := schemas.Assemble(files, schemas.Holding(&have))
		made, err := plan.Build(want, have, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		destroyed := map[string]bool{}
		for _, step := range made.Steps {
			if step.Action == plan.ActionDestroy && step.Blocked == "" {
				destroyed[step.Address.Namespace+"/"+step.Address.Name] = true
			}
		}
		var got []string
		for _, one := range lives {
			if name := one.namespace + "/" + one.name; destroyed[name] {
				got = append(got, name)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: destroyed %v, want %q\n%v", test.reason, got, test.want, want.Diagnostics)
			for _, step := range made.Steps {
				t.Logf("%s %s: %s", step.Action, step.Address, step.Blocked)
			}
		}
	}
}

// TestUnreadSourceIsHeld: of a source that was never read nobody can say that it no longer has a machine.
func TestUnreadSourceIsHeld(t *testing.T) {
	want := schemas.Assemble([]*schemas.File{schemas.Unread("shop", "it cannot be read: refused")})
	want.Fleet.Name, want.HasFleet = "fleet", true
	observed := plan.Observed{Node: "host-1", Domains: []*plan.Domain{tenantDomain(t, "shop", "default", "web")}}
	p, err := plan.Build(want, observed, plan.Options{Revision: "main"})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Steps) > 0 || len(p.Held) != 1 || !strings.Contains(p.Held[0].Reason, "the source shop cannot be read") {
		t.Errorf("%+v, held %+v", p.Steps, p.Held)
	}
}

// tenantDomain is what a machine that was made from a source became.
func tenantDomain(t *testing.T, source, namespace, name string) *plan.Domain {
	t.Helper()
	desired := schemas.Assemble([]*schemas.File{schemas.Parse("x.yaml", []byte(tenantVM(namespace, name)))})
	if len(desired.VMs) != 1 {
		t.Fatal(desired.Diagnostics)
	}
	vm := desired.VMs[0]
	address := vm.Address
	if strings.HasPrefix(name, "set-") {
		address.Kind = schemas.KindVirtualMachineInstance
	}
	return &plan.Domain{
		Address: address, Name: domainxml.DomainName(address), UUID: schemas.FirmwareUUID(address), Fleet: "fleet", State: plan.StateRunning, Ran: true,
		Revision: schemas.Provenance(source, "0123456789"), Source: "vms.yaml:1", Hash: vm.Hash, Record: vm.Record, RunningHash: vm.Hash, RunningRecord: vm.Record,
		Fingerprint: "f-" + name,
	}
}
