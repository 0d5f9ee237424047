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
