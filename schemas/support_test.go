package schemas

import (
	"os"
	"reflect"
	"strings"
	"testing"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// leaf is a line of vmispec-paths.tsv: a field of KubeVirt's VirtualMachineInstanceSpec that holds no others.
type leaf struct {
	path string
	// foreign says that the field belongs to a type of Kubernetes, not of KubeVirt.
	foreign bool
}

func leaves(t testing.TB) []leaf {
	t.Helper()
	text, err := os.ReadFile("testdata/vmispec-paths.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var all []leaf
	for line := range strings.Lines(string(text)) {
		if fields := strings.Split(strings.TrimRight(line, "\n"), "\t"); len(fields) == 3 && !strings.HasPrefix(line, "#") {
			all = append(all, leaf{fields[0], fields[2] == "k8s"})
		}
	}
	return all
}

// TestSupportTableIsComplete holds every leaf of KubeVirt's VirtualMachineInstanceSpec against the table: each is
// carried out, kept or refused, and few are refused.
func TestSupportTableIsComplete(t *testing.T) {
	tree := &supportNode{}
	tree.add(VMISupport(), "")
	all, own := map[SupportStatus]int{}, map[SupportStatus]int{}
	for _, leaf := range leaves(t) {
		at, status := tree, SupportUndecided
		for name := range strings.SplitSeq(strings.NewReplacer("[]", "", "{}", "").Replace(leaf.path), ".") {
			at, status = at.below(name, status)
		}
		if status != SupportCarried && status != SupportKept && status != SupportRefused {
			t.Errorf("%s is not in the support table", leaf.path)
		}
		all[status]++
		if !leaf.foreign {
			own[status]++
		}
	}
	t.Logf("of 370 paths %d are carried out, %d kept, %d refused", all[SupportCarried], all[SupportKept], all[SupportRefused])
	t.Logf("of KubeVirt's own 247 paths %d are carried out, %d kept, %d refused", own[SupportCarried], own[SupportKept], own[SupportRefused])
	if total := own[SupportCarried] + own[SupportKept] + own[SupportRefused]; total != 247 || own[SupportRefused] > 17 {
		t.Errorf("%d of %d paths are refused, at most 17 of 247 may be", own[SupportRefused], total)
	}
}

// TestLeavesAreTheAPIs makes sure that a field which a new version of KubeVirt's API brings is not taken for one that
// is carried out because what holds it is: somebody has to decide about it first.
func TestLeavesAreTheAPIs(t *testing.T) {
	known := map[string]bool{}
	for _, leaf := range leaves(t) {
		known[leaf.path] = true
	}
	var walk func(info *typeInfo, path string)
	walk = func(info *typeInfo, path string) {
		switch info.shape {
		case shapePointer:
			walk(info.elem, path)
			return
		case shapeSlice:
			walk(info.elem, path+"[]")
			return
		case shapeMap:
			path += "{}"
		case shapeStruct:
			for _, f := range info.fields {
				walk(f.info, strings.TrimPrefix(path+"."+f.name, "."))
			}
			if len(info.fields) > 0 {
				return
			}
		}
		if !known[path] {
			t.Errorf("%s is not among the known fields: decide what becomes of it, then list it", path)
		}
		delete(known, path)
	}
	walk(infoOf(reflect.TypeFor[kubevirtv1.VirtualMachineInstanceSpec]()), "")
	for path := range known {
		t.Errorf("%s is listed and no field", path)
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
			if (row.Status == SupportRefused || row.Status == SupportKept) && row.Instead == "" {
				t.Errorf("%s is not carried out, and nothing says why", row.Path)
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
