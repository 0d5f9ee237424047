package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
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

// approver looks for approvals while steps wait for one. When none does it asks nobody.
type approver struct {
	r *Reconciler
	// name and branch are the status branch that was read last, commit is where it was.
	name   string
	branch ApprovalBranch
	commit string
	// told is the problem that was told last.
	told string
}

// run looks once in each interval, and when it is nudged, until ctx ends. What it finds goes to out, all approvals at once.
func (a *approver) run(ctx context.Context, out chan<- []status.Approval) {
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
		approvals, news := a.look(ctx)
		if !news {
			continue
		}
		select {
		case out <- approvals:
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

// look reads the approvals when there may be new ones that matter.
func (a *approver) look(ctx context.Context) (approvals []status.Approval, news bool) {
	view := a.r.View()
	if view.Plan == nil || !approvable(view.Plan) || !a.open(view) {
		return nil, false
	}
	reading, cancel := context.WithTimeout(ctx, a.r.config.PollTimeout)
	files, commit, err := a.branch.ReadFolder(reading, status.ApprovalFolder, a.commit)
	cancel()
	switch {
	case ctx.Err() != nil, errors.Is(err, sources.ErrEmpty):
		return nil, false // there is no branch yet
	case err != nil:
		a.tell("reading approvals from " + a.name + ": " + problemOf(err))
		return nil, false
	case commit == a.commit:
		return nil, false
	}
	a.commit = commit
	approvals, problems := status.ReadApprovals(files)
	a.tell(strings.Join(problems, "; "))
	return approvals, true
}

// tell says what is wrong, once.
func (a *approver) tell(problem string) {
	if problem != "" && problem != a.told {
		a.r.event(Warning, ApprovalFailed, schemas.Address{}, "", problem)
	}
	a.told = problem
}

// open finds the branch that the Fleet names.
func (a *approver) open(view *View) bool {
	wanted := view.Desired.Fleet.Spec.Status
	if a.r.config.Status == nil || !wanted.IsEnabled() {
		return false
	}
	if wanted.Branch != a.name {
		branch, _ := a.r.config.Status(wanted.Branch).(ApprovalBranch)
		a.name, a.branch, a.commit = wanted.Branch, branch, ""
	}
	return a.branch != nil
}

// approvable reports whether a step of a plan waits for something that an approval ends.
func approvable(p *plan.Plan) bool {
	for i := range p.Steps {
		if p.Steps[i].Approvable() {
			return true
		}
	}
	return false
}

// approved takes the approvals that the status branch holds now.
func (l *loop) approved(approvals []status.Approval) {
	known := make(map[string]bool, len(l.approvals))
	for i := range l.approvals {
		known[l.approvals[i].Path()] = true
	}
	for i := range approvals {
		if a := &approvals[i]; !known[a.Path()] && a.Fleet == l.desired.Fleet.Name {
			l.r.event(Normal, PlanApproved, schemas.Address{}, a.Revision,
				fmt.Sprintf("%s approved %s of plan %.12s", status.OneLine(a.By), plural(len(a.Steps), "step"), a.Plan))
		}
	}
	l.approvals = approvals
	l.replan, l.dirty = true, true
}
