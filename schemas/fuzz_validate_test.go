package schemas_test

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// specPaths are the fields of KubeVirt's VirtualMachineInstanceSpec that hold no others.
func specPaths(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/vmispec-paths.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for line := range strings.Lines(string(text)) {
		if path, _, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(path, "#") {
			paths = append(paths, path)
		}
	}
	return paths
}

// put sets the field at path, as in volumes[].name, in an object: in the first entry of lists, which are made where
// there are none.
func put(object map[string]any, path string, value any) {
	first, rest, more := strings.Cut(path, ".")
	name, list := strings.CutSuffix(first, "[]")
	name, keyed := strings.CutSuffix(name, "{}")
	var below any
	if more {
		inner, _ := object[name].(map[string]any)
		if entries, ok := object[name].([]any); ok && len(entries) > 0 {
			inner, _ = entries[0].(map[string]any)
		}
		if inner == nil {
			inner = map[string]any{}
		}
		put(inner, rest, value)
		below = inner
	} else {
		below = value
	}
	switch {
	case list:
		object[name] = []any{below}
	case keyed:
		object[name] = map[string]any{"cpu": below}
	default:
		object[name] = below
	}
}

// FuzzValidate sets two fields of a machine that is in order to whatever it likes. Nothing may panic, every mistake has
// a place, and a machine without one has a record that reads back as itself.
func FuzzValidate(f *testing.F) {
	paths := specPaths(f)
	for i := range paths {
		one := []string{"true", `"1Gi"`, `"virtio"`, "{}", "-1", "1"}[i%6]
		f.Add(uint16(i), uint16(i*7+1), one, "x")
	}
	f.Fuzz(func(t *testing.T, first, second uint16, one, two string) {
		spec := map[string]any{
			"domain": map[string]any{
				"memory": map[string]any{"guest": "1Gi"},
				"devices": map[string]any{
					"disks":      []any{map[string]any{"name": "root"}},
					"interfaces": []any{map[string]any{"name": "default", "masquerade": map[string]any{}}},
				},
			},
			"networks": []any{map[string]any{"name": "default", "pod": map[string]any{}}},
			"volumes":  []any{map[string]any{"name": "root", "emptyDisk": map[string]any{"capacity": "1Gi"}}},
		}
		put(spec, paths[int(first)%len(paths)], value(one))
		put(spec, paths[int(second)%len(paths)], value(two))
		manifest, err := json.Marshal(map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": map[string]any{"name": "web"}, "spec": spec,
		})
		if err != nil {
			t.Skip(err)
		}
		file := schemas.Parse("vm.json", manifest)
		for _, d := range file.Diagnostics {
			if d.Position.Line < 1 || d.Position.Column < 1 || d.Message == "" || len(d.Error()) > 4000 {
				t.Errorf("%+v", d)
			}
		}
		if len(file.VMs)+len(file.Broken) != 1 && !file.Opaque {
			t.Errorf("%d machines, %d broken: %s", len(file.VMs), len(file.Broken), manifest)
		}
		var reader schemas.RecordReader
		for _, vm := range file.VMs {
			recorded, err := reader.Read(vm.Record)
			if err != nil {
				t.Fatal(err)
			}
			of, err := reader.Of(vm)
			if err != nil {
				t.Fatal(err)
			}
			if differences := schemas.Compare(recorded, of); len(differences) > 0 {
				t.Errorf("the machine is not its record: %v\n%s", differences, vm.Record)
			}
			read, _, err := schemas.ParseRecord(vm.Record, true)
			if err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(vm.Object.Spec)
			if err != nil {
				t.Fatal(err)
			}
			got, err := json.Marshal(read.Spec)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) && !strings.Contains(string(got), "sha256:") {
				t.Errorf("the record is not the machine:\n%s\n%s", want, got)
			}
		}
	})
}

// value reads text as JSON, and takes it for a string when it is none.
func value(text string) any {
	var v any
	if json.Unmarshal([]byte(text), &v) == nil {
		return v
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return n
	}
	return text
}
