package schemas

import (
	"os"
	"reflect"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// TestSupportTableIsComplete holds every leaf of KubeVirt's VirtualMachineInstanceSpec against the table: each is
// either carried out or refused, none is undecided.
func TestSupportTableIsComplete(t *testing.T) {
	text, err := os.ReadFile("testdata/vmispec-paths.tsv")
	if err != nil {
		t.Fatal(err)
	}
	tree := &supportNode{}
	tree.add(VMISupport(), "")
	leaves := 0
	for line := range strings.Lines(string(text)) {
		path, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if path == "" || strings.HasPrefix(path, "#") {
			continue
		}
		leaves++
		at, status := tree, SupportUndecided
		for name := range strings.SplitSeq(strings.NewReplacer("[]", "", "{}", "").Replace(path), ".") {
			at, status = at.below(name, status)
		}
		if status == SupportUndecided {
			t.Errorf("%s is not in the support table", path)
		}
	}
	if leaves < 300 {
		t.Errorf("only %d leaves read", leaves)
	}
}

// TestSupportTableNamesRealFields catches rows with typing mistakes.
func TestSupportTableNamesRealFields(t *testing.T) {
	check := func(root reflect.Type, rows []Support) {
		seen := map[string]bool{}
		for _, row := range rows {
			if seen[row.Path] {
				t.Errorf("%s is in the table twice", row.Path)
			}
			seen[row.Path] = true
			if row.Status == SupportRefused && row.Instead == "" {
				t.Errorf("%s is refused without a way out", row.Path)
			}
			info := infoOf(root)
			for name := range strings.SplitSeq(row.Path, ".") {
				for info.shape == shapePointer || info.shape == shapeSlice {
					info = info.elem
				}
				i, ok := info.byName[name]
				if !ok {
					t.Errorf("%s: %s has no field %s", row.Path, info.typ, name)
					break
				}
				info = info.fields[i].info
			}
		}
	}
	check(reflect.TypeFor[kubevirtv1.VirtualMachineInstanceSpec](), VMISupport())
	check(reflect.TypeFor[kubevirtv1.VirtualMachine](), append(VMSupport(), objectSupport()...))
}

// TestFieldSetHoldsEveryStruct makes sure that no struct has more fields than fieldSet has bits.
func TestFieldSetHoldsEveryStruct(t *testing.T) {
	seen := map[*typeInfo]bool{}
	var walk func(*typeInfo)
	walk = func(info *typeInfo) {
		if info == nil || seen[info] {
			return
		}
		seen[info] = true
		if len(info.fields) > 128 {
			t.Errorf("%s has %d fields", info.typ, len(info.fields))
		}
		walk(info.elem)
		for _, f := range info.fields {
			walk(f.info)
		}
	}
	walk(infoOf(reflect.TypeFor[kubevirtv1.VirtualMachine]()))
	walk(infoOf(reflect.TypeFor[kubevirtv1.VirtualMachineInstance]()))
}

func TestClosest(t *testing.T) {
	candidates := []string{"running", "runStrategy", "template", "macAddress", "cpu"}
	for _, test := range []struct{ word, want, reason string }{
		{"Running", "running", "another case"},
		{"runStratgy", "runStrategy", "a letter is missing"},
		{"tempalte", "template", "two letters are swapped"},
		{"mac", "macAddress", "a beginning"},
		{"ram", "", "nothing is near"},
		{"", "", "nothing to go by"},
		{strings.Repeat("x", 1<<20), "", "too long to compare"},
	} {
		if got := closest(test.word, candidates); got != test.want {
			t.Errorf("%s: closest(%.20q) = %q, want %q", test.reason, test.word, got, test.want)
		}
	}
}

func TestAppendString(t *testing.T) {
	for _, test := range []struct{ in, want, reason string }{
		{"plain", `"plain"`, "nothing to escape"},
		{"a\"b\\c", `"a\"b\\c"`, "JSON's own"},
		{"<&>", `"\u003c\u0026\u003e"`, "XML's"},
		{"ä\n\x7f", `"\u00e4\u000a\u007f"`, "outside printable ASCII"},
		{"😀", `"\ud83d\ude00"`, "a surrogate pair"},
	} {
		if got := string(appendString(nil, test.in)); got != test.want {
			t.Errorf("%s: %s, want %s", test.reason, got, test.want)
		}
	}
}
