package apply_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

func address(name string) schemas.Address {
	return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}
}

// step makes a step of one machine: "create db", "destroy web < db" (web depends on db), "start web < db=agent".
func step(text string) plan.Step {
	words, after, _ := strings.Cut(text, " < ")
	action, name, _ := strings.Cut(words, " ")
	out := plan.Step{Address: address(name), Action: plan.Action(action), Reason: plan.ReasonChanged, Domain: "default_" + name}
	switch out.Action {
	case plan.ActionDestroy:
		out.Reason = plan.ReasonRemoved
	case plan.ActionStop:
		out.Power, out.VM = plan.PowerOff, &schemas.VM{Object: machine()}
	case plan.ActionUpdate:
		out.VM = &schemas.VM{Object: machine()}
	case plan.ActionRestart:
		out.Power, out.VM = plan.PowerCycle, &schemas.VM{Object: machine()}
	default:
		out.Power, out.VM = plan.PowerOn, &schemas.VM{Object: machine()}
	}
	if after == "" {
		return out
	}
	for _, other := range strings.Split(after, ", ") {
		other, kind, _ := strings.Cut(other, "=")
		out.DependsOn = append(out.DependsOn, plan.Dependency{Address: address(other), Ready: schemas.Ready{Kind: schemas.ReadyKind(kind)}})
	}
	return out
}

func steps(texts ...string) []plan.Step {
	var out []plan.Step
	for _, text := range texts {
		out = append(out, step(text))
	}
	return out
}

// play carries steps out as fast as the pacer lets it: each round begins all that may, and then ends them in order. It
// returns the rounds, one line each, and what never began with its reason.
func play(pacer *apply.Pacer, steps []plan.Step, fails map[string]bool, outside map[string]string) (rounds []string, refused map[string]string) {
	ended := make([]bool, len(steps))
	for {
		var begun []int
		var line []string
		for {
			i, ok := pacer.Next()
			if !ok {
				break
			}
			begun = append(begun, i)
			line = append(line, string(steps[i].Action)+" "+steps[i].Address.Name)
		}
		asked := pacer.Outside()
		for _, dependency := range asked {
			text := dependency.Address.Name
			if dependency.Ready.Kind != "" {
				text += "=" + string(dependency.Ready.Kind)
			}
			line = append(line, "ask "+text)
			pacer.Found(dependency, outside[text])
		}
		if len(line) == 0 {
			break
		}
		rounds = append(rounds, strings.Join(line, ", "))
		for _, i := range begun {
			var err error
			if fails[steps[i].Address.Name] {
				err = errors.New("no")
			}
			ended[i] = true
			pacer.End(i, err)
		}
	}
	refused = map[string]string{}
	for i := range steps {
		if !ended[i] {
			refused[steps[i].Address.Name] = pacer.Wait(i)
		}
	}
	return rounds, refused
}

// atATime bounds how many guests are interrupted at a time.
func atATime(limit int32) []policy.HostBound {
	amount := intstr.FromInt32(limit)
	fleet := &schemas.Fleet{Spec: schemas.FleetSpec{Policy: schemas.Policy{Budgets: []schemas.Budget{{Name: "gentle", RestartPerHost: &amount}}}}}
	return policy.New(fleet, policy.Options{}).HostBounds("", &schemas.Desired{}, plan.Observed{})
}

func TestPacer(t *testing.T) {
	two, half, tenth := intstr.FromInt32(2), intstr.FromString("50%"), intstr.FromString("10%")
	for _, test := range []struct {
		reason  string
		pace    apply.Pace
		steps   []plan.Step
		fails   []string
		outside map[string]string
		rounds  []string
		refused map[string]string
	}{
		{
			"what depends on nothing begins at once, in the plan's order",
			apply.Pace{},
			steps("create b", "create a"), nil, nil,
			[]string{"create b, create a"},
			nil,
		},
		{
			"a guest is started after those that it depends on",
			apply.Pace{},
			steps("create app < db", "create db", "create web < app, db"), nil, nil,
			[]string{"create db", "create app", "create web"},
			nil,
		},
		{
			"so is one that is restarted",
			apply.Pace{},
			steps("restart app < db", "restart db"), nil, nil,
			[]string{"restart db", "restart app"},
			nil,
		},
		{
			"what does not start a guest waits for none",
			apply.Pace{},
			steps("update app < db", "restart db"), nil, nil,
			[]string{"update app, restart db"},
			nil,
		},
		{
			"what goes down goes in the reverse order",
			apply.Pace{},
			steps("stop app < db", "destroy db", "destroy web < app"), nil, nil,
			[]string{"destroy web", "stop app", "destroy db"},
			nil,
		},
		{
			"a dependency without a step is asked for, once",
			apply.Pace{},
			steps("start a < db", "start b < db"), nil, nil,
			[]string{"ask db", "start a, start b"},
			nil,
		},
		{
			"and each way of being ready",
			apply.Pace{},
			steps("start a < db=agent", "start b < db=tcp"), nil,
			map[string]string{"db=tcp": "port 5432 is closed"},
			[]string{"ask db=agent, ask db=tcp", "start a"},
			map[string]string{"b": "waits for default/db: port 5432 is closed"},
		},
		{
			"one that is changed without a restart is asked for",
			apply.Pace{},
			steps("start a < db", "update db"), nil, nil,
			[]string{"update db, ask db", "start a"},
			nil,
		},
		{
			"who wants more than its step does asks after it",
			apply.Pace{},
			steps("start a < db=agent", "start db"), nil, nil,
			[]string{"start db", "ask db=agent", "start a"},
			nil,
		},
		{
			"one that this plan stops is asked for when it is off",
			apply.Pace{},
			steps("start a < db", "stop db"), nil,
			map[string]string{"db": "it is off"},
			[]string{"stop db", "ask db"},
			map[string]string{"a": "waits for default/db: it is off"},
		},
		{
			"what depends on a failed step never begins",
			apply.Pace{},
			steps("create a", "create b < a", "create c < b", "create d"),
			[]string{"a"},
			nil,
			[]string{"create a, create d"},
			map[string]string{"b": "waits for default/a, whose create failed", "c": "waits for default/b, whose create has not begun"},
		},
		{
			"nor what another still needs",
			apply.Pace{},
			steps("destroy db", "stop app < db"),
			[]string{"app"},
			nil,
			[]string{"stop app"},
			map[string]string{"db": "waits for default/app, which depends on it and whose stop failed"},
		},
		{
			"a cycle ends",
			apply.Pace{},
			steps("create a < b", "create b < a", "create c"), nil, nil,
			[]string{"create c"},
			map[string]string{"a": "waits for default/b, whose create has not begun", "b": "waits for default/a, whose create has not begun"},
		},
		{
			"and one that waits for itself",
			apply.Pace{},
			steps("create a < a"), nil, nil,
			nil,
			map[string]string{"a": "waits for default/a, whose create has not begun"},
		},
		{
			"a domain that changes its kind is destroyed first",
			apply.Pace{},
			steps("create a", "destroy a"), nil, nil,
			[]string{"destroy a", "create a"},
			nil,
		},
		{
			"and not made when that fails",
			apply.Pace{},
			steps("create a", "destroy a"),
			[]string{"a"},
			nil,
			[]string{"destroy a"},
			map[string]string{"a": "waits until the domain default_a is free: its destroy failed"},
		},
		{
			"the bound holds",
			apply.Pace{Parallel: 2},
			steps("create a", "create b", "create c"), nil, nil,
			[]string{"create a, create b", "create c"},
			nil,
		},
		{
			"a failure stops all that is left",
			apply.Pace{Parallel: 1, StopOnFailure: true},
			steps("create a", "create b", "create c"),
			[]string{"b"},
			nil,
			[]string{"create a", "create b"},
			map[string]string{"c": "default/b failed, and nothing more begins after a failure (rollout.onFailure is stop)"},
		},
		{
			"the canary goes first",
			apply.Pace{Canary: &two},
			steps("create a", "create b", "create c", "create d"), nil, nil,
			[]string{"create a, create b", "create c, create d"},
			nil,
		},
		{
			"as a percentage",
			apply.Pace{Canary: &half},
			steps("create a", "create b", "create c"), nil, nil,
			[]string{"create a, create b", "create c"},
			nil,
		},
		{
			"of at least one",
			apply.Pace{Canary: &tenth},
			steps("create a", "create b", "create c"), nil, nil,
			[]string{"create a", "create b, create c"},
			nil,
		},
		{
			"one that is all is none",
			apply.Pace{Canary: &two},
			steps("create a", "create b"), nil, nil,
			[]string{"create a, create b"},
			nil,
		},
		{
			"what the canary depends on is of it",
			apply.Pace{Canary: &two},
			steps("create a < z", "create b", "create c", "create z"), nil, nil,
			[]string{"create b, create c", "create z", "create a"},
			nil,
		},
		{
			"a canary that fails stops the others",
			apply.Pace{Canary: &two},
			steps("create a", "create b", "create c"),
			[]string{"a"},
			nil,
			[]string{"create a, create b"},
			map[string]string{"c": "default/a failed, which is one of the 2 that go first (rollout.canary)"},
		},
		{
			"restarts take turns, and nothing else does",
			apply.Pace{HostBounds: atATime(2)},
			steps("restart a", "restart b", "restart c", "create d", "restart e", "stop f"), nil, nil,
			[]string{"restart a, restart b, create d, stop f", "restart c, restart e"},
			nil,
		},
		{
			"one that fails gives its place to the next",
			apply.Pace{HostBounds: atATime(1)},
			steps("restart a", "restart b", "restart c < b"),
			[]string{"a"},
			nil,
			[]string{"restart a", "restart b", "restart c"},
			nil,
		},
		{
			"after the canary a failure stops nobody",
			apply.Pace{Canary: &tenth, Parallel: 1},
			steps("create a", "create b", "create c"),
			[]string{"b"},
			nil,
			[]string{"create a", "create b", "create c"},
			nil,
		},
	} {
		t.Run(test.reason, func(t *testing.T) {
			fails := map[string]bool{}
			for _, name := range test.fails {
				fails[name] = true
			}
			pacer := apply.NewPacer(test.steps, apply.NewRollout(test.pace, test.steps))
			rounds, refused := play(pacer, test.steps, fails, test.outside)
			if !slices.Equal(rounds, test.rounds) {
				t.Errorf("rounds\n%s\nwant\n%s", strings.Join(rounds, "\n"), strings.Join(test.rounds, "\n"))
			}
			if fmt.Sprint(refused) != fmt.Sprint(test.refused) {
				t.Errorf("refused\n%v\nwant\n%v", refused, test.refused)
			}
		})
	}
}

// TestRepairsDoNotWait: a guest that went down is started, whatever becomes of the revision.
func TestRepairsDoNotWait(t *testing.T) {
	one := intstr.FromInt32(1)
	for _, pace := range []apply.Pace{{Canary: &one}, {StopOnFailure: true, Parallel: 1}} {
		all := steps("create a", "create b", "start down")
		all[2].Reason = plan.ReasonPower
		pacer := apply.NewPacer(all, apply.NewRollout(pace, all))
		rounds, refused := play(pacer, all, map[string]bool{"a": true}, nil)
		if first, _, _ := strings.Cut(rounds[0], ","); first != "start down" || len(refused) != 1 {
			t.Errorf("%+v: rounds %q, refused %v", pace, rounds, refused)
		}
	}
}

// drawSteps makes steps of some machines that depend on each other in any way, cycles included.
func drawSteps(t *rapid.T) []plan.Step {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	actions := []string{"create", "start", "restart", "update", "stop", "destroy"}
	var out []plan.Step
	for i, name := range names {
		for range rapid.SampledFrom([]int{0, 1, 1, 1, 2}).Draw(t, "steps of "+name) {
			s := step(rapid.SampledFrom(actions).Draw(t, "action") + " " + name)
			others := names
			if rapid.IntRange(0, 9).Draw(t, "cyclic") > 0 {
				others = append([]string{"outside"}, names[:i]...)
			}
			for _, other := range rapid.SliceOfNDistinct(rapid.SampledFrom(others), 0, min(3, len(others)), rapid.ID).Draw(t, "depends on") {
				ready := rapid.SampledFrom([]schemas.Ready{{}, {Kind: schemas.ReadyAgent}, {Kind: schemas.ReadyTCP, Port: 22}}).Draw(t, "ready")
				s.DependsOn = append(s.DependsOn, plan.Dependency{Address: address(other), Ready: ready})
			}
			if rapid.IntRange(0, 4).Draw(t, "repair") == 0 {
				s.Reason = plan.ReasonPower
			}
			out = append(out, s)
		}
	}
	return out
}

func drawPace(t *rapid.T) apply.Pace {
	pace := apply.Pace{Parallel: rapid.IntRange(1, 4).Draw(t, "parallel"), StopOnFailure: rapid.Bool().Draw(t, "stop on failure")}
	if rapid.Bool().Draw(t, "with a canary") {
		canary := rapid.SampledFrom([]intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(3), intstr.FromString("40%")}).Draw(t, "canary")
		pace.Canary = &canary
	}
	if rapid.Bool().Draw(t, "with a budget") {
		pace.HostBounds = atATime(rapid.Int32Range(1, 2).Draw(t, "at a time"))
	}
	return pace
}

// world is what a pacer was told, and the rules that it has to keep.
type world struct {
	steps   []plan.Step
	pace    apply.Pace
	running map[int]bool
	ended   map[int]error
	found   map[plan.Dependency]string
}

// check is called when a step begins.
func (w *world) check(t *rapid.T, i int) {
	if _, again := w.ended[i]; again || w.running[i] {
		t.Fatalf("step %d begins twice", i)
	}
	if len(w.running) >= w.pace.Parallel {
		t.Fatalf("%d steps are under way, the bound is %d", len(w.running)+1, w.pace.Parallel)
	}
	interrupted := 0
	for j := range w.running {
		if w.steps[j].Domain == w.steps[i].Domain {
			t.Fatalf("steps %d and %d of one domain are under way", i, j)
		}
		if w.steps[j].Power == plan.PowerCycle {
			interrupted++
		}
	}
	for _, bound := range w.pace.HostBounds {
		if bound.Counts(&w.steps[i], nil) && interrupted >= bound.Limit {
			t.Fatalf("step %d interrupts one more than %d guests", i, bound.Limit)
		}
	}
	step := &w.steps[i]
	for _, dependency := range step.DependsOn {
		for j := range w.steps {
			other := &w.steps[j]
			if err, ended := w.ended[j]; other.Address == dependency.Address && other.StartsGuest() && step.StartsGuest() &&
				w.last(j) && (!ended || err != nil) {
				t.Fatalf("step %d begins before %d is ready (%v)", i, j, err)
			}
		}
	}
	if w.pace.StopOnFailure && apply.RolledOut(step) {
		for j, err := range w.ended {
			if err != nil && apply.RolledOut(&w.steps[j]) && w.steps[j].Domain != step.Domain {
				t.Fatalf("step %d begins although %d failed", i, j)
			}
		}
	}
}

// last reports whether a step is the last of its machine that starts it, the one that counts.
func (w *world) last(j int) bool {
	for k := j + 1; k < len(w.steps); k++ {
		if w.steps[k].Address == w.steps[j].Address && w.steps[k].StartsGuest() {
			return false
		}
	}
	return true
}

// TestPacerKeepsItsRules: whatever the steps are, in whatever order they end and however they fail, the rules hold, and an
// end is reached at which each step has one result.
func TestPacerKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{steps: drawSteps(t), pace: drawPace(t), running: map[int]bool{}, ended: map[int]error{}, found: map[plan.Dependency]string{}}
		pacer := apply.NewPacer(w.steps, apply.NewRollout(w.pace, w.steps))
		var asked []plan.Dependency
		for {
			for {
				i, ok := pacer.Next()
				if !ok {
					break
				}
				w.check(t, i)
				w.running[i] = true
			}
			asked = append(asked, pacer.Outside()...)
			if len(w.running)+len(asked) == 0 {
				break
			}
			at := rapid.IntRange(0, len(w.running)+len(asked)-1).Draw(t, "what comes to its end")
			if at < len(asked) {
				why := rapid.SampledFrom([]string{"", "", "no"}).Draw(t, "found")
				if _, twice := w.found[asked[at]]; twice {
					t.Fatalf("asked twice for %v", asked[at])
				}
				w.found[asked[at]] = why
				pacer.Found(asked[at], why)
				asked = slices.Delete(asked, at, at+1)
				continue
			}
			keys := make([]int, 0, len(w.running))
			for i := range w.steps {
				if w.running[i] {
					keys = append(keys, i)
				}
			}
			i := keys[at-len(asked)]
			w.ended[i] = rapid.SampledFrom([]error{nil, nil, nil, errors.New("no")}).Draw(t, "outcome")
			delete(w.running, i)
			pacer.End(i, w.ended[i])
		}
		for i := range w.steps {
			_, ended := w.ended[i]
			if !ended && pacer.Wait(i) == "" {
				t.Fatalf("step %d never began, and nothing keeps it", i)
			}
		}
	})
}
