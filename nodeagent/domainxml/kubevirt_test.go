package domainxml_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCorpusIsKubeVirts asks KubeVirt's own converter (hack/kubevirt.sh, named by GITVIRT_KUBEVIRT; `make conformance`) for
// the domains of all examples and compares them with what is kept in testdata.
func TestCorpusIsKubeVirts(t *testing.T) {
	program := os.Getenv("GITVIRT_KUBEVIRT")
	if program == "" {
		t.Skip("GITVIRT_KUBEVIRT does not name KubeVirt's converter: make conformance")
	}
	wanted := map[string]facts{}
	manifests := map[bool][]string{}
	dir := t.TempDir()
	for _, example := range append(corpus(t), examples(t)...) {
		name := strings.TrimSuffix(example.name, " on a block device")
		path := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(path, []byte(example.manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "vm-cirros-csmall" { // KubeVirt has no words for a VM that repeats what its instancetype says
			continue
		}
		manifests[example.block] = append(manifests[example.block], path)
		wanted[example.name] = example.want
	}
	for block, paths := range manifests {
		out, suffix := filepath.Join(dir, "file"), ""
		command := exec.Command(program, append([]string{"convert", out}, paths...)...)
		if block {
			out, suffix = filepath.Join(dir, "block"), " on a block device"
			command = exec.Command(program, append([]string{"convert", out}, paths...)...)
			command.Env = append(os.Environ(), "BLOCK=1")
		}
		if printed, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, printed)
		}
		for _, path := range paths {
			name := strings.TrimSuffix(filepath.Base(path), ".yaml")
			document, err := os.ReadFile(filepath.Join(out, name+".xml"))
			if err != nil {
				t.Error(err)
				continue
			}
			got, want := factsOf(t, string(document)), wanted[name+suffix]
			for _, fact := range slices.Sorted(maps.Keys(union(got, want))) {
				if got[fact] != want[fact] {
					t.Errorf("%s: %s: KubeVirt has %q, testdata %q", name+suffix, fact, got[fact], want[fact])
				}
			}
		}
	}
}
