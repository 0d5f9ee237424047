package plan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
)

func TestFile(t *testing.T) {
	p := build(t, desired(t, fleet, manifest("a", "Always", "128Mi"), manifest("b", "Halted", "128Mi")), running(t, manifest("b", "Always", "64Mi")))
	origin := plan.Origin{Git: "https://git.example.com/fleet.git", Branch: "main", Path: "hosts/one", Revision: p.Revision}
	content, err := plan.EncodeFile(p, origin, "v1")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("top-secret-marker")) {
		t.Error("user data is in the file")
	}
	file, err := plan.DecodeFile(content)
	if err != nil {
		t.Fatal(err)
	}
	if file.Source.String() != "https://git.example.com/fleet.git, folder hosts/one" || file.Plan.ID != p.ID || len(file.Plan.Steps) != len(p.Steps) || file.Plan.Steps[0].ID != p.Steps[0].ID {
		t.Errorf("read back: %+v", file)
	}
	again, err := json.Marshal(file.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if first, _ := json.Marshal(p); !bytes.Equal(first, again) {
		t.Errorf("the plan reads back as another one:\n%s\n%s", first, again)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, content); err != nil {
		t.Fatal(err)
	}
	if _, err := plan.DecodeFile(compact.Bytes()); err != nil {
		t.Errorf("white space is no edit: %v", err)
	}
	for _, test := range []struct{ reason, old, new, err string }{
		{"cut short", string(content[len(content)/2:]), "", "the plan is damaged"},
		{"empty", string(content), "", "not a plan that was saved"},
		{"another kind of JSON", `"format": "gitvirt-plan"`, `"format": "terraform"`, "not a plan that was saved"},
		{"a step made harmless", `"restart"`, `"update"`, "edited or damaged"},
		{"another repository", "git.example.com", "git.example.net", "edited or damaged"},
		{"no digest", `"digest": "sha256:`, `"digest": "`, "edited or damaged"},
		{"of a newer gitvirt", `"version": "1.0"`, `"version": "2.0"`, "has the format 2.0 of gitvirt v1, and this gitvirt reads 1.0"},
		{"no plan in it", `"plan": {`, `"other": {`, "edited or damaged"},
	} {
		changed := strings.Replace(string(content), test.old, test.new, 1)
		if changed == string(content) {
			t.Errorf("%s: the file does not hold %q", test.reason, test.old)
		}
		_, err := plan.DecodeFile([]byte(changed))
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: error %v, want %q", test.reason, err, test.err)
		}
	}
	if _, err := plan.DecodeFile([]byte("apiVersion: v1\n")); !errors.Is(err, plan.ErrNoPlanFile) {
		t.Errorf("a manifest: %v", err)
	}
}

func FuzzDecodeFile(f *testing.F) {
	p := build(f, desired(f, manifest("a", "Always", "128Mi")), nil)
	content, err := plan.EncodeFile(p, plan.Origin{Directory: "/fleet", Revision: p.Revision}, "v1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add([]byte(`{"format":"gitvirt-plan","version":"1.0","plan":null}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		if file, err := plan.DecodeFile(content); err == nil && file.Plan == nil {
			t.Error("a file without a plan was taken")
		}
	})
}
