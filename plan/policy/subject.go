package policy

import (
	"encoding/json"
	"maps"
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
		s.of[i] = subject{step: step, domain: domainOf(step, have)}
		if approval := approved[step.ID]; approval != nil {
			s.of[i].approved, step.Approved = true, &plan.Approved{By: approval.By, At: approval.At}
		}
	}
	return s
}

// domainOf returns the domain that a step is about, which a machine that is renamed has under its former address.
func domainOf(step *plan.Step, have plan.Observed) *plan.Domain {
	address := step.Address
	if step.Previous != nil {
		address = *step.Previous
	}
	return have.Domain(address)
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

// Named is what selectors know of a machine.
type Named struct {
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels,omitempty"`
}

func (n *Named) in(selector *schemas.Selector) bool { return selector.Matches(n.Namespace, n.Labels) }

func (n *Named) equal(other Named) bool {
	return n.Namespace == other.Namespace && maps.Equal(n.Labels, other.Labels)
}

// Union is what is in one of two lists.
func Union(one, other []Named) []Named {
	out := slices.Clone(one)
	for i := range other {
		if !slices.ContainsFunc(out, other[i].equal) {
			out = append(out, other[i])
		}
	}
	return out
}

// source is the repository that asks for the machine, or that it was made from when none does.
func (s *subject) source() string {
	switch {
	case s.step.VM != nil:
		return s.step.VM.Position.Source
	case s.step.Object != nil:
		return s.step.Object.Position.Source
	case s.domain != nil:
		return s.domain.Holder()
	}
	return ""
}

// wanted is the machine as git has it; nil when git has it no longer.
func (s *subject) wanted() *Named {
	if s.step.VM == nil {
		return nil
	}
	return &Named{s.step.Address.Namespace, s.step.VM.Object.Labels}
}

// was is the machine as it was applied last; nil for one that is new, and where nobody can tell.
func (s *subject) was() *Named {
	if s.domain == nil {
		return nil
	}
	if vm := s.step.VM; vm != nil && vm.Hash == s.domain.Hash && vm.Address == s.domain.Address {
		return s.wanted() // which need not be read again
	}
	if applied := s.applied(); applied != nil {
		return &Named{s.domain.Address.Namespace, applied.Metadata.Labels}
	}
	return nil
}

// all reports whether a selector selects every machine.
func all(selector *schemas.Selector) bool {
	return len(selector.Namespaces) == 0 && len(selector.MatchLabels) == 0 && len(selector.MatchExpressions) == 0
}

// restricted reports whether what restricts is about the machine: it selects the machine by what git has now, or by what was
// applied last. A commit does not leave a freeze by the label that it changes.
func (s *subject) restricted(by *schemas.Selector) bool {
	if all(by) {
		return true
	}
	wanted := s.wanted()
	if wanted != nil && wanted.in(by) {
		return true
	}
	was := s.was()
	return was != nil && was.in(by) || wanted == nil && was == nil
}

// permitted reports whether what permits is about the machine: it selects the machine by what git has now, and by what was
// applied last, where there are both.
func (s *subject) permitted(by *schemas.Selector) bool {
	if all(by) {
		return true
	}
	wanted, was := s.wanted(), s.was()
	return (wanted != nil || was != nil) && (wanted == nil || wanted.in(by)) && (was == nil || was.in(by))
}
