package policy

import (
	"time"

	"github.com/gitvirt/gitvirt/plan"
)

// Approval says that somebody lets steps happen. Steps are named by their IDs, which are hashes of everything that they do: a
// step that becomes another one is not approved any more.
type Approval struct {
	// Plan is the ID of a plan all of whose steps are approved; empty for an approval of single steps.
	Plan string
	// Steps are IDs of steps.
	Steps []string
	// By is who approved, At when.
	By string
	At time.Time
}

// approvedSteps returns the IDs of a plan's steps that approvals name, with the first approval of each.
func (p *Policy) approvedSteps(of *plan.Plan) map[string]*Approval {
	approved := map[string]*Approval{}
	for i := range p.options.Approvals {
		approval := &p.options.Approvals[i]
		add := func(id string) {
			if approved[id] == nil {
				approved[id] = approval
			}
		}
		for _, id := range approval.Steps {
			add(id)
		}
		if approval.Plan == "" || approval.Plan != of.ID || len(approval.Steps) > 0 {
			continue
		}
		for i := range of.Steps {
			add(of.Steps[i].ID)
		}
	}
	delete(approved, "") // a step without an ID is nobody's
	return approved
}

// cleared reports whether a person lets the step happen, be it by an approval or by watching.
func (p *Policy) cleared(s *subject) bool { return s.approved || p.options.Attended }
