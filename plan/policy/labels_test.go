package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
)

// TestRelabelled: one commit changes a database and the label that a freeze, a budget or a window selects it by. What
// restricts goes by both labels, and what permits has to select both.
func TestRelabelled(t *testing.T) {
	const (
		automatic = `apply: {restart: automatic}`
		freeze    = `windows: [{name: freeze, schedule: "0 0 1 11 *", duration: 700h, action: deny, selector: {matchLabels: {tier: db}}}]`
		budget    = `budgets: [{name: none, restartPerRevision: 0, selector: {matchLabels: {tier: db}}}]`
		half      = `budgets: [{name: half, restartPerRevision: 100%, selector: {matchLabels: {tier: db}}}]`
		allowed   = `windows: [{name: open, schedule: "0 0 1 11 *", duration: 700h, selector: {matchLabels: {tier: db}}}]`
		frozen    = "window: nothing is changed while freeze is open, which it is until Mon 30 Nov 2026 04:00 UTC"
		spent     = "budget: waits for gitvirt approve: the budget none lets one revision interrupt 0 of 1 machines, and 0 come before it"
		closed    = "approval: waits for gitvirt approve (apply.restart is window, and the Fleet has no window for the machine)"
	)
	for _, test := range []struct{ why, policy, was, is, want string }{
		{"a freeze of the database", automatic + ", " + freeze, "db", "db", frozen},
		{"out of the freeze", automatic + ", " + freeze, "db", "x", frozen},
		{"into the freeze", automatic + ", " + freeze, "x", "db", frozen},
		{"another machine", automatic + ", " + freeze, "x", "y", ""},
		{"out of the budget", automatic + ", " + budget, "db", "x", spent},
		{"into the budget", automatic + ", " + budget, "x", "db", strings.Replace(spent, "of 1", "of 0", 1)},
		{"into a percentage, which goes by the labels applied", automatic + ", " + half, "x", "db", strings.NewReplacer("none", "half", "of 1", "of 0").Replace(spent)},
		{"a window of the database", allowed, "db", "db", ""},
		{"into the window", allowed, "x", "db", closed},
		{"out of the window", allowed, "db", "x", closed},
	} {
		old := desired(t, vm("a", "qemu64", ", labels: {tier: "+test.was+"}"))
		want := desired(t, vm("a", "Penryn", ", labels: {tier: "+test.is+"}"), fleet("{"+test.policy+"}"))
		have := plan.FromDesired(old, "old")
		have.Domains[0].Fleet = "fleet"
		p := build(t, want, have, policy.Options{Now: at(t, "2026-11-10 12:00")})
		line := "restart a\n"
		if test.want != "" {
			line = "restart a | " + test.want + "\n"
		}
		if diff := cmp.Diff(line, describe(p)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.why, diff)
		}
	}
}

// TestRelabelledOneByOne: machines that leave a budget by their label one after the other stay in its account, also for a
// process that begins anew and finds them under the other label; and they are interrupted in turns.
func TestRelabelledOneByOne(t *testing.T) {
	const text = `{apply: {restart: automatic}, budgets: [{name: db, restartPerRevision: 50%, restartPerHost: 1, selector: {matchLabels: {tier: db}}}]}`
	var before, after []string
	for _, name := range []string{"a", "b", "c", "d"} {
		before, after = append(before, vm(name, "qemu64", ", labels: {tier: db}")), append(after, vm(name, "Penryn", ", labels: {tier: x}"))
	}
	want := desired(t, append(after, fleet(text))...)
	old, done := plan.FromDesired(desired(t, before...), "old"), plan.FromDesired(want, "r")
	have := plan.Observed{Node: old.Node, Live: old.Live, Domains: old.Domains}
	for _, domains := range [][]*plan.Domain{old.Domains, done.Domains} {
		for _, domain := range domains {
			domain.Fleet = "fleet"
		}
	}
	var history policy.History
	var restarted []string
	for range 4 {
		p := build(t, want, have, policy.Options{Now: at(t, "2026-11-10 12:00"), History: history})
		for i := range p.Steps {
			step := &p.Steps[i]
			if !step.Runs() {
				continue
			}
			bounds := policy.New(want.Fleet, policy.Options{History: history}).HostBounds("fleet", want, have)
			if len(bounds) != 1 || bounds[0].Base != 4 || !bounds[0].Counts(step, nil) {
				t.Errorf("%s takes no place: %+v", step.Address, bounds)
			}
			spent, counts := policy.Spend(step, have)
			if !counts || len(spent.Was) != 1 || spent.Was[0].Labels["tier"] != "db" || spent.Labels["tier"] != "x" {
				t.Fatalf("%s spends %+v", step.Address, spent)
			}
			history.Done = append(history.Done, spent)
			restarted = append(restarted, step.Address.Name)
			have.Domains = append([]*plan.Domain(nil), have.Domains...)
			for j := range have.Domains {
				if have.Domains[j].Address == step.Address {
					have.Domains[j] = done.Domains[j]
				}
			}
			again := policy.New(want.Fleet, policy.Options{History: history}).HostBounds("fleet", want, have)
			if again[0].Counts(step, nil) || !again[0].Counts(step, spent.Was) {
				t.Errorf("%s has the new label, and what it was does not count", step.Address)
			}
			break
		}
	}
	if diff := cmp.Diff([]string{"a", "b"}, restarted); diff != "" {
		t.Errorf("half of four (-want +got):\n%s", diff)
	}
}

// TestPowerHasItsGate: whatever else a step is, one that starts or stops a guest asks the gate of power as well.
func TestPowerHasItsGate(t *testing.T) {
	halted := func(manifest string) string { return strings.Replace(manifest, "Always", "Halted", 1) }
	renamed := vm("new", "qemu64", ", annotations: {gitvirt.io/previous-name: old}")
	const uuid = "domain: {firmware: {uuid: 7b1c2a50-8f6a-4f8e-9d3a-0d2f4a1b6c77}, "
	other := strings.Replace(vm("old", "qemu64", ""), "domain: {", uuid, 1)
	const power = "waits for gitvirt approve (apply.power is approval)"
	for _, test := range []struct {
		why, want string
		was, is   string
		off       bool
	}{
		{"a rename that starts the guest", "rename new | approval: " + power, halted(vm("old", "qemu64", "")), renamed, true},
		{"a rename that stops the guest", "stop new | approval: " + power, vm("old", "qemu64", ""), halted(renamed), false},
		{"a rename that leaves it", "rename new", vm("old", "qemu64", ""), renamed, false},
		{"a change that starts the guest", "update old | approval: " + power, halted(vm("old", "qemu64", "")), vm("old", "Penryn", ""), true},
		{"a domain made anew that starts its guest", "replace old | approval: " + power, halted(vm("old", "qemu64", "")), other, true},
		{"a domain made anew that runs", "replace old", vm("old", "qemu64", ""), other, false},
		{"a new machine is made to run", "create old", "", vm("old", "qemu64", ""), false},
	} {
		want := desired(t, test.is, fleet("{apply: {power: approval, replace: automatic, live: automatic, restart: automatic}}"))
		var have plan.Observed
		if test.was != "" {
			have = plan.FromDesired(desired(t, test.was), "old")
			domain := *have.Domains[0]
			domain.Fleet = "fleet"
			if test.off {
				domain.State, domain.RunningHash, domain.RunningRecord = plan.StateStopped, "", nil
			}
			have.Domains = []*plan.Domain{&domain}
		}
		if diff := cmp.Diff(test.want+"\n", describe(build(t, want, have, policy.Options{Now: at(t, "2026-11-10 12:00")}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.why, diff)
		}
	}
}

// TestRuleAsksBefore is the rule of docs/policy.md: a database stays one for the commit that says otherwise.
func TestRuleAsksBefore(t *testing.T) {
	const rule = `{apply: {restart: automatic}, rules: [{name: db-cpu, message: no, ` +
		`expression: "[object, before].all(vm, vm == null || vm.metadata.?labels.tier.orValue('') != 'db') || !step.changes.exists(c, c.path.endsWith('cpu.model'))"}]}`
	for _, test := range []struct{ was, is, want string }{
		{", labels: {tier: db}", ", labels: {tier: x}", "restart a | blocked: no (rule db-cpu)\n"},
		{"", ", labels: {tier: db}", "restart a | blocked: no (rule db-cpu)\n"},
		{"", "", "restart a\n"},
		{"none", ", labels: {tier: db}", "create a\n"},
	} {
		have := plan.Observed{}
		if test.was != "none" {
			have = plan.FromDesired(desired(t, vm("a", "qemu64", test.was)), "old")
		}
		p := build(t, desired(t, vm("a", "Penryn", test.is), fleet(rule)), have, policy.Options{Now: at(t, "2026-11-10 12:00")})
		if diff := cmp.Diff(test.want, describe(p)); diff != "" {
			t.Errorf("%q -> %q (-want +got):\n%s", test.was, test.is, diff)
		}
	}
}

// TestACreateIsApprovedForItsRevision: a machine that was approved, removed and added again later waits again.
func TestACreateIsApprovedForItsRevision(t *testing.T) {
	want := desired(t, vm("a", "qemu64", ""), fleet("{apply: {create: approval}}"))
	at := func(revision string, approvals ...policy.Approval) *plan.Plan {
		p, err := plan.Build(want, plan.Observed{}, plan.Options{Revision: revision, Policy: policy.New(want.Fleet, policy.Options{Approvals: approvals})})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	approval := policy.Approval{Steps: []string{at("first").Steps[0].ID}}
	if !at("first", approval).Steps[0].Runs() || at("later", approval).Steps[0].Runs() {
		t.Error("the approval is not for the revision that it was given at")
	}
}
