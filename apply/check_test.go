package apply_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// oracle answers checks from maps by name, and counts them.
type oracle struct {
	problems map[string]string
	notLive  map[string]string
	warnings map[string][]string
	err      error
	hangs    bool

	mu    sync.Mutex
	asked map[string]int
}

func (o *oracle) Check(ctx context.Context, _ apply.Target, step plan.Step) (apply.Findings, error) {
	if o.hangs {
		<-ctx.Done()
		return apply.Findings{}, ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked == nil {
		o.asked = map[string]int{}
	}
	o.asked[step.Address.Name]++
	var problems []string
	if problem := o.problems[step.Address.Name]; problem != "" {
		problems = []string{problem}
	}
	return apply.Findings{Problems: problems, NotLive: o.notLive[step.Address.Name], Warnings: o.warnings[step.Address.Name]}, o.err
}

func fleetOf(names []string, cores int) *schemas.Desired {
	var files []*schemas.File
	for _, name := range names {
		files = append(files, schemas.Parse(name+".yaml", fmt.Appendf(nil, "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %s}\nspec: {runStrategy: Always, template: {spec: {domain: {cpu: {sockets: %d, maxSockets: 8}, memory: {guest: 64Mi}}}}}\n", name, cores)))
	}
	return schemas.Assemble(files)
}

func checked(t *testing.T, want *schemas.Desired, have plan.Observed, o *oracle) *plan.Plan {
	t.Helper()
	p, err := apply.Plan(t.Context(), want, have, plan.Options{Revision: "rev"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlanIsChecked(t *testing.T) {
	want := fleetOf([]string{"a", "b", "c"}, 1)
	unchecked, err := plan.Build(want, plan.Observed{}, plan.Options{Revision: "rev"})
	if err != nil {
		t.Fatal(err)
	}
	p := checked(t, want, plan.Observed{}, &oracle{problems: map[string]string{"b": "no space on the host"}})
	if p.Steps[1].Blocked != "this step fails if it is tried: no space on the host" || p.Summary.Blocked != 1 || p.Summary.Create != 2 || len(p.Executable()) != 2 {
		t.Errorf("%+v, %+v", p.Steps[1], p.Summary)
	}
	if p.ID != unchecked.ID || p.Steps[1].ID != unchecked.Steps[1].ID {
		t.Error("what a check finds changes what a step is")
	}
	p = checked(t, want, plan.Observed{}, &oracle{warnings: map[string][]string{"c": {"little room"}}})
	if len(p.Executable()) != 3 || len(p.Steps[0].Warnings) > 0 || strings.Join(p.Steps[2].Warnings, "") != "little room" || p.ID != unchecked.ID {
		t.Errorf("a warning: %+v", p.Steps)
	}
	many := make([]string, 203)
	for i := range many {
		many[i] = fmt.Sprintf("vm-%d", i)
	}
	for _, test := range []struct {
		reason string
		fleet  *schemas.Desired
		oracle *oracle
		asked  int
		note   string
	}{
		{"all", want, &oracle{}, 3, ""},
		{"some", fleetOf(many, 1), &oracle{}, 200, "the host checked the 200 of 203 steps that are worst for their guests"},
		{"nobody can tell", want, &oracle{err: errors.New("unknown method Check")}, 3, "the host did not check 3 of 3 steps: unknown method Check"},
	} {
		p := checked(t, test.fleet, plan.Observed{}, test.oracle)
		if got := strings.Join(p.Notes, "\n"); got != test.note || len(test.oracle.asked) != test.asked || len(p.Executable()) != len(test.fleet.VMs) {
			t.Errorf("%s: notes %q, %d asked, %d executable", test.reason, got, len(test.oracle.asked), len(p.Executable()))
		}
	}
	synctest.Test(t, func(t *testing.T) {
		p := checked(t, want, plan.Observed{}, &oracle{hangs: true})
		if got := strings.Join(p.Notes, "\n"); got != "the host did not check 3 of 3 steps: context deadline exceeded" {
			t.Errorf("a host that does not answer: notes %q", got)
		}
	})
	if p := checked(t, want, plan.Observed{Unknown: "down"}, &oracle{}); p.Unknown != "down" || len(p.Notes) != 0 {
		t.Errorf("an unknown host: %+v", p)
	}
}

// TestWhatCannotBeLiveIsPlannedAgain: the plan promises nothing that the host has refused.
func TestWhatCannotBeLiveIsPlannedAgain(t *testing.T) {
	have := plan.FromDesired(fleetOf([]string{"a", "b"}, 1), "before")
	have.Live = plan.LiveSet{plan.LiveCPU}
	for _, domain := range have.Domains {
		domain.Headroom = &plan.Headroom{MaxVCPUs: 8}
	}
	want := fleetOf([]string{"a", "b"}, 2)
	p := checked(t, want, have, &oracle{})
	if len(p.Steps) != 2 || !p.Steps[0].Live || !p.Steps[1].Live {
		t.Fatalf("both should be live: %+v", p.Steps)
	}
	o := &oracle{notLive: map[string]string{"b": "the guest does not answer"}, problems: map[string]string{"b": "no memory"}}
	p = checked(t, want, have, o)
	if a, b := p.Steps[0], p.Steps[1]; !a.Live || b.Live || b.Action != plan.ActionRestart || !strings.Contains(b.Changes[0].Note, "the guest does not answer") || b.Blocked == "" {
		t.Errorf("a: %+v\nb: %+v", a, b)
	}
	if o.asked["a"] != 1 || o.asked["b"] != 2 {
		t.Errorf("asked %v: the restart is another step than the live change", o.asked)
	}
	if have.Domains[1].LiveRefused != "" {
		t.Error("what was observed was changed")
	}
}

// executed counts what is carried out.
type executed struct {
	apply.Executor
	steps int
}

func (e *executed) Execute(context.Context, apply.Target, plan.Step, func(string)) error {
	e.steps++
	return nil
}

func TestCheckedFirst(t *testing.T) {
	restart := plan.Step{Address: schemas.Address{Name: "a"}, Action: plan.ActionRestart, Power: plan.PowerCycle}
	start := plan.Step{Address: schemas.Address{Name: "a"}, Action: plan.ActionStart, Power: plan.PowerOn}
	for _, test := range []struct {
		reason string
		step   plan.Step
		oracle *oracle
		steps  int
		err    error
	}{
		{"a restart that would fail", restart, &oracle{problems: map[string]string{"a": "no image"}}, 0, apply.ErrRetry},
		{"a restart that would not", restart, &oracle{}, 1, nil},
		{"a restart of what has changed", restart, &oracle{err: apply.ErrStale}, 0, apply.ErrStale},
		{"nobody can tell", restart, &oracle{err: apply.ErrRetry}, 1, nil},
		{"a start interrupts nobody", start, &oracle{problems: map[string]string{"a": "no image"}}, 1, nil},
	} {
		inner := &executed{}
		err := apply.CheckedFirst{Executor: inner, Checker: test.oracle}.Execute(t.Context(), apply.Target{}, test.step, nil)
		if !errors.Is(err, test.err) || inner.steps != test.steps {
			t.Errorf("%s: %v, %d carried out", test.reason, err, inner.steps)
		}
	}
}
