package reconciler_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestApprovalsOfTheBranch: those of the branch that the Fleet names count, as of the revision that names it; those of another do not, and what
// was there before a controller began is told only where it matters.
func TestApprovalsOfTheBranch(t *testing.T) {
	const machine = "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: web}\nspec: {runStrategy: Always, template: {spec: {domain: {memory: {guest: 64Mi}}}}}\n"
	fleet := func(branch string) string {
		return "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {status: {branch: " + branch + "}, policy: {apply: {destroy: approval}}}\n"
	}
	synctest.Test(t, func(t *testing.T) {
		repo := reconcilertest.NewRepository(map[string]string{"gitvirt.yaml": fleet("one"), "web.yaml": machine})
		branches := map[string]*reconcilertest.Branch{"one": reconcilertest.NewBranch(), "two": reconcilertest.NewBranch()}
		web := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: "web"}
		old := status.Approval{Plan: "0123456789abcdef", Fleet: "demo", By: "Ada <ada@example.com>", At: time.Unix(0, 0).UTC(), Steps: []status.ApprovedStep{{ID: "old", Address: web, Action: plan.ActionDestroy}}}
		put := func(branch string, approval *status.Approval) {
			content, err := approval.YAML()
			if err != nil {
				t.Fatal(err)
			}
			branches[branch].Put(approval.Path(), content)
		}
		put("one", &old)
		loop, err := reconciler.New(repo, reconcilertest.NewHost(), reconciler.Config{
			Interval: time.Hour, Rand: func() float64 { return 0 }, Status: func(name string) reconciler.StatusBranch { return branches[name] },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- loop.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		approved := func() (n int) {
			for _, event := range loop.Events(0) {
				if event.Reason == reconciler.PlanApproved {
					n += event.Count
				}
			}
			return n
		}
		pause := func() { time.Sleep(time.Minute); synctest.Wait() }
		pause()
		if view := loop.View(); !view.ApprovalsKnown || len(view.Approvals) != 1 || approved() != 0 {
			t.Fatalf("known %v, %+v, told %d times", view.ApprovalsKnown, view.Approvals, approved())
		}

		// The machine goes, which waits. The approval is on the branch, which a new revision has looked at.
		repo.Commit("remove it", map[string]string{"web.yaml": ""})
		loop.Nudge()
		pause()
		gone := status.NewApproval(loop.View().Plan, func(*plan.Step) bool { return true })
		if len(gone.Steps) != 1 {
			t.Fatalf("the plan: %+v", loop.View().Plan.Steps)
		}
		gone.By, gone.At = old.By, time.Now().UTC().Truncate(time.Second)

		// On a branch that nobody can read yet, it does not count, nor do those of the branch before.
		branches["two"].Fail(errors.New("the server is down"))
		repo.Commit("another branch", map[string]string{"gitvirt.yaml": fleet("two")})
		loop.Nudge()
		pause()
		put("one", gone)
		loop.Nudge()
		pause()
		if view := loop.View(); view.ApprovalsKnown || len(view.Approvals) != 0 || len(view.Plan.Steps) != 1 {
			t.Fatalf("known %v, %+v, %+v", view.ApprovalsKnown, view.Approvals, view.Plan.Steps)
		}
		branches["two"].Fail(nil)
		put("two", gone)
		told := approved()
		repo.Commit("more", map[string]string{"more.yaml": "# nothing\n"})
		loop.Nudge()
		pause()
		if view := loop.View(); !view.ApprovalsKnown || len(view.Plan.Steps) != 0 || approved() != told+1 {
			t.Errorf("known %v, %+v, told %d times", view.ApprovalsKnown, view.Plan.Steps, approved()-told)
		}
	})
}
