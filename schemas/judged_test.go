package schemas_test

import (
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestJudgedBy assembles files whose Fleet does not count.
func TestJudgedBy(t *testing.T) {
	parse := func(spec string) []*schemas.File {
		return []*schemas.File{schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: shop}\nspec: "+spec+"\n"))}
	}
	base := schemas.Assemble(parse("{drift: report}")).Fleet
	got := schemas.Assemble(parse("{drift: correct, pullRequests: {forks: true}}"), schemas.JudgedBy(base))
	if got.Diagnostics.Errors() > 0 {
		t.Fatal(got.Diagnostics)
	}
	if got.Fleet != base || got.Fleet.Spec.PullRequests.Forks {
		t.Errorf("%+v counts", got.Fleet.Spec)
	}
	if got.Proposed == nil || got.Proposed.Spec.Drift != schemas.DriftCorrect || !got.Proposed.Spec.PullRequests.Forks {
		t.Errorf("%+v is proposed", got.Proposed)
	}
}

// TestTakesCommands: off unless it says so, and where nobody can rely on what it says.
func TestTakesCommands(t *testing.T) {
	const on = "spec: {pullRequests: {commands: true}}"
	for _, test := range []struct {
		name string
		spec []string
		want bool
	}{
		{"nothing said", []string{"spec: {}"}, false},
		{"off", []string{"spec: {pullRequests: {commands: false}}"}, false},
		{"on", []string{on}, true},
		{"on, beside a mistake", []string{"spec: {pullRequests: {commands: true, fork: true}}"}, false},
		{"no truth value", []string{`spec: {pullRequests: {commands: "yes"}}`}, false},
		{"two Fleets", []string{on, on}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var files []*schemas.File
			for i, spec := range test.spec {
				name := string(rune('a'+i)) + ".yaml"
				files = append(files, schemas.Parse(name, []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: shop}\n"+spec+"\n")))
			}
			if got := schemas.Assemble(files).Fleet.TakesCommands(); got != test.want {
				t.Errorf("it takes commands: %t", got)
			}
		})
	}
}
