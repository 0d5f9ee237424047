package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// ApprovalBranch is a StatusBranch that people write approvals to.
type ApprovalBranch interface {
	// ReadFolder returns the files below a folder of the branch and the commit that they are of; no files when that is
	// still the commit known.
	ReadFolder(ctx context.Context, folder, known string) (files map[string][]byte, commit string, err error)
}

// approvals are those that a status branch holds.
type approvals struct {
	// branch is its name; "" where nobody keeps one.
	branch string
	list   []status.Approval
}

// approver looks for approvals, and for those that were taken back: once in each interval, after each new revision, and when it is nudged.
type approver struct {
	r *Reconciler
	// name and branch are the status branch that was opened last, "" and nil for none; commit is where it was when it was read.
	opened bool
	name   string
	branch ApprovalBranch
	read   bool
	commit string
	// told is the problem that was told last.
	told string
}

// run looks until ctx ends. What it finds goes to out, all approvals at once.
func (a *approver) run(ctx context.Context, out chan<- approvals) {
	for {
		timer := a.r.config.Clock.NewTimer(a.interval())
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-a.r.approvalNudges:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
		found, news := a.look(ctx)
		if !news {
			continue
		}
		select {
		case out <- found:
		case <-ctx.Done():
			return
		}
	}
}

// interval is that of the polls.
func (a *approver) interval() time.Duration {
	if a.r.config.Interval > 0 {
		return a.r.config.Interval
	}
	if view := a.r.View(); view.Desired != nil {
		if wanted := time.Duration(view.Desired.Fleet.Spec.Interval); wanted > 0 {
			return wanted
		}
	}
	return DefaultInterval
}

// look reads the approvals when there may be others.
func (a *approver) look(ctx context.Context) (found approvals, news bool) {
	desired := a.r.View().Desired
	if desired == nil {
		return approvals{}, false
	}
	if another := a.open(desired.Fleet); a.branch == nil {
		return approvals{branch: a.name}, another // there are none
	}
	reading, cancel := context.WithTimeout(ctx, a.r.config.PollTimeout)
	files, commit, err := a.branch.ReadFolder(reading, status.ApprovalFolder, a.commit)
	cancel()
	switch {
	case ctx.Err() != nil:
		return approvals{}, false
	case errors.Is(err, sources.ErrEmpty): // there is no branch yet, or no more
		files, commit = nil, ""
	case err != nil:
		a.tell("reading approvals from " + a.name + ": " + problemOf(err))
		return approvals{}, false
	}
	if a.read && commit == a.commit {
		return approvals{}, false
	}
	a.read, a.commit = true, commit
	list, problems := status.ReadApprovals(files)
	a.tell(strings.Join(problems, "; "))
	return approvals{branch: a.name, list: list}, true
}

// tell says what is wrong, once.
func (a *approver) tell(problem string) {
	if problem != "" && problem != a.told {
		a.r.event(Warning, ApprovalFailed, schemas.Address{}, "", problem)
	}
	a.told = problem
}

// open finds the branch that the Fleet names, and reports whether it is another one than before.
func (a *approver) open(fleet *schemas.Fleet) (another bool) {
	name := a.r.approvalsOn(fleet)
	if a.opened && name == a.name {
		return false
	}
	a.opened, a.name, a.branch, a.read, a.commit = true, name, nil, false, ""
	if name != "" {
		a.branch, _ = a.r.config.Status(name).(ApprovalBranch)
	}
	return true
}

// approvalsOn is the branch that a Fleet's approvals are on; "" where there is none.
func (r *Reconciler) approvalsOn(fleet *schemas.Fleet) string {
	if wanted := fleet.Spec.Status; r.config.Status != nil && wanted.IsEnabled() {
		return wanted.Branch
	}
	return ""
}

// approvable reports whether a step of a plan waits for something that an approval ends.
func approvable(p *plan.Plan) bool {
	return slices.ContainsFunc(p.Steps, func(step plan.Step) bool { return step.Approvable() })
}

// approved takes the approvals that the status branch holds now. Of those that were there before this process, only what matters now is told.
func (l *loop) approved(found approvals) {
	first := l.approvals == nil || l.approvals.branch != found.branch
	known := map[string]bool{}
	if !first {
		for i := range l.approvals.list {
			known[l.approvals.list[i].Path()] = true
		}
	}
	for i := range found.list {
		if a := &found.list[i]; !known[a.Path()] && a.Fleet == l.desired.Fleet.Name && (!first || concerns(a, l.plan)) {
			l.r.event(Normal, PlanApproved, schemas.Address{}, a.Revision,
				fmt.Sprintf("%s approved %s of plan %.12s", status.OneLine(a.By), plural(len(a.Steps), "step"), a.Plan))
		}
	}
	l.approvals = &found
	l.replan, l.dirty = true, true
}

// concerns reports whether an approval is of a step of a plan.
func concerns(a *status.Approval, p *plan.Plan) bool {
	return p != nil && slices.ContainsFunc(a.Steps, func(approved status.ApprovedStep) bool {
		return slices.ContainsFunc(p.Steps, func(step plan.Step) bool { return step.ID == approved.ID })
	})
}

// given are the approvals that count; they are known when the branch that the Fleet names was read.
func (l *loop) given() (list []policy.Approval, known bool) {
	if l.desired == nil || l.approvals == nil || l.approvals.branch != l.r.approvalsOn(l.desired.Fleet) {
		return nil, false
	}
	return status.ApprovalsFor(l.approvals.list, l.desired.Fleet.Name), true
}
