package schemas_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gitvirt/gitvirt/schemas"
)

// FuzzParse: nothing panics, every mistake has a place, no address is both good and broken, and records read back.
func FuzzParse(f *testing.F) {
	manifests, _ := filepath.Glob("testdata/conformance/*.yaml")
	for _, path := range manifests {
		content, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content, false)
	}
	archives, _ := filepath.Glob("testdata/diagnostics/*.txtar")
	for _, path := range archives {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			f.Add(file.Data, filepath.Ext(file.Name) == ".json")
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, isJSON bool) {
		name := "x.yaml"
		if isJSON {
			name = "x.json"
		}
		file := schemas.Parse(name, content)
		desired := schemas.Assemble([]*schemas.File{file, schemas.Parse("y.yaml", []byte(instancetypes))})
		for _, d := range desired.Diagnostics {
			if d.Position.Line < 1 || d.Message == "" {
				t.Errorf("%+v", d)
			}
		}
		errors := desired.Diagnostics.Errors()
		if errors == 0 && (file.Opaque || len(desired.Broken) > 0) {
			t.Errorf("opaque=%v, %d broken and no mistake", file.Opaque, len(desired.Broken))
		}
		broken := map[schemas.Address]bool{}
		for _, b := range desired.Broken {
			broken[b.Address] = true
		}
		for _, vm := range desired.VMs {
			if broken[vm.Address] {
				t.Errorf("%s is both good and broken", vm.Address)
			}
			if !json.Valid(vm.Record) {
				t.Errorf("record %s", vm.Record)
			}
			if _, err := schemas.ReadRecord(vm.Record, true); err != nil {
				t.Error(err)
			}
		}
	})
}
