package plan

import (
	"slices"

	"github.com/gitvirt/gitvirt/schemas"
)

// Block blocks the steps of these objects, with the reason, unless they are blocked already. IDs stay what they are: they
// say what a step does, and not whether it may.
func (p *Plan) Block(reasons map[schemas.Address]string) {
	for i := range p.Steps {
		if reason, ok := reasons[p.Steps[i].Address]; ok && p.Steps[i].Blocked == "" {
			p.Steps[i].Blocked = reason
		}
	}
	p.summarize()
}

// Warn gives the steps of these objects warnings, after those that they have. IDs stay what they are.
func (p *Plan) Warn(warnings map[schemas.Address][]string) {
	for i := range p.Steps {
		if more := warnings[p.Steps[i].Address]; len(more) > 0 {
			p.Steps[i].Warnings = slices.Concat(p.Steps[i].Warnings, more)
		}
	}
}

// RefusedLive is what a host looks like when it cannot change these guests live: a plan that is made from it restarts
// them, or leaves the change to their next boot. have is not changed.
func RefusedLive(have Observed, steps []Step, reasons map[schemas.Address]string) Observed {
	wanted := make(map[schemas.Address]*Step, len(steps))
	for i := range steps {
		wanted[steps[i].Address] = &steps[i]
	}
	domains := make([]*Domain, len(have.Domains))
	for i, domain := range have.Domains {
		domains[i] = domain
		reason, refused := reasons[domain.Address]
		if step := wanted[domain.Address]; refused && step != nil && step.VM != nil {
			changed := *domain
			changed.LiveRefused, changed.LiveRefusedReason = step.VM.Hash, reason
			domains[i] = &changed
		}
	}
	have.Domains = domains
	return have
}
