package plan

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestEverythingThatAStepDoesIsInItsID: a field that is added to steps and forgotten there shows here.
func TestEverythingThatAStepDoesIsInItsID(t *testing.T) {
	id := func(step Step) string {
		p := Plan{Steps: []Step{step}}
		if err := p.identify(); err != nil {
			t.Fatal(err)
		}
		if p.ID == p.Steps[0].ID || len(p.ID) != 32 || len(p.Steps[0].ID) != 32 {
			t.Fatalf("the plan is %s, its step %s", p.ID, p.Steps[0].ID)
		}
		return p.Steps[0].ID
	}
	change := []Change{{Path: "a"}}
	values := map[reflect.Type]any{
		reflect.TypeFor[schemas.Address](): schemas.Address{Name: "a"}, reflect.TypeFor[*schemas.Address](): &schemas.Address{},
		reflect.TypeFor[[]Change](): change, reflect.TypeFor[[]string](): []string{"a"}, reflect.TypeFor[*Pending](): &Pending{},
		reflect.TypeFor[[]Wait](): []Wait{{For: WaitWindow}}, reflect.TypeFor[[]Dependency](): []Dependency{{}},
		reflect.TypeFor[schemas.Ready](): schemas.Ready{Port: 1}, reflect.TypeFor[*Approved](): &Approved{By: "a"}, reflect.TypeFor[*schemas.VM](): &schemas.VM{Hash: "a"}, reflect.TypeFor[*Pod](): &Pod{Name: "a"}, reflect.TypeFor[*schemas.Object](): &schemas.Object{Hash: "a"},
	}
	ids := map[string]string{id(Step{}): "nothing"}
	fields := reflect.TypeFor[Step]()
	for i := range fields.NumField() {
		field := fields.Field(i)
		var step Step
		v := reflect.ValueOf(&step).Elem().Field(i)
		switch value, ok := values[field.Type]; {
		case ok:
			v.Set(reflect.ValueOf(value))
		case field.Type.Kind() == reflect.String:
			v.SetString("a")
		case field.Type.Kind() == reflect.Int64:
			v.SetInt(1)
		case field.Type.Kind() == reflect.Bool:
			v.SetBool(true)
		default:
			t.Fatalf("%s is of a type that the test does not know", field.Name)
		}
		found := id(step)
		same, known := ids[found]
		if without := slices.Contains([]string{"ID", "Waits", "Warnings", "Approved", "Blocked", "Refused", "Source", "Summary"}, field.Name); known != without {
			t.Errorf("%s: the same ID as with %q: %t, want %t", field.Name, same, known, without)
		}
		ids[found] = field.Name
	}
	since := Step{PendingRestart: &Pending{Since: time.Unix(1, 0)}}
	after := Step{DependsOn: []Dependency{{Ready: schemas.Ready{Kind: schemas.ReadyTCP}}}}
	for _, step := range []Step{since, after, {Changes: []Change{{Path: "a", Before: 1.0}}}, {Changes: []Change{{Path: "a", Before: "1"}}}} {
		if same, known := ids[id(step)]; known {
			t.Errorf("%+v has the ID of %s", step, same)
		}
		ids[id(step)] = "more"
	}
}

// TestWhatRecursIsOfItsRevision: what may be needed again with nothing applied in between is another step at another
// revision; what changes a domain is the same one, because the domain's fingerprint says when it was done.
func TestWhatRecursIsOfItsRevision(t *testing.T) {
	for _, test := range []struct {
		step Step
		same bool
	}{
		{Step{Action: ActionCreate}, false},
		{Step{Action: ActionCreate, Precondition: "missing"}, false},
		{Step{Action: ActionStart, Precondition: "off"}, false},
		{Step{Action: ActionRestart, Precondition: "on"}, true},
		{Step{Action: ActionDestroy, Precondition: "on"}, true},
	} {
		one, other := Plan{Revision: "1", Steps: []Step{test.step}}, Plan{Revision: "2", Steps: []Step{test.step}}
		for _, p := range []*Plan{&one, &other} {
			if err := p.identify(); err != nil {
				t.Fatal(err)
			}
		}
		if same := one.Steps[0].ID == other.Steps[0].ID; same != test.same {
			t.Errorf("%s with precondition %q is the same step at another revision: %t, want %t", test.step.Action, test.step.Precondition, same, test.same)
		}
	}
}
