package policy

import (
	"encoding/json"
	"slices"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// subject is a step with what is known of its machine.
type subject struct {
	step *plan.Step
	// domain is the one that lives; nil for a machine that is new.
	domain *plan.Domain
	// approved says that an approval names the step.
	approved bool

	// read is what was applied last, once somebody asked for it.
	read *recorded
}

type subjects struct {
	of   []subject
	want *schemas.Desired
	have plan.Observed
	plan *plan.Plan
}

// subjects looks up the machines of a plan's steps.
func (p *Policy) subjects(of *plan.Plan, want *schemas.Desired, have plan.Observed) *subjects {
	s := &subjects{of: make([]subject, len(of.Steps)), want: want, have: have, plan: of}
	approved := p.approvedSteps(of)
	for i := range of.Steps {
		step := &of.Steps[i]
		address := step.Address
		if step.Previous != nil {
			address = *step.Previous
		}
		s.of[i] = subject{step: step, domain: find(have.Domains, address)}
		if approval := approved[step.ID]; approval != nil {
			s.of[i].approved, step.Approved = true, &plan.Approved{By: approval.By, At: approval.At}
		}
	}
	return s
}

// find returns the domain of an address among those of a host, which are ordered by address.
func find(domains []*plan.Domain, address schemas.Address) *plan.Domain {
	i, ok := slices.BinarySearchFunc(domains, address, func(d *plan.Domain, a schemas.Address) int { return d.Address.Compare(a) })
	if !ok {
		return nil
	}
	return domains[i]
}

// recorded is a record as rules and selectors see it.
type recorded struct {
	Metadata struct {
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec map[string]any `json:"spec"`
}

// readRecord reads a record; nil when it cannot be read, which then is why nothing happens to the domain.
func readRecord(record []byte) *recorded {
	out := &recorded{}
	if len(record) == 0 || json.Unmarshal(record, out) != nil {
		return nil
	}
	return out
}

// applied is what was applied last; nil for nothing.
func (s *subject) applied() *recorded {
	if s.read == nil && s.domain != nil {
		s.read = readRecord(s.domain.Record)
	}
	return s.read
}

// labels are those of the machine: as git has them, or as they were applied last when git has the machine no longer.
func (s *subject) labels() map[string]string {
	if s.step.VM != nil {
		return s.step.VM.Object.Labels
	}
	if applied := s.applied(); applied != nil {
		return applied.Metadata.Labels
	}
	return nil
}

// in reports whether a selector selects the machine.
func (s *subject) in(selector *schemas.Selector) bool {
	if len(selector.Namespaces) == 0 && len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0 {
		return true
	}
	return selector.Matches(s.step.Address.Namespace, s.labels())
}
