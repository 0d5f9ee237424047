package main

import (
	"context"

	"github.com/gitvirt/gitvirt/previews"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/reconciler/statusbranch"
)

// statusBranches finds the status branch that a Fleet names; nil where none is written.
type statusBranches func(name string) statusbranch.Branch

// status is where a loop writes the status.
func (b statusBranches) status() func(name string) reconciler.StatusBranch {
	if b == nil {
		return nil
	}
	return func(name string) reconciler.StatusBranch { return b(name) }
}

// approvals is where approvals of people who command it on a pull request are recorded. The loop looks for them at once.
func (b statusBranches) approvals(loop *reconciler.Reconciler) func(name string) previews.ApprovalBranch {
	if b == nil {
		return nil
	}
	return func(name string) previews.ApprovalBranch { return approving{b(name), loop} }
}

// approving is a status branch whose approvals are looked for as soon as one is recorded.
type approving struct {
	statusbranch.Branch
	loop *reconciler.Reconciler
}

// Approve implements previews.ApprovalBranch.
func (a approving) Approve(ctx context.Context, approval *status.Approval) (commit string, err error) {
	commit, err = a.Branch.Approve(ctx, approval)
	if commit != "" {
		a.loop.Nudge()
	}
	return commit, err
}
