package plan_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/plan"
)

func planSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(plan.JSONSchema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("plan.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("plan.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validate(t interface{ Errorf(string, ...any) }, schema *jsonschema.Schema, encoded []byte) {
	instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err == nil {
		err = schema.Validate(instance)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, encoded)
	}
}

// TestJSONIsWhatTheSchemaSays: the goldens, any plan, and the other way round: what is no plan is refused.
func TestJSONIsWhatTheSchemaSays(t *testing.T) {
	schema := planSchema(t)
	golden, err := os.ReadFile("testdata/story.json")
	if err != nil {
		t.Fatal(err)
	}
	validate(t, schema, golden)
	rapid.Check(t, func(rt *rapid.T) {
		encoded, err := json.Marshal(drawnPlan(rt))
		if err != nil {
			rt.Fatal(err)
		}
		validate(rt, schema, encoded)
	})
	for _, edit := range [][2]string{{`"2.1"`, `"3.0"`}, {`"restart"`, `"reboot"`}, {`"actions"`, `"action_list"`}, {`"before"`, `"was"`}} {
		instance, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.Replace(string(golden), edit[0], edit[1], 1)))
		if err != nil {
			t.Fatal(err)
		}
		if schema.Validate(instance) == nil {
			t.Errorf("%s in place of %s is let through", edit[1], edit[0])
		}
	}
}

// TestPublishedSchemaIsOurs: what stands in the documents is what the program knows.
func TestPublishedSchemaIsOurs(t *testing.T) {
	published, err := os.ReadFile("../docs/schemas/" + plan.SchemaName)
	if err != nil || !bytes.Equal(published, plan.JSONSchema()) {
		t.Errorf("docs/schemas/%s is stale: run make generate (%v)", plan.SchemaName, err)
	}
}

func generic(t *rapid.T, encoded []byte) (out any) {
	if err := json.Unmarshal(encoded, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestJSONIsReadBack: nothing but the machines is lost.
func TestJSONIsReadBack(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawnPlan(rt)
		encoded, err := json.Marshal(p)
		if err != nil {
			rt.Fatal(err)
		}
		read, err := plan.ReadJSON(encoded)
		if err != nil {
			rt.Fatal(err)
		}
		again, err := json.Marshal(read)
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(generic(rt, encoded), generic(rt, again)); diff != "" {
			rt.Errorf("written again (-first +second):\n%s", diff)
		}
		var direct bytes.Buffer
		if err := p.JSON(&direct, ""); err != nil || strings.TrimSpace(direct.String()) != string(encoded) {
			rt.Errorf("JSON writes something else: %v", err)
		}
	})
	p := story(t)
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	read, err := plan.ReadJSON(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, read, cmpopts.IgnoreFields(plan.Step{}, "VM")); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	if _, err := plan.ReadJSON([]byte(`{"format_version":"1.0","steps":[]}`)); err == nil || !strings.Contains(err.Error(), `"1.0"`) {
		t.Errorf("an old format: %v", err)
	}
}

// TestJSONMasksWhatIsSensitive: as Terraform does.
func TestJSONMasksWhatIsSensitive(t *testing.T) {
	p := &plan.Plan{FormatVersion: plan.FormatVersion, Steps: []plan.Step{{Action: plan.ActionReplace, Define: true, Power: plan.PowerCycle, Changes: []plan.Change{
		{Path: "a", Sensitive: true},
		{Path: "b", After: map[string]any{"userData": "(sensitive)", "url": "https://a/b?(sensitive)", "list": []any{"x", "(sensitive)"}, "plain": "x"}, Consequence: plan.ConsequenceReplace},
	}}}}
	encoded, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"path":"a","before":null,"after":null,"before_sensitive":true,"after_sensitive":true`,
		`"after_sensitive":{"list":[false,true],"url":true,"userData":true}`,
		`"actions":["stop","delete","create","start"]`, `"replace_paths":["b"]`,
	} {
		if !strings.Contains(string(encoded), want) {
			t.Errorf("no %s in\n%s", want, encoded)
		}
	}
}

// TestJSONIsAsLargeAsTheChange: 5,000 machines of which one changes are one step.
func TestJSONIsAsLargeAsTheChange(t *testing.T) {
	have := running(t, manifest("a", "Always", "128Mi"), manifest("b", "Always", "128Mi"))
	encoded, err := json.Marshal(build(t, desired(t, fleet, manifest("a", "Always", "256Mi"), manifest("b", "Always", "128Mi")), have))
	if err != nil {
		t.Fatal(err)
	}
	if len(encoded) > 1600 {
		t.Errorf("%d bytes:\n%s", len(encoded), encoded)
	}
}
