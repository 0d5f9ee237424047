package plan_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// from assembles manifests that begin with the name of their source and a line break; nothing before it is the repository of the Fleet.
func from(t *testing.T, manifests ...string) *schemas.Desired {
	t.Helper()
	named := strings.Replace(fleet, "spec:\n", "spec:\n  sources:\n", 1)
	for _, source := range []string{"shop", "wiki"} {
		named += "  - {name: " + source + ", git: {url: \"https://git.example.com/" + source + ".git\"}, namespaces: [default]}\n"
	}
	named = strings.Replace(named, "  platform: host\n", "", 1)
	files := []*schemas.File{schemas.Parse("gitvirt.yaml", []byte(named))}
	for _, text := range manifests {
		source, text, _ := strings.Cut(text, "\n")
		files = append(files, schemas.ParseFrom(source, "vm.yaml", []byte(text)))
	}
	want := schemas.Assemble(files)
	if want.Diagnostics.Errors() > 0 {
		t.Fatalf("manifests of the test: %v", want.Diagnostics)
	}
	return want
}

func provenance(source string) string { return schemas.Provenance(source, "commit-of-"+source) }

func buildFrom(t *testing.T, want *schemas.Desired, domains []*plan.Domain) *plan.Plan {
	t.Helper()
	p, err := plan.Build(want, plan.Observed{Node: "host-1", Domains: domains}, plan.Options{Revision: "commit-of-+others", Provenance: provenance})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProvenanceIsRecorded(t *testing.T) {
	p := buildFrom(t, from(t, "\n"+manifest("own", "Always", "64Mi"), "shop\n"+manifest("web", "Always", "64Mi")), nil)
	if len(p.Steps) != 2 || p.Steps[0].Revision != "commit-of-" || p.Steps[1].Revision != "shop@commit-of-shop" || p.Steps[1].Source != "shop:vm.yaml:4" {
		t.Errorf("the steps are %+v", p.Steps)
	}
	alone := build(t, desired(t, fleet, manifest("own", "Always", "64Mi")), nil)
	if alone.Steps[0].Revision != "" {
		t.Errorf("without other repositories a step has a revision of its own: %+v", alone.Steps[0])
	}
}

// TestApprovalOfOneSource: a push of another repository does not make another step of one that comes back.
func TestApprovalOfOneSource(t *testing.T) {
	want := from(t, "shop\n"+manifest("web", "Always", "64Mi"))
	id := func(revision, own string) string {
		p, err := plan.Build(want, plan.Observed{}, plan.Options{Revision: revision, Provenance: func(source string) string { return schemas.Provenance(source, own) }})
		if err != nil {
			t.Fatal(err)
		}
		return p.Steps[0].ID
	}
	if id("main+1", "a") != id("main+2", "a") {
		t.Error("a push of another repository makes another step")
	}
	if id("main+1", "a") == id("main+2", "b") {
		t.Error("a push of its own repository makes no other step")
	}
}

// TestManifestMoves has a manifest move from one repository to another: the record is written again, and the guest goes on.
func TestManifestMoves(t *testing.T) {
	web := manifest("web", "Always", "64Mi")
	domains := plan.FromDesired(from(t, "shop\n"+web), "base").Domains
	if p := buildFrom(t, from(t, "shop\n"+web), domains); len(p.Steps) != 0 || p.Unchanged != 1 {
		t.Fatalf("it did not move, and the steps are %+v", p.Steps)
	}
	for source, after := range map[string]string{"wiki": "wiki", "": `"the Fleet's repository"`} {
		p := buildFrom(t, from(t, source+"\n"+web), domains)
		if len(p.Steps) != 1 {
			t.Fatalf("the steps are %+v", p.Steps)
		}
		step := p.Steps[0]
		if step.Action != plan.ActionUpdate || !step.Define || step.Power != plan.PowerKeep || step.Consequence != plan.ConsequenceNone || step.Revision != provenance(source) {
			t.Errorf("the step is %+v", step)
		}
		if len(step.Changes) != 1 || step.Changes[0].String() != "~ source: shop -> "+after {
			t.Errorf("the changes are %v", step.Changes)
		}
	}
}

// TestRenameStaysInItsSource: a machine with its disks does not go over to another source by a name that it had.
func TestRenameStaysInItsSource(t *testing.T) {
	domains := plan.FromDesired(from(t, "shop\n"+manifest("web", "Always", "64Mi")), "base").Domains
	renamed := strings.Replace(manifest("new", "Always", "64Mi"), "metadata:\n", "metadata:\n  annotations: {gitvirt.io/previous-name: web}\n", 1)
	for _, test := range []struct {
		source string
		taken  bool
	}{{"wiki", false}, {"shop", true}, {"", true}} {
		p := buildFrom(t, from(t, test.source+"\n"+renamed), domains)
		taken := false
		for _, step := range p.Steps {
			taken = taken || step.Previous != nil
			if !test.taken && step.Blocked == "" {
				t.Errorf("from %q: %+v", test.source, step)
			}
		}
		if taken != test.taken || len(p.Steps) == 0 {
			t.Errorf("from %q it is taken: %v, %+v", test.source, taken, p.Steps)
		}
	}
}

func TestHolder(t *testing.T) {
	observed := plan.Observed{
		Domains: plan.FromDesired(from(t, "\n"+manifest("own", "Always", "64Mi"), "shop\n"+manifest("web", "Always", "64Mi")), "base").Domains,
		Objects: []*plan.Object{{Address: schemas.Address{Kind: schemas.KindService, Namespace: "default", Name: "web"}, Revision: "wiki@base", Record: []byte("{}")}},
	}
	for _, test := range []struct {
		kind, name, source string
		lives              bool
	}{
		{schemas.KindVirtualMachine, "own", "", true},
		{schemas.KindVirtualMachine, "web", "shop", true},
		{schemas.KindVirtualMachineInstance, "web", "", false},
		{schemas.KindService, "web", "wiki", true},
		{schemas.KindService, "none", "", false},
		{schemas.KindVirtualMachine, "none", "", false},
	} {
		held, lives := observed.Holder(schemas.Address{Kind: test.kind, Namespace: "default", Name: test.name})
		if held.Source != test.source || lives != test.lives || lives != (len(held.Record) > 0) {
			t.Errorf("%s %s is held by %q, %v", test.kind, test.name, held.Source, lives)
		}
	}
	observed.Unknown = "libvirtd does not answer"
	if _, lives := observed.Holder(observed.Domains[0].Address); lives {
		t.Error("something lives on a host that cannot be read")
	}
}
