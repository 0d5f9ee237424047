package why

import (
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// Gather takes the facts about a machine from a plan and what it was made of, where no controller can be asked. It
// reports false when neither side has the machine.
func Gather(address schemas.Address, want *schemas.Desired, have plan.Observed, p *plan.Plan) (Facts, bool) {
	in := status.Input{Address: address, Node: have.Node, Unknown: have.Unknown, Revision: p.Revision, PlanID: p.ID}
	known := false
	for _, vm := range want.VMs {
		if vm.Address == address {
			in.VM, known = vm, true
		}
	}
	for _, broken := range want.Broken {
		if broken.Address == address {
			in.ManifestProblem, known = problemOf(want, broken), true
		}
	}
	for _, domain := range have.Domains {
		if domain.Address == address && (known || domain.Fleet == p.Fleet) {
			in.Domain, known = domain, true
		}
	}
	for i := range p.Steps {
		if p.Steps[i].Address == address {
			in.Step = &p.Steps[i]
		}
	}
	for _, held := range p.Held {
		if held.Address == address && in.ManifestProblem == "" {
			in.Held = held.Reason
		}
	}
	return Facts{VM: status.Of(in), Step: in.Step, PlanID: p.ID, Revision: p.Revision}, known
}

// problemOf is the first mistake of a broken manifest.
func problemOf(want *schemas.Desired, broken schemas.Broken) string {
	for _, diagnostic := range want.Diagnostics {
		if diagnostic.Severity != schemas.SeverityWarning && diagnostic.Address == broken.Address {
			return diagnostic.Error()
		}
	}
	return broken.Position.String() + ": the manifest has errors"
}
