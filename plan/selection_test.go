package plan_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

func inNamespace(text, namespace string) string {
	return strings.Replace(text, "metadata:\n", "metadata:\n  namespace: "+namespace+"\n", 1)
}

func names(p *plan.Plan) []string {
	var out []string
	for _, step := range p.Steps {
		out = append(out, step.Address.Namespace+"/"+step.Address.Name)
	}
	return out
}

func TestSelection(t *testing.T) {
	want := desired(t, manifest("web-1", "Always", "128Mi"), manifest("web-2", "Always", "128Mi"), inNamespace(manifest("db-1", "Always", "128Mi"), "shop"))
	have := plan.Observed{Node: "host-1", Domains: running(t, manifest("old-1", "Always", "128Mi"))}
	for _, test := range []struct {
		reason    string
		selection plan.Selection
		steps     []string
		leftOut   int
		err       string
	}{
		{"all", plan.Selection{}, []string{"default/old-1", "default/web-1", "default/web-2", "shop/db-1"}, 0, ""},
		{"a name, in any namespace", plan.Selection{Targets: []string{"db-1"}}, []string{"shop/db-1"}, 3, ""},
		{"a namespace and a name", plan.Selection{Targets: []string{"shop/db-1"}}, []string{"shop/db-1"}, 3, ""},
		{"an address", plan.Selection{Targets: []string{"VirtualMachine/default/web-1"}}, []string{"default/web-1"}, 3, ""},
		{"a glob", plan.Selection{Targets: []string{"web-?"}}, []string{"default/web-1", "default/web-2"}, 2, ""},
		{"several, one of them of the host alone", plan.Selection{Targets: []string{"old-1", "shop/*"}}, []string{"default/old-1", "shop/db-1"}, 2, ""},
		{"all but one", plan.Selection{Excludes: []string{"web-1"}}, []string{"default/old-1", "default/web-2", "shop/db-1"}, 1, ""},
		{"an exclude beats a target", plan.Selection{Targets: []string{"web-*"}, Excludes: []string{"web-2"}}, []string{"default/web-1"}, 3, ""},
		{"misspelt", plan.Selection{Targets: []string{"web1"}}, nil, 0, "--target web1: no VM of this revision or of the host is named so; did you mean default/web-1?"},
		{"the wrong namespace", plan.Selection{Excludes: []string{"default/db-1"}}, nil, 0, "--exclude default/db-1: no VM of this revision or of the host is named so; did you mean shop/db-1?"},
		{"nothing like it", plan.Selection{Targets: []string{"zzzzzz"}}, nil, 0, "--target zzzzzz: no VM of this revision or of the host is named so"},
		{"no pattern", plan.Selection{Targets: []string{"web-["}}, nil, 0, `--target "web-[": want NAME`},
		{"too many parts", plan.Selection{Targets: []string{"a/b/c/d"}}, nil, 0, `--target "a/b/c/d": want NAME`},
	} {
		p, err := plan.Build(want, have, plan.Options{Revision: "rev", Selection: test.selection})
		if test.err != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: error %v, want %q", test.reason, err, test.err)
			}
			continue
		}
		if err != nil || !slices.Equal(names(p), test.steps) {
			t.Errorf("%s: steps %v, error %v, want %v", test.reason, names(p), err, test.steps)
			continue
		}
		if got := leftOut(p); got != test.leftOut {
			t.Errorf("%s: %d left out, want %d", test.reason, got, test.leftOut)
		}
	}
}

func leftOut(p *plan.Plan) int {
	if p.Partial == nil {
		return 0
	}
	return p.Partial.LeftOut
}

// TestSelectionIsPartOfThePlan: its ID, whatever the order of the patterns, and what people read.
func TestSelectionIsPartOfThePlan(t *testing.T) {
	want := desired(t, manifest("a", "Always", "128Mi"), manifest("b", "Always", "128Mi"))
	with := func(selection plan.Selection) *plan.Plan {
		p, err := plan.Build(want, plan.Observed{}, plan.Options{Revision: "rev", Selection: selection})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	all, ab, ba, globbed := with(plan.Selection{}), with(plan.Selection{Targets: []string{"a", "b"}}), with(plan.Selection{Targets: []string{"b", "a", "b"}}), with(plan.Selection{Targets: []string{"*"}})
	if ab.ID != ba.ID || ab.ID == all.ID || globbed.ID == all.ID {
		t.Errorf("IDs: all %s, a b %s, b a %s, * %s", all.ID, ab.ID, ba.ID, globbed.ID)
	}
	if all.Steps[0].ID != ab.Steps[0].ID {
		t.Error("a step's ID depends on what else was selected; an approval of it would not")
	}
	var text strings.Builder
	if err := with(plan.Selection{Excludes: []string{"b"}}).Text(&text, plan.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	if said := "This plan is partial: it is about --exclude b; 1 other VM that would change or is held is left out."; !strings.Contains(text.String(), said) {
		t.Errorf("the text does not say %q:\n%s", said, text.String())
	}
}

// TestUnknownHostRefusesNoTarget: nobody can tell what such a host has.
func TestUnknownHostRefusesNoTarget(t *testing.T) {
	p, err := plan.Build(desired(t, manifest("a", "Always", "128Mi")), plan.Observed{Unknown: "down"}, plan.Options{Selection: plan.Selection{Targets: []string{"gone"}}})
	if err != nil || p.Unknown == "" {
		t.Errorf("plan %v, error %v", p, err)
	}
	var unmatched *plan.UnmatchedError
	if _, err := plan.Build(desired(t, manifest("a", "Always", "128Mi")), plan.Observed{}, plan.Options{Selection: plan.Selection{Targets: []string{"gone"}}}); !errors.As(err, &unmatched) {
		t.Errorf("error %v", err)
	}
}

func TestNearMisses(t *testing.T) {
	var known []schemas.Address
	for _, name := range []string{"a/web-1", "b/web-1", "c/web-1", "d/web-1", "a/web-2"} {
		address, err := schemas.ParseAddress("VirtualMachine/" + name)
		if err != nil {
			t.Fatal(err)
		}
		known = append(known, address)
	}
	if got, want := plan.NearMisses("x/web-1", known), []string{"a/web-1", "b/web-1", "c/web-1"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
