package schemas

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// compiled returns the schema of a kind, or that of all kinds for "", ready to validate.
func compiled(t *testing.T, kind string) *jsonschema.Schema {
	t.Helper()
	text, err := JSONSchema(kind)
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("schema.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("schema.json")
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return schema
}

// valid reports what a schema says of a YAML document.
func valid(t *testing.T, schema *jsonschema.Schema, document string) error {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value)
}

// TestSchemaTakesTheExamples validates every manifest that there is: gitvirt's examples and
// KubeVirt's.
func TestSchemaTakesTheExamples(t *testing.T) {
	schema := compiled(t, "")
	var files []string
	for _, pattern := range []string{"testdata/conformance/*.yaml", "../examples/*/*.yaml", "../examples/*/*/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, slices.DeleteFunc(found, func(file string) bool { return filepath.Base(filepath.Dir(file)) == "ci" })...)
	}
	documents := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range splitDocuments(content) {
			text := string(part.text)
			if strings.TrimSpace(strings.Trim(text, "-\n")) == "" {
				continue
			}
			documents++
			if err := valid(t, schema, text); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if documents < 20 {
		t.Errorf("only %d documents read", documents)
	}
}

func TestSchemaRefuses(t *testing.T) {
	const good = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web-1}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        cpu: {cores: 2}
        memory: {guest: 1Gi}
        devices:
          disks: [{name: root, disk: {bus: virtio}}]
          interfaces: [{name: default, masquerade: {}, macAddress: "02:00:00:00:00:01"}]
      networks: [{name: default, pod: {}}]
      volumes: [{name: root, emptyDisk: {capacity: 2Gi}}]
`
	schemas := []*jsonschema.Schema{compiled(t, ""), compiled(t, "vm")}
	for _, schema := range schemas {
		if err := valid(t, schema, good); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct{ reason, old, new string }{
		{"a misspelt field", "memory:", "memroy:"},
		{"another case", "runStrategy: Always", "runStrategy: always"},
		{"the wrong type", "cores: 2", "cores: two"},
		{"too few", "cores: 2", "cores: 0"},
		{"a quantity with an unknown suffix", "1Gi", "1Gb"},
		{"a MAC address that is none", "02:00:00:00:00:01", "02:00:00:00:00"},
		{"a required field is missing", "{name: root, disk", "{disk"},
		{"an unknown API version", "kubevirt.io/v1", "kubevirt.io/v7"},
		{"a name that would be another one each time", "{name: web-1}", "{name: web-1, generateName: web-}"},
		{"a field that is known and not carried out", "memory: {", "launchSecurity: {sev: {}}, memory: {"},
	} {
		bad := strings.Replace(good, test.old, test.new, 1)
		if test.reason == "a field that is known and not carried out" {
			bad = strings.Replace(good, "networks:", "resourceClaims: [{name: gpu}]\n      networks:", 1)
		}
		for _, schema := range schemas {
			if err := valid(t, schema, bad); err == nil {
				t.Errorf("%s was taken", test.reason)
			}
		}
	}
}

// TestSchemasAreValid compiles the schema of every kind and checks it against the draft that it names.
func TestSchemasAreValid(t *testing.T) {
	for _, kind := range DescribedKinds() {
		compiled(t, kind.Name)
		text, err := JSONSchema(kind.Name)
		if err != nil {
			t.Fatal(err)
		}
		again, err := JSONSchema(strings.ToLower(kind.Name))
		if err != nil || !bytes.Equal(text, again) {
			t.Errorf("%s: not the same twice (%v)", kind.Name, err)
		}
		if !json.Valid(text) {
			t.Errorf("%s: not JSON", kind.Name)
		}
	}
	if _, err := JSONSchema("virtualmachin"); err == nil || !strings.Contains(err.Error(), "did you mean virtualmachine") {
		t.Errorf("unknown kind: %v", err)
	}
}
