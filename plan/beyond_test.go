package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestBeyond takes from the plan of a branch what the plan of its base says as well, whatever revision each is of.
func TestBeyond(t *testing.T) {
	have := running(t, manifest("stays", "Always", "128Mi"), manifest("grows", "Always", "128Mi"), manifest("both", "Always", "128Mi"))
	at := func(revision string, manifests ...string) *plan.Plan {
		files := []*schemas.File{schemas.Parse("broken.yaml", []byte("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: broken}\nspec: {runStrategy: Sometimes}\n"))}
		for _, text := range append(manifests, fleet) {
			files = append(files, schemas.Parse("a.yaml", []byte(text)))
		}
		p, err := plan.Build(schemas.Assemble(files), plan.Observed{Node: "host-1", Domains: have}, plan.Options{Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// On the base, new waits to be created and both to grow; the branch has grows grow too, and both even more.
	base := at("one", manifest("stays", "Always", "128Mi"), manifest("grows", "Always", "128Mi"), manifest("both", "Always", "192Mi"), manifest("new", "Always", "128Mi"))
	branch := at("two", manifest("stays", "Always", "128Mi"), manifest("grows", "Always", "256Mi"), manifest("both", "Always", "256Mi"), manifest("new", "Always", "128Mi"),
		strings.Replace(manifest("wrong", "Always", "128Mi"), "kubevirt.io/v1", "kubevirt.io/v9", 1))
	own, same, err := branch.Beyond(base)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, step := range own.Steps {
		names = append(names, step.Address.Name)
	}
	if diff := cmp.Diff([]string{"both", "grows"}, names); diff != "" {
		t.Error(diff)
	}
	if same != 1 || len(branch.Steps) != 3 {
		t.Errorf("%d steps are the same, %d were there", same, len(branch.Steps))
	}
	if own.Summary.Create != 0 || own.Summary.Restart != 2 {
		t.Errorf("the summary counts others: %s", own.SummaryLine())
	}
	if len(own.Diagnostics) == 0 || len(own.Diagnostics) >= len(branch.Diagnostics) {
		t.Errorf("problems of the base are not told apart: %v", own.Diagnostics)
	}
	for _, held := range own.Held {
		if held.Address.Name == "broken" {
			t.Error("what the base holds already is told")
		}
	}
	// What only the base has is not in the ID, and the steps keep theirs.
	without := at("one", manifest("stays", "Always", "128Mi"), manifest("grows", "Always", "128Mi"), manifest("both", "Always", "192Mi"))
	small := at("two", manifest("stays", "Always", "128Mi"), manifest("grows", "Always", "256Mi"), manifest("both", "Always", "256Mi"),
		strings.Replace(manifest("wrong", "Always", "128Mi"), "kubevirt.io/v1", "kubevirt.io/v9", 1))
	if other, _, err := small.Beyond(without); err != nil || other.ID != own.ID || own.ID == branch.ID {
		t.Errorf("the ID is %s, and %s without the base's own step (%v); the whole is %s", own.ID, other.ID, err, branch.ID)
	}
	for _, step := range own.Steps {
		if !slices.ContainsFunc(branch.Steps, func(whole plan.Step) bool { return whole.ID == step.ID }) {
			t.Errorf("the step of %s has another ID than in the whole plan", step.Address)
		}
	}
	if _, same, err = branch.Beyond(branch); err != nil || same != len(branch.Steps) {
		t.Errorf("beyond itself %d steps are the same (%v)", same, err)
	}
}
