package policy_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// world is a drawn fleet with a drawn policy.
type world struct {
	machines []string
	have     plan.Observed
	// policy is what goes under spec.policy, by name.
	policy map[string]string
	now    time.Time
}

const tiers = 3

// drawWorld draws machines, most of which have something to be done, and a policy.
func drawWorld(t *rapid.T, fixed testing.TB) *world {
	w := &world{policy: map[string]string{}}
	var before []string
	for i := range rapid.IntRange(1, 12).Draw(t, "machines") {
		name, labels := fmt.Sprintf("m-%02d", i), fmt.Sprintf(", labels: {tier: t%d}", rapid.IntRange(0, tiers-1).Draw(t, "tier"))
		protect := labels
		if rapid.IntRange(0, 4).Draw(t, "protected") == 0 {
			protect += `, annotations: {gitvirt.io/protect: "true"}`
		}
		switch rapid.SampledFrom([]string{"new", "same", "restart", "gone", "label", "moves"}).Draw(t, "what") {
		case "new":
			w.machines = append(w.machines, vm(name, "qemu64", protect))
		case "same":
			before, w.machines = append(before, vm(name, "qemu64", protect)), append(w.machines, vm(name, "qemu64", protect))
		case "restart":
			before, w.machines = append(before, vm(name, "qemu64", protect)), append(w.machines, vm(name, "Penryn", protect))
		case "moves": // by the label that windows and budgets select it by
			moved := fmt.Sprintf(", labels: {tier: t%d}", rapid.IntRange(0, tiers-1).Draw(t, "other tier"))
			before, w.machines = append(before, vm(name, "qemu64", labels)), append(w.machines, vm(name, "Penryn", moved))
		case "gone":
			before = append(before, vm(name, "qemu64", protect))
		case "label":
			before, w.machines = append(before, vm(name, "qemu64", labels)), append(w.machines, vm(name, "qemu64", labels+", annotations: {a: b}"))
		}
	}
	w.have = plan.FromDesired(desired(fixed, before...), "old")
	for i := range w.have.Domains {
		w.have.Domains[i].Fleet = "fleet"
	}
	gates := rapid.SampledFrom([]string{"automatic", "window", "approval", "never"})
	var apply []string
	for _, name := range []string{"create", "live", "restart", "destroy"} {
		apply = append(apply, name+": "+gates.Draw(t, name))
	}
	w.policy["apply"] = "{" + strings.Join(apply, ", ") + "}"
	var spans []string
	for i := range rapid.IntRange(0, 3).Draw(t, "windows") {
		spans = append(spans, fmt.Sprintf("{name: w%d, schedule: \"0 %d * * *\", duration: %dh, action: %s%s}", i, rapid.IntRange(0, 23).Draw(t, "hour"),
			rapid.IntRange(1, 12).Draw(t, "hours"), rapid.SampledFrom([]string{"allow", "deny"}).Draw(t, "action"), drawSelector(t)))
	}
	w.policy["windows"] = "[" + strings.Join(spans, ", ") + "]"
	var budgets []string
	for i := range rapid.IntRange(0, 2).Draw(t, "budgets") {
		budgets = append(budgets, fmt.Sprintf("{name: b%d, destroyPerRevision: %d, restartPerRevision: %d%%%s}", i, rapid.IntRange(0, 3).Draw(t, "destroy"),
			rapid.IntRange(0, 100).Draw(t, "restart"), drawSelector(t)))
	}
	w.policy["budgets"] = "[" + strings.Join(budgets, ", ") + "]"
	if rapid.Bool().Draw(t, "rule") {
		w.policy["rules"] = fmt.Sprintf(`[{name: r, expression: "object.metadata.labels.tier != 't0'", message: no, action: %s}]`,
			rapid.SampledFrom([]string{"block", "approval", "warn"}).Draw(t, "rule's"))
	}
	w.now = time.Date(2026, 11, 22, rapid.IntRange(0, 23).Draw(t, "now"), 30, 0, 0, time.UTC)
	return w
}

func drawSelector(t *rapid.T) string {
	if rapid.Bool().Draw(t, "all") {
		return ""
	}
	return fmt.Sprintf(", selector: {matchLabels: {tier: t%d}}", rapid.IntRange(0, tiers-1).Draw(t, "of"))
}

// plan plans with the policy, in which some fields are others.
func (w *world) plan(t testing.TB, options policy.Options, other map[string]string) *plan.Plan {
	fields := maps.Clone(w.policy)
	maps.Copy(fields, other)
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		parts = append(parts, name+": "+fields[name])
	}
	options.Now = w.now
	want := desired(t, append(slices.Clone(w.machines), fleet("{"+strings.Join(parts, ", ")+"}"))...)
	return build(t, want, w.have, options)
}

func verdicts(p *plan.Plan) map[schemas.Address]string {
	out := map[schemas.Address]string{}
	for _, step := range p.Steps {
		out[step.Address] = fmt.Sprintf("%v %s", step.Waits, step.Blocked)
	}
	return out
}

func draws(t *testing.T, check func(rt *rapid.T, w *world)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) { check(rt, drawWorld(rt, t)) })
}

// TestNothingRunsOutsideItsGate recomputes, from the Fleet alone, what a step that runs must have passed.
func TestNothingRunsOutsideItsGate(t *testing.T) {
	draws(t, func(rt *rapid.T, w *world) {
		attended := rapid.Bool().Draw(rt, "attended")
		p := w.plan(t, policy.Options{Attended: attended}, nil)
		spec := desired(t, fleet(specText(w.policy))).Fleet.Spec.Policy
		for i := range p.Steps {
			step := &p.Steps[i]
			if !step.Runs() {
				continue
			}
			gate := map[plan.Action]schemas.Gate{
				plan.ActionCreate: spec.Apply.Create, plan.ActionUpdate: spec.Apply.Live, plan.ActionRestart: spec.Apply.Restart, plan.ActionDestroy: spec.Apply.Destroy,
			}[step.Action]
			tiers := tiersOf(step, w)
			allowed, denied := false, false
			for _, window := range spec.Windows {
				hour := w.now.Hour()
				var opens int
				if _, err := fmt.Sscanf(window.Schedule, "0 %d", &opens); err != nil {
					rt.Fatal(err)
				}
				since := (hour - opens + 24) % 24
				open := time.Duration(since)*time.Hour+30*time.Minute < time.Duration(window.Duration)
				if selected := window.Selector.MatchLabels["tier"]; open {
					every := !slices.ContainsFunc(tiers, func(tier string) bool { return tier != selected })
					allowed = allowed || window.Action == schemas.WindowAllow && (selected == "" || every)
					denied = denied || window.Action == schemas.WindowDeny && (selected == "" || slices.Contains(tiers, selected))
				}
			}
			switch {
			case denied:
				rt.Fatalf("%s of %s runs in a deny window", step.Action, step.Address)
			case gate == schemas.GateNever, gate == schemas.GateApproval && !attended, gate == schemas.GateWindow && !attended && !allowed:
				rt.Fatalf("%s of %s runs although its gate is %s", step.Action, step.Address, gate)
			}
		}
	})
}

func specText(fields map[string]string) string {
	var parts []string
	for name, text := range fields {
		parts = append(parts, name+": "+text)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// tiersOf are those that git has a machine in, and that it was applied in.
func tiersOf(step *plan.Step, w *world) (tiers []string) {
	if step.VM != nil {
		tiers = append(tiers, step.VM.Object.Labels["tier"])
	}
	for _, domain := range w.have.Domains {
		if domain.Address == step.Address {
			_, rest, _ := strings.Cut(string(domain.Record), `"tier":"`)
			tier, _, _ := strings.Cut(rest, `"`)
			tiers = append(tiers, tier)
		}
	}
	return tiers
}

// TestOthersAreLeftAlone: without budgets, what is said of one machine has nothing to do with the others.
func TestOthersAreLeftAlone(t *testing.T) {
	draws(t, func(rt *rapid.T, w *world) {
		without := map[string]string{"budgets": "[]"}
		before := verdicts(w.plan(t, policy.Options{}, without))
		if len(before) == 0 {
			return
		}
		one := rapid.SampledFrom(slices.SortedFunc(maps.Keys(before), schemas.Address.Compare)).Draw(rt, "one")
		without["rules"] = fmt.Sprintf(`[{name: stop, expression: "object.metadata.name != '%s'", message: stop}]`, one.Name)
		base := verdicts(w.plan(t, policy.Options{}, map[string]string{"budgets": "[]", "rules": "[]"}))
		for address, verdict := range verdicts(w.plan(t, policy.Options{}, without)) {
			if address != one && verdict != base[address] {
				rt.Fatalf("%s was blocked, and of %s is said %s, not %s", one, address, verdict, base[address])
			}
		}
	})
}

// TestBudgetsHold carries out what runs, round by round, as the loop does: no budget is ever exceeded at a revision.
func TestBudgetsHold(t *testing.T) {
	draws(t, func(rt *rapid.T, w *world) {
		spec := desired(t, fleet(specText(w.policy))).Fleet.Spec.Policy
		all := w.have
		var history policy.History
		for range 4 {
			p := w.plan(t, policy.Options{Attended: true, History: history}, nil)
			done := map[schemas.Address]bool{}
			for i := range p.Steps {
				if step := &p.Steps[i]; step.Runs() && rapid.Bool().Draw(rt, "carried out") {
					if spent, counts := policy.Spend(step, w.have); counts {
						history.Done = append(history.Done, spent)
						done[step.Address] = spent.Destroys
					}
				}
			}
			live := plan.Observed{Node: all.Node, Live: all.Live}
			for _, domain := range w.have.Domains {
				if !done[domain.Address] {
					live.Domains = append(live.Domains, domain)
				}
			}
			w.have = live
		}
		for _, budget := range spec.Budgets {
			base := 0
			destroyed, restarted := map[schemas.Address]bool{}, map[schemas.Address]bool{} // machines, however often
			for _, spent := range history.Done {
				if selects(&budget.Selector, &spent) && spent.Destroys {
					destroyed[spent.Address] = true
				}
				if selects(&budget.Selector, &spent) && spent.Interrupts {
					restarted[spent.Address] = true
				}
			}
			for _, domain := range all.Domains {
				tier := budget.Selector.MatchLabels["tier"]
				if tier == "" || strings.Contains(string(domain.Record), `"tier":"`+tier+`"`) {
					base++
				}
			}
			var percent int
			if _, err := fmt.Sscanf(budget.RestartPerRevision.StrVal, "%d%%", &percent); err != nil {
				rt.Fatal(err)
			}
			if len(destroyed) > budget.DestroyPerRevision.IntValue() || len(restarted) > (base*percent+99)/100 {
				rt.Fatalf("budget %s: %d destroyed, %d of %d restarted", budget.Name, len(destroyed), len(restarted), base)
			}
		}
	})
}

func selects(selector *schemas.Selector, spent *policy.Spent) bool {
	return selector.Matches("default", spent.Labels) ||
		slices.ContainsFunc(spent.Was, func(was policy.Named) bool { return selector.Matches(was.Namespace, was.Labels) })
}

// TestApprovals: an approval lets nothing happen but the steps that it names, and those only past windows and approvals.
func TestApprovals(t *testing.T) {
	draws(t, func(rt *rapid.T, w *world) {
		without := map[string]string{"budgets": "[]"}
		before := w.plan(t, policy.Options{}, without)
		if len(before.Steps) == 0 {
			return
		}
		one := rapid.SampledFrom(before.Steps).Draw(rt, "one")
		approval := policy.Approval{Steps: []string{one.ID}}
		if rapid.Bool().Draw(rt, "of another step") {
			approval.Steps[0] = strings.Repeat("0", len(one.ID))
		}
		after := w.plan(t, policy.Options{Approvals: []policy.Approval{approval}}, without)
		if after.ID != before.ID {
			rt.Fatal("an approval makes another plan")
		}
		for i := range after.Steps {
			was, is := &before.Steps[i], &after.Steps[i]
			if was.Runs() == is.Runs() {
				continue
			}
			if is.ID != approval.Steps[0] || was.Blocked != "" || !was.Approvable() {
				rt.Fatalf("the approval of %s lets %s of %s happen: %+v", approval.Steps[0], is.Action, is.Address, was)
			}
		}
	})
}
