package plan_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// rowFor returns the path of the row that decides about a field of a machine, the way people look it up: the longest path
// that the field is or is below of.
func rowFor(path string) string {
	best := ""
	for _, row := range plan.Rows() {
		if (path == row.Path || strings.HasPrefix(path, row.Path+".")) && len(row.Path) > len(best) {
			best = row.Path
		}
	}
	return best
}

// TestEveryFieldHasARow: the leaf paths of KubeVirt's API, and all that a VirtualMachine has around them.
func TestEveryFieldHasARow(t *testing.T) {
	leaves, err := os.ReadFile("../schemas/testdata/vmispec-paths.tsv")
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	for line := range strings.Lines(string(leaves)) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if path == "" || strings.HasPrefix(path, "#") {
			continue
		}
		fields++
		path = "spec." + strings.NewReplacer("[]", "", "{}", "").Replace(path)
		field, err := schemas.Describe("vmi."+path, false)
		if err != nil {
			t.Fatal(err)
		}
		if row := rowFor(path); row == "" && field.Support != schemas.SupportRefused {
			t.Errorf("%s has no row", path)
		}
	}
	if fields != 370 {
		t.Errorf("%d leaf paths, want 370", fields)
	}
	for _, kind := range []string{"vm", "vmi"} {
		root, err := schemas.Describe(kind, true)
		if err != nil {
			t.Fatal(err)
		}
		everyLeaf(root, func(field *schemas.Field) {
			path := strings.Replace(field.Path, "spec.template.", "spec.", 1)
			path = strings.Replace(path, "spec.spec.", "spec.", 1)
			path = strings.Replace(path, "spec.metadata", "metadata", 1)
			if field.Support == schemas.SupportRefused || field.Support == schemas.SupportIgnored || path == "apiVersion" || path == "kind" {
				return
			}
			if rowFor(path) == "" {
				t.Errorf("%s: %s has no row", kind, field.Path)
			}
		})
	}
}

func everyLeaf(field *schemas.Field, visit func(*schemas.Field)) {
	if len(field.Fields) == 0 {
		visit(field)
	}
	for i := range field.Fields {
		everyLeaf(&field.Fields[i], visit)
	}
}

// TestRowsSayWhy: every row explains itself, names a consequence of the closed set, and none is there twice.
func TestRowsSayWhy(t *testing.T) {
	consequences := []plan.Consequence{
		plan.ConsequenceNone, plan.ConsequenceLive, plan.ConsequenceNextBoot, plan.ConsequenceMigrate, plan.ConsequenceRestart,
		plan.ConsequenceReplace, plan.ConsequenceData,
	}
	everything := plan.FromDesired(&schemas.Desired{Fleet: schemas.DefaultFleet()}, "").Live
	last := ""
	for _, row := range plan.Rows() {
		if row.Path <= last {
			t.Errorf("%s is there twice, or out of order", row.Path)
		}
		last = row.Path
		if row.About == "" || !slices.Contains(consequences, row.Consequence) {
			t.Errorf("%s: %q, %q", row.Path, row.Consequence, row.About)
		}
		if strings.ContainsAny(row.About+row.When+row.Loses, "|\n") {
			t.Errorf("%s: its words do not fit into a table", row.Path)
		}
		for _, need := range row.Needs {
			if !everything.Has(need) {
				t.Errorf("%s needs %s, which no host can have", row.Path, need)
			}
		}
		if len(row.Needs) > 0 && row.When == "" {
			t.Errorf("%s needs %v and names no condition", row.Path, row.Needs)
		}
	}
}

// TestUnknownFieldsNeedARestart: what a later version calls something is not harmless before somebody has looked.
func TestUnknownFieldsNeedARestart(t *testing.T) {
	field := &schemas.Field{Kind: "VirtualMachine", Path: "spec.template.spec.later", MachineField: "spec.template.spec.later", Support: schemas.SupportCarried}
	if got := plan.ConsequenceOf(field); got != plan.ConsequenceRestart {
		t.Errorf("%s", got)
	}
}
