package previews

import (
	"context"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// ApprovalBranch is where approvals are recorded: the status branch. Those that it holds are in the reconciler's views.
type ApprovalBranch interface {
	// Approve records an approval and returns the commit; "" when each of the steps was approved before.
	Approve(ctx context.Context, approval *status.Approval) (commit string, err error)
}

// approvals is the branch that those of a Fleet are recorded on; nil where nobody keeps one.
func (p *Previews) approvals(fleet *schemas.Fleet) ApprovalBranch {
	if p.config.Approvals == nil || !fleet.Spec.Status.IsEnabled() {
		return nil
	}
	return p.config.Approvals(fleet.Spec.Status.Branch)
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
