package why_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/reconciler/why"
	"github.com/gitvirt/gitvirt/schemas"
)

var web = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"} //nolint:gochecknoglobals // a constant

func desired(manifests ...string) *schemas.Desired {
	var files []*schemas.File
	for i, text := range manifests {
		files = append(files, schemas.Parse(fmt.Sprintf("%d.yaml", i), []byte(text)))
	}
	return schemas.Assemble(files)
}

const manifest = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: web}\nspec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}}}}\n"

// gather derives facts from what a host looks like after change.
func gather(t *testing.T, change func(*plan.Observed)) why.Facts {
	t.Helper()
	want := desired(manifest)
	have := plan.FromDesired(want, "rev")
	change(&have)
	p, err := plan.Build(want, have, plan.Options{Revision: "rev"})
	if err != nil {
		t.Fatal(err)
	}
	facts, ok := why.Gather(web, want, have, p)
	if !ok {
		t.Fatal("the machine is not known")
	}
	return facts
}

// attempted derives facts from what a controller tried.
func attempted(attempt status.Attempt, step *plan.Step) why.Facts {
	want := desired(manifest)
	have := plan.FromDesired(want, "rev")
	vm := status.Of(status.Input{Address: web, VM: want.VMs[0], Domain: have.Domains[0], Step: step, Attempt: attempt, Revision: "rev"})
	return why.Facts{VM: vm, Step: step, PlanID: "0123", Revision: "rev"}
}

func TestOf(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	restart := func(waits ...plan.Wait) *plan.Step {
		return &plan.Step{Address: web, Action: plan.ActionRestart, Summary: "must be restarted", Waits: waits}
	}
	db := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "shop", Name: "db"}
	ordered := restart()
	ordered.DependsOn = []plan.Dependency{{Address: db}}
	for _, test := range []struct {
		reason  string
		facts   why.Facts
		synced  bool
		kinds   []why.Kind
		said    string
		command string
	}{
		{"as it is wanted", gather(t, func(*plan.Observed) {}), true, nil, "is as revision rev wants it", ""},
		{"not ready", gather(t, func(o *plan.Observed) { o.Domains[0].Ready, o.Domains[0].ReadyReason = "false", "connection refused" }), true, []why.Kind{why.NotReady}, "connection refused", "gitvirt describe default/web"},
		{"nobody knows", gather(t, func(o *plan.Observed) { *o = plan.Observed{Unknown: "libvirt is down"} }), false, []why.Kind{why.HostUnknown}, "libvirt is down", "gitvirt doctor"},
		{"its record is spoilt", gather(t, func(o *plan.Observed) { o.Domains[0].Problem = "garbage" }), false, []why.Kind{why.HeldBack}, "garbage", ""},
		{"about to be done", attempted(status.Attempt{}, restart()), false, []why.Kind{why.Pending}, "about to carry it out", ""},
		{"being done", attempted(status.Attempt{Action: plan.ActionRestart}, restart()), false, []why.Kind{why.Applying}, "is being carried out now", ""},
		{"failed", attempted(status.Attempt{Error: "no space", RetryAt: at}, restart()), false, []why.Kind{why.Failed}, "no space (tried again at 2026-01-02 03:04:05 UTC)", "gitvirt describe default/web"},
		{"stalled", attempted(status.Attempt{Error: "no such image", Stalled: true, RetryAt: at}, restart()), false, []why.Kind{why.Stalled}, "cannot be done until git or the host changes: no such image", "gitvirt describe default/web"},
		{"crash loop", attempted(status.Attempt{CrashLoop: true, Restarts: 4, RetryAt: at}, restart()), false, []why.Kind{why.CrashLoop}, "keeps going down (4 restarts)", "gitvirt describe default/web"},
		{"paced", attempted(status.Attempt{Waits: "canaries first"}, restart()), false, []why.Kind{why.Dependency}, "has not begun: canaries first", ""},
		{"an approval", attempted(status.Attempt{}, restart(plan.Wait{For: plan.WaitApproval, Reason: "no windows"})), false, []why.Kind{why.NeedApproval}, "waits for an approval: no windows", "gitvirt approve 0123 --only default/web"},
		{"a window", attempted(status.Attempt{}, restart(plan.Wait{For: plan.WaitWindow, Until: at, Reason: "nights"})), false, []why.Kind{why.Window}, "(until 2026-01-02 03:04:05 UTC)", "gitvirt approve 0123"},
		{"grace", attempted(status.Attempt{}, restart(plan.Wait{For: plan.WaitGrace, Until: at, Reason: "kept for a day"})), false, []why.Kind{why.Grace}, "end of its grace period", ""},
		{"another VM", attempted(status.Attempt{Waits: "waits for shop/db"}, ordered), false, []why.Kind{why.Dependency}, "waits for shop/db", "gitvirt why shop/db"},
	} {
		answer := why.Of(test.facts)
		var kinds []why.Kind
		commands := ""
		for _, cause := range answer.Causes {
			kinds = append(kinds, cause.Kind)
			commands += cause.Command
		}
		if text := answer.Text(); answer.Synced != test.synced || !slices.Equal(kinds, test.kinds) || !strings.Contains(text, test.said) || !strings.HasPrefix(commands, test.command) || (test.command == "") != (commands == "") {
			t.Errorf("%s: synced %v, kinds %v, commands %q, text:\n%s", test.reason, answer.Synced, kinds, commands, text)
		}
	}
}

func TestNobodyKnowsTheMachine(t *testing.T) {
	want := desired(manifest)
	p, err := plan.Build(want, plan.Observed{}, plan.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := why.Gather(schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "other"}, want, plan.Observed{}, p); ok {
		t.Error("a machine that is nowhere is known")
	}
}
