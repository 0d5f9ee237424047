package schemas_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	_ "time/tzdata" // the same zones wherever the test runs

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gitvirt/gitvirt/schemas"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestDiagnostics reads the files of each archive together and compares what is said about them.
func TestDiagnostics(t *testing.T) {
	archives, err := filepath.Glob("testdata/diagnostics/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var files, lived []*schemas.File
			want := -1
			for i, f := range archive.Files {
				name, before := strings.CutPrefix(f.Name, "lived/")
				switch {
				case f.Name == "want":
					want = i
				case before:
					lived = append(lived, parseFrom(name, f.Data))
				default:
					files = append(files, parseFrom(name, f.Data))
				}
			}
			got := describe(schemas.Assemble(files, holdingAll(lived)))
			if strings.Contains(got, "hush") { // every secret value in the archives is made of this word
				t.Errorf("a secret is shown:\n%s", got)
			}
			if *update {
				archive.Files[want].Data = []byte(got)
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(archive.Files[want].Data), got); diff != "" {
				t.Errorf("differs (-want +got), run go test -update when it is meant:\n%s", diff)
			}
		})
	}
}

// parseFrom reads a file of an archive; those of a source are below @SOURCE.
func parseFrom(name string, content []byte) *schemas.File {
	if rest, ok := strings.CutPrefix(name, "@"); ok {
		source, path, _ := strings.Cut(rest, "/")
		return schemas.ParseFrom(source, path, content)
	}
	return schemas.Parse(name, content)
}

// living is what lives, by its address.
type living map[schemas.Address]schemas.Held

func (l living) Holder(address schemas.Address) (held schemas.Held, lives bool) {
	held, lives = l[address]
	return held, lives
}

func (l living) Machines(visit func(schemas.Address, schemas.Held)) {
	for address, held := range l {
		if address.IsMachine() {
			visit(address, held)
		}
	}
}

// holdingAll makes everything live that files asked for before.
func holdingAll(lived []*schemas.File) schemas.Option {
	held := living{}
	desired := schemas.Assemble(lived)
	for _, vm := range desired.VMs {
		held[vm.Address] = schemas.Held{Source: vm.Position.Source, Record: vm.Record}
	}
	for _, object := range desired.Objects {
		held[object.Address] = schemas.Held{Source: object.Position.Source, Record: object.Content}
	}
	return schemas.Holding(held)
}

// describe writes down everything about a desired state but the objects themselves.
func describe(d *schemas.Desired) string {
	var b strings.Builder
	for _, diagnostic := range d.Diagnostics {
		fmt.Fprintln(&b, diagnostic.Error())
	}
	for _, vm := range d.VMs {
		fmt.Fprintf(&b, "vm %s %s %s\n", vm.Address, vm.RunStrategy, vm.Position)
	}
	for _, broken := range d.Broken {
		fmt.Fprintf(&b, "broken %s %s\n", broken.Address, broken.Position)
	}
	for _, opaque := range d.Opaque {
		fmt.Fprintf(&b, "opaque %s\n", opaque)
	}
	if d.HasFleet {
		fmt.Fprintf(&b, "fleet %s platform=%s drift=%s branch=%s\n", d.Fleet.Name, d.Fleet.Spec.Platform, d.Fleet.Spec.Drift, d.Fleet.Spec.Status.Branch)
	}
	if d.Fleet.Spec.Policy.Doubt != "" {
		fmt.Fprintf(&b, "doubt %s\n", d.Fleet.Spec.Policy.Doubt)
	}
	return b.String()
}
