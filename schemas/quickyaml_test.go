package schemas

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// dump writes down everything about a node that the package looks at.
func dump(b *strings.Builder, n *yaml.Node, depth int) {
	fmt.Fprintf(b, "%*s%d %s %q style=%d %d:%d\n", depth, "", n.Kind, n.Tag, n.Value, n.Style, n.Line, n.Column)
	for _, child := range n.Content {
		dump(b, child, depth+1)
	}
}

// sameAsLibrary reads text both ways, and reports whether the quick way could.
func sameAsLibrary(t *testing.T, text []byte) bool {
	t.Helper()
	root, ok := quickYAML(text)
	if !ok {
		return false
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Errorf("the library refuses what quickYAML reads: %v\n%s", err, text)
		return true
	}
	var quick, library strings.Builder
	dump(&quick, root, 0)
	if len(document.Content) == 1 {
		dump(&library, document.Content[0], 0)
	}
	if quick.String() != library.String() {
		t.Errorf("%s\nlibrary:\n%s\nquickYAML:\n%s", text, &library, &quick)
	}
	return true
}

func TestQuickYAML(t *testing.T) {
	for _, test := range []struct {
		reason, text string
		quick        bool
	}{
		{"a mapping", "a: b\nc: d\n", true},
		{"nested, with comments and empty lines", "# top\na: # here\n  b: c # there\n\n  # below\n  d: e#f\ng: h\n", true},
		{"a list as deep as its key", "a:\n- b\n- c: d\n  e: f\ng: h\n", true},
		{"a list deeper than its key", "a:\n  - b: c\n    d:\n    - e\n  -\n    f: g\nh: 1\n", true},
		{"types", "a: 1\nb: 01\nc: 1.5\nd: true\ne: yes\nf: null\ng: 2024-01-02\nh: 0x1F\ni: 1e3\nj: 10.0.2.0/24\nk: 512Mi\nl: .inf\nm: 1_000\n1: 2\ntrue: x\nn: 12:30:45\no: 5d307ca9-b3ef\n", true},
		{"quotes", "a: \"b: c # d\"\nb: 'x' # y\nc: \"\"\n", true},
		{"escapes", "a: \"b\\n\"\n", false},
		{"doubled quotes", "a: 'it''s'\n", false},
		{"empty collections", "a: {}\nb: []\nc:\n- {}\n", true},
		{"flow style", "a: {b: c}\n", false},
		{"a literal block", "a: |\n  b\n\n    c\n  d # e\n\nf: |-\n    g\n\n\nh: i\n", true},
		{"a literal block with a comment after it", "a: |\n  b\n # c\nd: e\n", true},
		{"a literal block in a list", "- |\n x\n- a: |-\n    y\n  b: c\n", true},
		{"a literal block with leading empty lines", "a: |\n\n\n  b\n", true},
		{"an empty literal block", "a: |\nb: c\n", false},
		{"a folded block", "a: >\n  b\n", false},
		{"a value that goes on", "a: b\n  c\n", false},
		{"nothing", "a:\nb: c\n", false},
		{"anchors", "a: &x b\nc: *x\n", false},
		{"a tab", "a:\tb\n", false},
		{"no newline at the end", "a: b", false},
		{"a marker", "---\na: b\n", true},
		{"a colon in a value", "a: b: c\n", false},
		{"a colon that is none", "a: http://b:80/c\n", true},
		{"outdented too little", "a:\n    b: c\n  d: e\n", false},
		{"a list after a value", "a: b\n- c\n", false},
		{"keys and items mixed", "- a\nb: c\n", false},
		{"letters beyond ASCII", "a: ä\n", false},
		{"merge keys", "<<: {}\n", false},
	} {
		if got := sameAsLibrary(t, []byte(test.text)); got != test.quick {
			t.Errorf("%s: quick=%v, want %v", test.reason, got, test.quick)
		}
	}
}

// TestQuickYAMLReadsManifests: the examples of KubeVirt are all of the kind that is read quickly.
func TestQuickYAMLReadsManifests(t *testing.T) {
	for _, text := range manifests(t) {
		if !sameAsLibrary(t, text) {
			t.Errorf("left to the library:\n%s", text)
		}
	}
}

func manifests(t testing.TB) [][]byte {
	paths, _ := filepath.Glob("testdata/conformance/*.yaml")
	var texts [][]byte
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}

// FuzzQuickYAML: what quickYAML reads, it reads as the library does.
func FuzzQuickYAML(f *testing.F) {
	for _, text := range manifests(f) {
		f.Add(text)
	}
	f.Add([]byte("a: 1\nb:\n- c: \"d\"\n  e: |-\n    f\n\n     g\n- 'h' # i\n"))
	f.Add([]byte("- a\n-\n  b: {}\n- c: []\n  d:\n  - e\n"))
	f.Fuzz(func(t *testing.T, text []byte) { sameAsLibrary(t, text) })
}
