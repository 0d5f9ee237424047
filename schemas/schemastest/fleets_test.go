package schemastest_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/schemastest"
)

// TestFleetsHaveNoMistakes: what is drawn is what people could have written.
func TestFleetsHaveNoMistakes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := schemastest.Draw(t)
		for range 3 {
			want := schemas.Assemble(fleet.Files())
			if want.Diagnostics.Errors() > 0 {
				t.Fatal(want.Diagnostics)
			}
			if len(want.VMs) != len(fleet.Names()) {
				t.Fatalf("%d machines of %d", len(want.VMs), len(fleet.Names()))
			}
			fleet = fleet.Edit(t)
		}
	})
}
