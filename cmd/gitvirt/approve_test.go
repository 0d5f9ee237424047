package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestApproveLetsItHappen: with the policy that a Fleet has when it says nothing, a removed VM and a restart wait; what
// was approved happens, with the name of who approved in the history, and nothing else does.
func TestApproveLetsItHappen(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	image := libvirttest.PushGuest(t)
	web := vm{name: "web-1", script: "echo booted"}.manifest(image)
	r.repo.Commit(map[string]string{
		"gitvirt.yaml": strings.Replace(fleetManifest, automatic, "", 1), "web.yaml": web,
		"old.yaml": vm{name: "old-1", strategy: "Halted"}.manifest(image), "older.yaml": vm{name: "old-2", strategy: "Halted"}.manifest(image),
	})
	r.start()
	r.settled("", map[string]status.Phase{"web-1": status.PhaseRunning, "old-1": status.PhaseStopped, "old-2": status.PhaseStopped})
	r.says("web-1", "booted", 1)
	qemu := r.daemon.QEMU("default_web-1")

	revision := r.repo.Commit(map[string]string{
		"web.yaml": strings.Replace(web, "memory: {guest: 96Mi}", "cpu: {model: qemu64}\n        memory: {guest: 96Mi}", 1),
		"old.yaml": "", "older.yaml": "",
	})
	var waiting *plan.Plan
	r.eventually("the plan on the status branch tells what waits", func() bool {
		if !r.statusBranchAt(revision) {
			return false
		}
		var err error
		waiting, err = plan.ReadJSON([]byte(r.repo.File("gitvirt/status", status.PlanPath)))
		return err == nil && len(waiting.Steps) == 3
	})
	for _, step := range waiting.Steps {
		if len(step.Waits) == 0 || !strings.Contains(step.Waits[0].Reason, "gitvirt approve") {
			t.Errorf("%s does not say how it is approved: %+v", step.Address, step.Waits)
		}
	}
	approve := func(args ...string) (string, int) {
		return r.gitvirt(append([]string{"approve", "--git", r.url, "--branch", "main", "--as", "Ada <ada@example.com>", "--auto-approve"}, args...)...)
	}
	if out, code := approve("00000000"); code != 1 || !strings.Contains(out, "the present plan is "+waiting.ID[:12]) {
		t.Errorf("another plan: exit %d\n%s", code, out)
	}
	if out, code := approve(waiting.ID, "--only", "nobody"); code != 1 || !strings.Contains(out, "no step for nobody") {
		t.Errorf("an unknown VM: exit %d\n%s", code, out)
	}
	out, code := approve(waiting.ID[:8], "--only", "old-1")
	if code != 0 || !strings.Contains(out, "default/old-1 will be destroyed") || strings.Contains(out, "web-1") {
		t.Fatalf("approve: exit %d\n%s", code, out)
	}
	r.eventually("old-1 is gone", func() bool { return !strings.Contains(r.daemon.Virsh("list", "--all", "--name"), "old-1") })
	if domains := r.daemon.Virsh("list", "--all", "--name"); !strings.Contains(domains, "old-2") || r.daemon.QEMU("default_web-1") != qemu {
		t.Errorf("what nobody approved happened:\n%s", domains)
	}
	if history := r.repo.Git("log", "--format=%an <%ae> %s", "gitvirt/status", "--", "approvals"); !strings.HasPrefix(history, "Ada <ada@example.com> Approve plan "+waiting.ID[:12]+": destroy default/old-1") {
		t.Errorf("the history of approvals: %s", history)
	}
	r.eventually("the rest waits in a plan of its own", func() bool {
		p, err := plan.ReadJSON([]byte(r.repo.File("gitvirt/status", status.PlanPath)))
		if err != nil || len(p.Steps) != 2 {
			return false
		}
		waiting = p
		return true
	})
	if out, code := approve(waiting.ID); code != 0 {
		t.Fatalf("approve the rest: exit %d\n%s", code, out)
	}
	r.settled(revision, map[string]status.Phase{"web-1": status.PhaseRunning})
	r.says("web-1", "booted", 2)
	r.eventually("no plan is left on the branch", func() bool { return r.repo.File("gitvirt/status", status.PlanPath) == "" })
}

func TestApprovalOf(t *testing.T) {
	address := func(name string) schemas.Address {
		return schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "shop", Name: name}
	}
	waits := []plan.Wait{{For: plan.WaitApproval, Reason: "somebody has to approve"}}
	p := &plan.Plan{ID: strings.Repeat("ab", 16), Fleet: "f", Revision: "r", Steps: []plan.Step{
		{ID: "1", Address: address("gone"), Action: plan.ActionDestroy, Waits: waits},
		{ID: "2", Address: address("kept"), Action: plan.ActionDestroy, Waits: waits, Blocked: "it is protected"},
		{ID: "3", Address: address("new"), Action: plan.ActionCreate},
		{ID: "4", Address: address("web"), Action: plan.ActionRestart, Waits: []plan.Wait{{For: plan.WaitWindow, Reason: "nights"}}},
	}}
	for _, test := range []struct {
		why, id string
		only    []string
		want    string
	}{
		{"everything that waits", "abababab", nil, "1 4"},
		{"capitals", "ABABABAB", nil, "1 4"},
		{"one", p.ID, []string{"web"}, "4"},
		{"one by namespace", p.ID, []string{"shop/gone"}, "1"},
		{"too short", "ababab", nil, "the present plan is abababababab at revision r, not ababab"},
		{"another", "abababac", nil, "the present plan is abababababab"},
		{"blocked", p.ID, []string{"kept"}, "shop/kept cannot be approved: it is protected"},
		{"needs none", p.ID, []string{"new"}, "nothing in the plan waits"},
		{"not there", p.ID, []string{"other/web"}, "no step for other/web"},
	} {
		t.Run(test.why, func(t *testing.T) {
			approval, err := approvalOf(p, test.id, test.only)
			got := fmt.Sprint(err)
			if err == nil {
				var ids []string
				for _, step := range approval.Steps {
					ids = append(ids, step.ID)
				}
				got = strings.Join(ids, " ")
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
