package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/reconcilertest"
	"github.com/gitvirt/gitvirt/sources/git/gittest"
)

// TestCommandReachesTheLoop: what somebody approves by a comment is recorded and carried out at once, and not at the next poll.
func TestCommandReachesTheLoop(t *testing.T) {
	t.Parallel()
	repo := gittest.NewRepo(t)
	repo.Commit(map[string]string{
		"gitvirt.yaml": "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: shop}\nspec:\n  pullRequests: {commands: true}\n  policy: {apply: {create: approval}}\n",
		"web.yaml":     bare("web", "64Mi"),
	})
	repo.Git("branch", "topic", "main")
	head := repo.CommitTo("topic", map[string]string{"README.md": "Hello\n"})
	repo.Git("update-ref", "refs/pull/1/head", head)
	forge := fake.New(time.Now)
	forge.Open(forges.PullRequest{Number: 1, Author: "ann", Base: "main", Head: head})
	forge.Grant("ann", forges.Write)

	c := &cli{stdout: io.Discard, stderr: io.Discard, getenv: func(string) string { return "" }}
	f := &runFlags{interval: time.Hour}
	f.source.config.URL, f.agent.stateDir = repo.Dir, t.TempDir()
	source, err := c.openSource(f)
	if err != nil {
		t.Fatal(err)
	}
	host := reconcilertest.NewHost()
	loop, err := reconciler.New(source.Source, host, reconciler.Config{Interval: f.interval, Status: source.branches.status()})
	if err != nil {
		t.Fatal(err)
	}
	pulls, err := c.pullRequests(f, source.main, forge, loop, source.branches)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- pulls.Run(ctx) }()
	defer func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		source.close()
	}()
	eventually := func(what string, happened func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !happened(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s; the forge has %q", what, forge.Said(1, fake.Account))
			}
		}
	}
	eventually("a plan waits, and is on the pull request", func() bool {
		view := loop.View()
		return view.Plan != nil && len(view.Plan.Steps) == 1 && len(forge.Said(1, fake.Account)) == 1
	})
	forge.Say(1, "ann", "/gitvirt approve "+loop.View().Plan.ID)
	pulls.Nudge()
	eventually("the answer", func() bool {
		return strings.Contains(forge.Said(1, fake.Account)[0], "**done**, approved 1 step of plan")
	})
	eventually("the machine is made", func() bool {
		return slices.ContainsFunc(host.Executions(), func(e reconcilertest.Execution) bool { return e.Action == plan.ActionCreate && e.Err == nil })
	})
	if got := repo.Git("log", "-1", "--format=%an", "gitvirt/status", "--", "approvals"); got != "ann (forge.example.org/shop/fleet#1)" {
		t.Errorf("it was approved by %s", got)
	}
}

// TestNoStatusBranch: a controller that writes none records no approvals.
func TestNoStatusBranch(t *testing.T) {
	var none statusBranches
	if none.status() != nil || none.approvals(nil) != nil {
		t.Error("there is a status branch")
	}
}
