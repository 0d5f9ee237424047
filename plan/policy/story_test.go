package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestWeek lets a week go by for one restart: it waits until Saturday night in Berlin, and never runs outside of it. Next is
// when to look again.
func TestWeek(t *testing.T) {
	old, want := desired(t, vm("a", "qemu64", "")), desired(t, vm("a", "Penryn", ""), fleet(`{windows: [{name: nights, schedule: "0 2 * * 6", duration: 4h, timeZone: Europe/Berlin}]}`))
	have := plan.FromDesired(old, "old")
	var got []string
	now := at(t, "2026-11-23 08:00")
	for range 4 {
		p := build(t, want, have, policy.Options{Now: now})
		state := "waits"
		if p.Steps[0].Runs() {
			state = "runs"
		}
		got = append(got, now.UTC().Format("Mon 15:04 ")+state)
		now = policy.New(want.Fleet, policy.Options{Now: now}).Next(p)
	}
	if diff := cmp.Diff([]string{"Mon 08:00 waits", "Sat 01:00 runs", "Sat 05:00 waits", "Sat 01:00 runs"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPowerSchedule: machines are on when one of their schedules says so, and Halted and Manual have none.
func TestPowerSchedule(t *testing.T) {
	text := `{powerSchedules: [{name: office, start: "0 8 * * 1-5", stop: "0 20 * * *", timeZone: Europe/Berlin, selector: {matchLabels: {env: dev}}}, {name: night, start: "0 22 * * *", stop: "0 4 * * *", selector: {matchLabels: {jobs: "true"}}}]}`
	for _, test := range []struct {
		why, labels, now string
		strategy         kubevirtv1.VirtualMachineRunStrategy
		power            plan.PowerChange
		reason           string
	}{
		{"in the office", "{env: dev}", "2026-11-23 08:00", "Always", plan.PowerOn, "the power schedule office says on until Mon 23 Nov 2026 20:00 Europe/Berlin"},
		{"in the evening", "{env: dev}", "2026-11-23 19:00", "Always", plan.PowerOff, "the power schedule office says off until Tue 24 Nov 2026 08:00 Europe/Berlin"},
		{"on Saturday", "{env: dev}", "2026-11-28 12:00", "RerunOnFailure", plan.PowerOff, "the power schedule office says off until Mon 30 Nov 2026 08:00 Europe/Berlin"},
		{"one says off, one says on", `{env: dev, jobs: "true"}`, "2026-11-28 23:00", "Always", plan.PowerOn, "the power schedule night says on until Sun 29 Nov 2026 04:00 UTC"},
		{"another machine", "{env: prod}", "2026-11-28 12:00", "Always", plan.PowerKeep, ""},
		{"halted", "{env: dev}", "2026-11-23 08:00", "Halted", plan.PowerKeep, ""},
		{"manual", "{env: dev}", "2026-11-28 12:00", "Manual", plan.PowerKeep, ""},
	} {
		want := desired(t, strings.Replace(vm("a", "qemu64", ", labels: "+test.labels), "Always", string(test.strategy), 1), fleet(text))
		power, reason := policy.New(want.Fleet, policy.Options{Now: at(t, test.now)}).Power(want.VMs[0])
		if power != test.power || reason != test.reason {
			t.Errorf("%s: %q %q, want %q %q", test.why, power, reason, test.power, test.reason)
		}
	}
}

// TestScheduleDecidesPower: a schedule that says off shuts a guest down and lets a new one off; when it says on again, a guest
// is started that its run strategy would leave off.
func TestScheduleDecidesPower(t *testing.T) {
	manifest := strings.Replace(vm("a", "qemu64", ""), "Always", "RerunOnFailure", 1)
	want := desired(t, manifest, fleet(`{powerSchedules: [{name: day, start: "0 8 * * *", stop: "0 20 * * *"}]}`))
	have := plan.FromDesired(desired(t, manifest), "old")
	summary := func(have plan.Observed, now string) string {
		p := build(t, want, have, policy.Options{Now: at(t, now)})
		if len(p.Steps) == 0 {
			return ""
		}
		return string(p.Steps[0].Action) + ": " + p.Steps[0].Summary
	}
	for _, test := range []struct{ got, want string }{
		{summary(have, "2026-11-23 12:00"), ""},
		{summary(have, "2026-11-23 21:00"), "stop: will be shut down (the power schedule day says off until Tue 24 Nov 2026 08:00 UTC)"},
		{summary(plan.Observed{}, "2026-11-23 21:00"), "create: will be created and stays off (the power schedule day says off until Tue 24 Nov 2026 08:00 UTC)"},
	} {
		if test.got != test.want {
			t.Errorf("%s, want %s", test.got, test.want)
		}
	}
	domain := *have.Domains[0]
	domain.State, domain.Stop, domain.RunningHash, domain.RunningRecord = plan.StateStopped, plan.StopShutdown, "", nil
	off := plan.Observed{Domains: []*plan.Domain{&domain}}
	if got := summary(off, "2026-11-23 21:00"); got != "" {
		t.Errorf("off at night: %s", got)
	}
	if got := summary(off, "2026-11-24 12:00"); !strings.HasPrefix(got, "start: ") {
		t.Errorf("off by day: %q", got)
	}
}

// TestDoubt: of a Fleet with mistakes nothing is carried out by itself; an approval counts, and so does what could be read.
func TestDoubt(t *testing.T) {
	text := fleet(`{apply: {restart: never}, windows: [{name: nights, schedule: "0 2 * * 6", duration: 4 hours}]}`)
	want := schemas.Assemble([]*schemas.File{schemas.Parse("gitvirt.yaml", []byte(text)), schemas.Parse("vm.yaml", []byte(vm("new", "qemu64", ""))), schemas.Parse("cpu.yaml", []byte(vm("cpu", "Penryn", "")))})
	have := plan.FromDesired(desired(t, vm("cpu", "qemu64", "")), "old")
	now := at(t, "2026-11-28 03:00")
	p := build(t, want, have, policy.Options{Now: now})
	const never = "restart cpu | blocked: it is only shown (the Fleet's apply.restart is never)\n"
	if diff := cmp.Diff(never+"create new | approval: nothing is carried out by itself, because the Fleet at gitvirt.yaml:3 has mistakes; mend that, or gitvirt approve\n", describe(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	approval := policy.Approval{Steps: []string{p.Steps[0].ID, p.Steps[1].ID}}
	if diff := cmp.Diff(never+"create new\n", describe(build(t, want, have, policy.Options{Now: now, Approvals: []policy.Approval{approval}}))); diff != "" {
		t.Errorf("approved (-want +got):\n%s", diff)
	}
}

// TestGrace: a removed machine is retired, kept and destroyed; an approval does not end the time early, and nobody is
// destroyed without a policy that knows the time.
func TestGrace(t *testing.T) {
	want := desired(t, fleet(`{removalGrace: 168h, apply: {destroy: automatic}}`))
	have := plan.FromDesired(desired(t, vm("a", "qemu64", "")), "old")
	have.Domains[0].Fleet = "fleet"
	retired := *have.Domains[0]
	retired.State, retired.RetiredSince = plan.StateStopped, at(t, "2026-11-22 12:00")
	retired.RunningHash, retired.RunningRecord = "", nil
	kept := plan.Observed{Domains: []*plan.Domain{&retired}}
	now := retired.RetiredSince
	const waits = "destroy a | grace: is kept until Sun 29 Nov 2026 12:00 UTC (removalGrace is 168h); if it comes back to git it is started again\n"
	late, err := plan.Build(want, kept, plan.Options{Revision: "r"})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ why, got, want string }{
		{"first", describe(build(t, want, have, policy.Options{Now: now})), "retire a\n"},
		{"kept", describe(build(t, want, kept, policy.Options{Now: now.Add(167 * time.Hour)})), waits},
		{"kept, whoever watches", describe(build(t, want, kept, policy.Options{Now: now.Add(167 * time.Hour), Attended: true})), waits},
		{"over", describe(build(t, want, kept, policy.Options{Now: now.Add(168 * time.Hour)})), "destroy a\n"},
		{"nobody knows the time", describe(late), waits},
	} {
		if test.got != test.want {
			t.Errorf("%s: %s, want %s", test.why, test.got, test.want)
		}
	}
	back := build(t, desired(t, vm("a", "qemu64", ""), fleet(`{removalGrace: 168h}`)), kept, policy.Options{Now: now})
	if got := back.Steps[0].Summary; got != "is in git again; its domain is kept and started" || !back.Steps[0].Runs() {
		t.Errorf("back again: %q %+v", got, back.Steps[0])
	}
}

// TestProtection holds for what was applied, whatever git says now, and blocks nothing else.
func TestProtection(t *testing.T) {
	protected := ", annotations: {gitvirt.io/protect: \"true\"}"
	old := desired(t, vm("a", "qemu64", protected), vm("b", "qemu64", ""))
	const held = `blocked: it is protected (gitvirt.io/protect); apply it with "false" first`
	for _, grace := range []string{"", ", removalGrace: 1h"} {
		want := desired(t, fleet("{apply: {destroy: automatic}"+grace+"}"))
		have := plan.FromDesired(old, "old")
		for _, domain := range have.Domains {
			domain.Fleet = "fleet"
		}
		got := describe(build(t, want, have, policy.Options{Now: at(t, "2026-11-22 12:00"), Attended: true}))
		if lines := strings.Split(got, "\n"); !strings.HasSuffix(lines[0], held) || strings.Contains(lines[1], "|") {
			t.Errorf("got %s", got)
		}
	}
}

// TestBudgetsCountMachines: a machine that is tried again costs nothing more; when nobody can tell what was spent there is no
// room but for what was spent already or is approved; and what takes turns is told and waits for nothing.
func TestBudgetsCountMachines(t *testing.T) {
	before := desired(t, vm("a", "qemu64", ""), vm("b", "qemu64", ""), vm("c", "qemu64", ""))
	want := desired(t, vm("a", "Penryn", ""), vm("b", "Penryn", ""), vm("c", "Penryn", ""),
		fleet(`{apply: {restart: automatic}, budgets: [{name: half, restartPerRevision: 50%, restartPerHost: 34%}]}`))
	have := plan.FromDesired(before, "old")
	spent := func(names ...string) (done []policy.Spent) {
		for _, name := range names {
			done = append(done, policy.Spent{Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}, Interrupts: true})
		}
		return done
	}
	first := build(t, want, have, policy.Options{})
	approval := policy.Approval{Steps: []string{first.Steps[2].ID}, By: "Ada <ada@example.com>", At: at(t, "2026-11-22 07:00")}
	for _, test := range []struct {
		why     string
		options policy.Options
		runs    string
	}{
		{"nothing was spent", policy.Options{}, "a b"},
		{"a failed, and is tried again", policy.Options{History: policy.History{Done: spent("a", "a", "a")}}, "a b"},
		{"the budget is spent", policy.Options{History: policy.History{Done: spent("b", "c")}}, "b c"},
		{"nobody can tell", policy.Options{History: policy.History{Doubt: "line 1 cannot be read"}}, ""},
		{"nobody can tell what else was spent", policy.Options{History: policy.History{Done: spent("b"), Doubt: "line 1 cannot be read"}}, "b"},
		{"an approval is a decision", policy.Options{History: policy.History{Doubt: "line 1 cannot be read"}, Approvals: []policy.Approval{approval}}, "c"},
	} {
		p := build(t, want, have, test.options)
		var runs []string
		for i := range p.Steps {
			step := &p.Steps[i]
			if step.Runs() {
				runs = append(runs, step.Address.Name)
			}
			if approved := step.Approved; (approved != nil) != (len(test.options.Approvals) > 0 && step.Address.Name == "c") || approved != nil && approved.By != approval.By {
				t.Errorf("%s: %s is approved by %+v", test.why, step.Address.Name, approved)
			}
		}
		if got := strings.Join(runs, " "); got != test.runs {
			t.Errorf("%s: %q run, want %q", test.why, got, test.runs)
		}
		if p.ID != first.ID {
			t.Errorf("%s: it is another plan", test.why)
		}
	}
	bounds := policy.New(want.Fleet, policy.Options{}).HostBounds(first.Fleet, want, have)
	if len(bounds) != 1 || bounds[0].Limit != 2 || bounds[0].Base != 3 || !bounds[0].Counts(&first.Steps[0], nil) {
		t.Errorf("the bounds are %+v", bounds)
	}
	p := build(t, want, have, policy.Options{Approvals: []policy.Approval{approval}})
	if len(p.Notes) != 0 {
		t.Errorf("two of three at a time are told to take turns: %q", p.Notes)
	}
}
