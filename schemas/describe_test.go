package schemas

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func TestDescribe(t *testing.T) {
	field, err := Describe("vm.spec.template.spec.domain.cpu", false)
	if err != nil {
		t.Fatal(err)
	}
	if field.Kind != KindVirtualMachine || field.Path != "spec.template.spec.domain.cpu" || field.Type != "object" || field.Support != SupportCarried {
		t.Errorf("%+v", field)
	}
	i := slices.IndexFunc(field.Fields, func(f Field) bool { return f.Name() == "cores" })
	if i < 0 || field.Fields[i].Default != "1" || field.Fields[i].Type != "integer" || !strings.Contains(field.Fields[i].Description, "number of cores") {
		t.Errorf("cores: %+v", field.Fields)
	}
	for _, test := range []struct{ path, typ, reason string }{
		{"vmi.spec.domain.devices.disks[0].disk.bus", "string", "indices are skipped over"},
		{"VirtualMachine.metadata.labels", "map[string]string", "a kind by its name"},
		{"vm.spec.template.spec.volumes", "[]object", "a list"},
		{"vm.spec.template.spec.volumes.persistentVolumeClaim.claimName", "string", "inlined twice"},
		{"vm.spec.template.spec.domain.memory.guest", "quantity", "a quantity"},
		{"instancetype.spec.cpu.guest", "integer", "another API"},
		{"dv.spec.source.http.url", "string", "CDI's API"},
		{"pvc.spec.accessModes", "[]string", "Kubernetes's API"},
		{"vmpool.spec.virtualMachineTemplate.spec.template.spec.domain", "object", "a template in a template"},
		{"fleet.spec.interval", "duration", "gitvirt's own"},
	} {
		field, err := Describe(test.path, false)
		if err != nil || field.Type != test.typ || field.Description == "" {
			t.Errorf("%s: %s: %+v, %v", test.reason, test.path, field, err)
		}
	}
}

func TestDescribeSuggests(t *testing.T) {
	for _, test := range []struct{ path, want string }{
		{"vmm.spec", `unknown kind "vmm"; did you mean`},
		{"gizmo", `unknown kind "gizmo"; known: virtualmachine,`},
		{"vm.spec.template.spec.domain.cpus", `vm.spec.template.spec.domain has no field "cpus"; did you mean "cpu"?`},
		{"vm.spec.domain", `vm.spec has no field "domain"; did you mean template.spec.domain?`},
		{"vm.spec.runStrategy.always", `vm.spec.runStrategy has no field "always": it is a string`},
		{"vm.metadata.labels.app", "nothing is below it but the keys that you choose"},
		{"", "unknown kind"},
		{".", "unknown kind"},
		{"vm.[0]", `has no field ""`},
		{"vm.spec.", `has no field ""`},
		{strings.Repeat("vm.", 1<<16), `has no field "vm"`},
		{"vm..spec", `has no field ""`},
	} {
		if _, err := Describe(test.path, false); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %s", test.path, err, test.want)
		}
	}
}

func TestCompletePath(t *testing.T) {
	for _, test := range []struct {
		typed, want string
		complete    bool
	}{
		{"vmp", "vmpool vmpools vmpref vmp", false},
		{"vm.spec.template.spec.domain.mem", "vm.spec.template.spec.domain.memory", false},
		{"vm.spec.run", "vm.spec.runStrategy vm.spec.running", true},
		{"vm.nope.x", "", true},
	} {
		paths, complete := CompletePath(test.typed)
		if got := strings.Join(paths, " "); got != test.want || complete != test.complete {
			t.Errorf("%s: %s (%v), want %s (%v)", test.typed, got, complete, test.want, test.complete)
		}
	}
}

// TestRecursionEnds describes and writes every kind in full.
func TestRecursionEnds(t *testing.T) {
	for _, kind := range DescribedKinds() {
		field, err := Describe(kind.Name, true)
		if err != nil || len(field.Fields) < 3 {
			t.Errorf("%s: %d fields, %v", kind.Name, len(field.Fields), err)
		}
	}
}

// TestEveryPathIsDescribed finds each leaf of KubeVirt's VirtualMachineInstanceSpec.
func TestEveryPathIsDescribed(t *testing.T) {
	text, err := os.ReadFile("testdata/vmispec-paths.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if path == "" || strings.HasPrefix(path, "#") {
			continue
		}
		path = strings.NewReplacer("[]", "", "{}", "").Replace(path)
		if _, err := Describe("vmi.spec."+path, false); err != nil {
			t.Error(err)
		}
	}
}

// TestRulesNameRealFields catches rows with typing mistakes, defaults that are no value, and patterns that are none.
func TestRulesNameRealFields(t *testing.T) {
	for key, rule := range fieldRules() {
		info := infoOf(key.owner)
		i, ok := info.byName[key.field]
		if !ok {
			t.Errorf("%s has no field %s", key.owner, key.field)
			continue
		}
		if rule.values != nil && rule.fallback != "" && !slices.Contains(rule.values, rule.fallback) {
			t.Errorf("%s.%s: the default %s is none of the values", key.owner, key.field, rule.fallback)
		}
		if _, err := regexp.Compile(rule.pattern); err != nil {
			t.Errorf("%s.%s: %v", key.owner, key.field, err)
		}
		if text, isText := typed(info.fields[i].info, rule.fallback).(string); rule.fallback != "" && isText {
			if shape := structBelow(info.fields[i].info).shape; shape == shapeInt || shape == shapeUint {
				t.Errorf("%s.%s: the default %q is no number", key.owner, key.field, text)
			}
		}
	}
}

// TestRulesAgreeWithTheChecks holds the table of values and defaults against Parse, for every kind: each value is taken
// where it may be written, another one is not, and what is filled in is the default that people are told.
func TestRulesAgreeWithTheChecks(t *testing.T) {
	checked := 0
	for _, kind := range DescribedKinds() {
		var visit func(p fieldPlace)
		visit = func(p fieldPlace) {
			if status := p.support(); status == SupportIgnored || status == SupportRefused {
				return
			}
			rule := p.rule()
			if len(rule.values) > 0 {
				checked++
				for _, value := range rule.values {
					for _, d := range mistakesAt(&kind, p.path, value) {
						if strings.Contains(d.Message, "not one of") || strings.Contains(d.Message, "not carried out") {
							t.Errorf("%s %s: %s is in the table and refused: %s", kind.Name, p.path, value, d.Message)
						}
					}
				}
				if !rule.unchecked && len(mistakesAt(&kind, p.path, "nonsense")) == 0 {
					t.Errorf("%s %s: a value that is not in the table is taken", kind.Name, p.path)
				}
			}
			if shape := structBelow(p.info).shape; len(rule.values) == 0 && shape == shapeString {
				for _, d := range mistakesAt(&kind, p.path, "nonsense") {
					if strings.Contains(d.Message, "is not one of") {
						t.Errorf("%s %s: the table has no values, and one is refused: %s", kind.Name, p.path, d.Message)
					}
				}
			}
			if value, ok := filledIn(&kind, p.path); ok && value != "" && rule.fallback != "" && fmt.Sprint(value) != rule.fallback {
				t.Errorf("%s: %v is filled in, the table says %s", p.path, value, rule.fallback)
			}
			for _, child := range p.children() {
				visit(child)
			}
		}
		visit(rootPlace(&kind))
	}
	if checked < 100 {
		t.Errorf("only %d fields have values", checked)
	}
}

// mistakesAt returns what Parse says about the field at path of an object that has this value there.
func mistakesAt(kind *DescribedKind, path string, value any) Diagnostics {
	var out Diagnostics
	for _, d := range Parse("object.json", objectWith(kind, path, value)).Diagnostics {
		if indices.ReplaceAllString(d.Path, "") == path && d.Severity == SeverityError {
			out = append(out, d)
		}
	}
	return out
}

var indices = regexp.MustCompile(`\[\d+\]`)

// filledIn returns what stands at path after a machine was read that has all above the field but not the field.
func filledIn(kind *DescribedKind, path string) (any, bool) {
	if kind.Name != KindVirtualMachine {
		return nil, false
	}
	file := Parse("vm.json", objectWith(kind, path, nil))
	if len(file.VMs) != 1 {
		return nil, false
	}
	text, err := json.Marshal(file.VMs[0].Object)
	if err != nil {
		return nil, false
	}
	var at any
	if err := json.Unmarshal(text, &at); err != nil {
		return nil, false
	}
	for name := range strings.SplitSeq(path, ".") {
		if list, ok := at.([]any); ok && len(list) > 0 {
			at = list[0]
		}
		object, ok := at.(map[string]any)
		if !ok || object[name] == nil {
			return nil, false
		}
		at = object[name]
	}
	return at, true
}

// objectWith is the manifest of a small object with a value at path, or with all above path when value is nil. What the
// value's neighbours in a machine have to have is filled in.
func objectWith(kind *DescribedKind, path string, value any) []byte {
	p := rootPlace(kind)
	root := map[string]any{"apiVersion": kind.Versions[0], "kind": kind.Name, "metadata": map[string]any{"name": "web-1"}}
	machine := map[string]any{
		"domain": map[string]any{
			"memory": map[string]any{"guest": "64Mi"},
			"devices": map[string]any{
				"disks":      []any{map[string]any{"name": "x"}},
				"interfaces": []any{map[string]any{"name": "x"}},
			},
		},
		"volumes":  []any{map[string]any{"name": "x"}},
		"networks": []any{map[string]any{"name": "x"}},
	}
	if kind.machine != "" {
		below := root
		parts := strings.Split(kind.machine, ".")
		for _, part := range parts[:len(parts)-1] {
			next := map[string]any{}
			below[part], below = next, next
		}
		below[parts[len(parts)-1]] = machine
	}
	if kind.Name == KindVirtualMachine {
		root["spec"].(map[string]any)["runStrategy"] = "Halted"
	}
	at := root
	parts := strings.Split(path, ".")
	for i, part := range parts {
		below := structBelow(p.info)
		p = p.child(below, below.byName[part])
		switch {
		case i == len(parts)-1 && value == nil:
		case i == len(parts)-1:
			if p.info.shape == shapeSlice {
				value = []any{value}
			}
			at[part] = value
		case p.info.shape == shapeSlice:
			if at[part] == nil {
				at[part] = []any{map[string]any{"name": "x"}}
			}
			at = at[part].([]any)[0].(map[string]any)
		default:
			if at[part] == nil {
				at[part] = map[string]any{}
			}
			at = at[part].(map[string]any)
		}
	}
	if kind.machine != "" {
		complete(machine)
	}
	text, err := json.Marshal(root)
	if err != nil {
		panic(err) // only strings and maps
	}
	return text
}

// complete gives the disk, the volume, the interface and the network what they are, unless the value is part of it.
func complete(spec map[string]any) {
	devices := spec["domain"].(map[string]any)["devices"].(map[string]any)
	fill := func(list any, but []string, name string, value any) {
		entry := list.([]any)[0].(map[string]any)
		for key := range entry {
			if slices.Contains(but, key) {
				return
			}
		}
		entry[name] = value
	}
	sources := make([]string, 0, 32)
	for _, f := range infoOf(reflect.TypeFor[kubevirtv1.Volume]()).fields {
		if f.name != "name" {
			sources = append(sources, f.name)
		}
	}
	fill(spec["volumes"], sources, "emptyDisk", map[string]any{"capacity": "1Gi"})
	fill(devices["disks"], []string{"disk", "lun", "cdrom"}, "disk", map[string]any{})
	fill(devices["interfaces"], []string{"masquerade", "bridge", "sriov", "binding"}, "masquerade", map[string]any{})
	fill(spec["networks"], []string{"pod", "multus"}, "pod", map[string]any{})
}
