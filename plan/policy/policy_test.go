package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the same zones wherever the test runs

	"github.com/google/go-cmp/cmp"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// vm is a manifest; more goes under metadata, after namespace and name.
func vm(name, memory, more string) string {
	return fmt.Sprintf("apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: %s%s}\nspec:\n  runStrategy: Always\n  template:\n    spec:\n      domain: {cpu: {model: %s}, memory: {guest: 64Mi}, devices: {}}\n",
		name, more, memory)
}

// fleet is a Fleet with a policy, which is one line of YAML.
func fleet(text string) string {
	return "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: fleet}\nspec: {policy: " + text + "}\n"
}

// desired reads manifests, without mistakes.
func desired(t testing.TB, manifests ...string) *schemas.Desired {
	t.Helper()
	var files []*schemas.File
	for i, manifest := range manifests {
		files = append(files, schemas.Parse(fmt.Sprintf("file-%d.yaml", i), []byte(manifest)))
	}
	d := schemas.Assemble(files)
	if d.Diagnostics.Errors() > 0 {
		t.Fatal(d.Diagnostics)
	}
	return d
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse("2006-01-02 15:04", text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func build(t testing.TB, want *schemas.Desired, have plan.Observed, options policy.Options) *plan.Plan {
	t.Helper()
	p, err := plan.Build(want, have, plan.Options{Revision: "r", Policy: policy.New(want.Fleet, options)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// describe says what happens to each step.
func describe(p *plan.Plan) string {
	var b strings.Builder
	for _, step := range p.Steps {
		fmt.Fprintf(&b, "%s %s", step.Action, step.Address.Name)
		for _, wait := range step.Waits {
			fmt.Fprintf(&b, " | %s: %s", wait.For, wait.Reason)
		}
		for _, warning := range step.Warnings {
			fmt.Fprintf(&b, " | warning: %s", warning)
		}
		if step.Blocked != "" {
			fmt.Fprintf(&b, " | blocked: %s", step.Blocked)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestVerdicts has one machine of each kind of step: new is created, cpu is restarted, gone is destroyed.
func TestVerdicts(t *testing.T) {
	const nights = `windows: [{name: nights, schedule: "0 2 * * 6", duration: 4h, timeZone: Europe/Berlin}]`
	for _, test := range []struct {
		why, policy, now string
		options          policy.Options
		want             string
	}{
		{
			why: "the defaults: a fleet without windows waits for approval", policy: "{}", now: "2026-11-22 12:00",
			want: `restart cpu | approval: waits for gitvirt approve (apply.restart is window, and the Fleet has no window for the machine)
destroy gone | approval: waits for gitvirt approve (apply.destroy is approval)
create new
`,
		},
		{
			why: "a window that is closed", policy: "{" + nights + "}", now: "2026-11-22 12:00",
			want: `restart cpu | window: waits for the window nights, which opens Sat 28 Nov 2026 02:00 Europe/Berlin; or gitvirt approve
destroy gone | approval: waits for gitvirt approve (apply.destroy is approval)
create new
`,
		},
		{
			why: "a window that is open lets restarts happen and nothing worse", policy: "{" + nights + "}", now: "2026-11-28 01:00",
			want: `restart cpu
destroy gone | approval: waits for gitvirt approve (apply.destroy is approval)
create new
`,
		},
		{
			why: "a person who watches", policy: "{" + nights + "}", now: "2026-11-22 12:00", options: policy.Options{Attended: true},
			want: "restart cpu\ndestroy gone\ncreate new\n",
		},
		{
			why: "a deny window beats an open window and a person", now: "2026-11-28 01:30", options: policy.Options{Attended: true},
			policy: `{windows: [{name: nights, schedule: "0 2 * * 6", duration: 4h, timeZone: Europe/Berlin}, {name: freeze, schedule: "0 1 28 11 *", duration: 1h, action: deny, selector: {matchLabels: {tier: web}}}]}`,
			want: `restart cpu | window: nothing is changed while freeze is open, which it is until Sat 28 Nov 2026 02:00 UTC
destroy gone | window: nothing is changed while freeze is open, which it is until Sat 28 Nov 2026 02:00 UTC
create new
`,
		},
		{
			why: "never", policy: "{apply: {restart: never, destroy: automatic, create: approval}}", now: "2026-11-22 12:00", options: policy.Options{Attended: true},
			want: "restart cpu | blocked: it is only shown (the Fleet's apply.restart is never)\ndestroy gone\ncreate new\n",
		},
		{
			why: "rules that block, want an approval, warn", now: "2026-11-22 12:00",
			policy: `{apply: {restart: automatic, destroy: automatic}, rules: [` +
				`{name: web-stays, expression: "step.action != 'destroy' || object.metadata.labels.?tier.orValue('') != 'web'", message: machines of the web stay}, ` +
				`{name: cpu, expression: "!step.changes.exists(c, c.path.endsWith('cpu.model'))", message: CPU models are looked at first, action: approval}, ` +
				`{name: owner, expression: "has(object.metadata.labels.owner)", message: nobody owns it, action: warn}]}`,
			want: `restart cpu | approval: waits for gitvirt approve: CPU models are looked at first (rule cpu) | warning: nobody owns it (rule owner)
destroy gone | warning: nobody owns it (rule owner) | blocked: machines of the web stay (rule web-stays)
create new | warning: nobody owns it (rule owner)
`,
		},
		{
			why: "a rule that cannot be evaluated blocks its step", now: "2026-11-22 12:00",
			policy: `{apply: {restart: automatic, destroy: automatic}, rules: [{name: old, expression: "before.metadata.name != 'new'", message: no}, {name: key, expression: "object.metadata.labels.tier == 'web'", message: no}]}`,
			want:   "restart cpu\ndestroy gone\ncreate new | blocked: the rule old cannot be evaluated: the machine is new: before is null\n",
		},
		{
			why: "budgets", now: "2026-11-22 12:00",
			policy: `{apply: {restart: automatic, destroy: automatic}, budgets: [{name: careful, restartPerRevision: 0, destroyPerRevision: 50%}]}`,
			want: `restart cpu | budget: waits for gitvirt approve: the budget careful lets one revision interrupt 0 of 2 machines, and 0 come before it
destroy gone
create new
`,
		},
		{
			why: "what was done counts, and a person does not lift a budget", now: "2026-11-22 12:00",
			policy:  `{budgets: [{name: careful, destroyPerRevision: 33%}]}`,
			options: policy.Options{Attended: true, History: policy.History{Done: []policy.Spent{{Destroys: true, Address: schemas.Address{Name: "other"}}}}},
			want: `restart cpu
destroy gone | budget: waits for gitvirt approve: the budget careful lets one revision destroy 1 of 3 machines, and 1 come before it
create new
`,
		},
	} {
		t.Run(test.why, func(t *testing.T) {
			old := desired(t, vm("cpu", "qemu64", ", labels: {tier: web}"), vm("gone", "qemu64", ", labels: {tier: web}"))
			want := desired(t, vm("cpu", "Penryn", ", labels: {tier: web}"), vm("new", "qemu64", ", labels: {tier: db}"), fleet(test.policy))
			test.options.Now = at(t, test.now)
			p := build(t, want, plan.FromDesired(old, "old"), test.options)
			if diff := cmp.Diff(test.want, describe(p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
