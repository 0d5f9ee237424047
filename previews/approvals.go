package previews

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// ApprovalBranch is where approvals are recorded: the status branch.
type ApprovalBranch interface {
	reconciler.ApprovalBranch
	// Approve records an approval and returns the commit; "" when each of the steps was approved before.
	Approve(ctx context.Context, approval *status.Approval) (commit string, err error)
}

// approvals are those that the status branch held when it was read last: the steps that they name do not wait. It is safe for concurrent use.
type approvals struct {
	mu sync.Mutex
	// branch and commit are what was read, version counts how often it said something else.
	branch, commit string
	list           []status.Approval
	version        int
}

// read takes what a branch holds now. What is on it that is no approval, the reconciler tells.
func (a *approvals) read(ctx context.Context, name string, branch ApprovalBranch) error {
	a.mu.Lock()
	known := a.commit
	if name != a.branch {
		known = ""
	}
	a.mu.Unlock()
	files, commit, err := branch.ReadFolder(ctx, status.ApprovalFolder, known)
	switch {
	case errors.Is(err, sources.ErrEmpty): // there is no branch yet
		files, commit = nil, ""
	case err != nil:
		return fmt.Errorf("reading approvals from %s: %w", name, err)
	case commit == known:
		return nil
	}
	list, _ := status.ReadApprovals(files)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !reflect.DeepEqual(a.list, list) {
		a.version++
	}
	a.branch, a.commit, a.list = name, commit, list
	return nil
}

// forget is for where approvals are not recorded any more.
func (a *approvals) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.list != nil {
		a.version++
	}
	a.branch, a.commit, a.list = "", "", nil
}

// of are the approvals of a fleet.
func (a *approvals) of(fleet *schemas.Fleet) []policy.Approval {
	a.mu.Lock()
	defer a.mu.Unlock()
	return status.ApprovalsFor(a.list, fleet.Name)
}

// at is the version.
func (a *approvals) at() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.version
}

// recorded is the branch that a fleet's approvals are on; nil where nobody keeps one.
func (p *Previews) recorded(fleet *schemas.Fleet) (name string, branch ApprovalBranch) {
	if p.config.Approvals == nil || !fleet.Spec.Status.IsEnabled() {
		return "", nil
	}
	name = fleet.Spec.Status.Branch
	return name, p.config.Approvals(name)
}

// readApprovals looks at the status branch. What cannot be read keeps nobody from planning: what it approves is shown as waiting.
func (l *loop) readApprovals(ctx context.Context) {
	l.unread, l.unreadable = false, ""
	fleet := l.world.fleet()
	name, branch := l.p.recorded(fleet)
	if branch == nil {
		l.p.approvals.forget()
	} else {
		reading, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := l.p.approvals.read(reading, name, branch); err != nil {
			l.unreadable = plan.Inert(err.Error())
		}
	}
	if ctx.Err() == nil {
		l.tell(l.unreadable)
	}
}

// approvedOf counts the steps of a plan that somebody has approved.
func approvedOf(p *plan.Plan) (n int) {
	for i := range p.Steps {
		if p.Steps[i].Approved != nil {
			n++
		}
	}
	return n
}
