package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// The JSON form of a plan is made in the spirit of Terraform's: actions are lists of primitive ones, every change has what
// was before and after with masks of what is sensitive. It is described by JSONSchema and can be read back.

// barePlan and bareStep are without the methods that write the JSON form.
type (
	barePlan Plan
	bareStep Step
)

// wirePlan is a plan as JSON has it.
type wirePlan struct {
	*barePlan
	Steps []wireStep `json:"steps"`
}

// wireStep is a step as JSON has it: what it adds hides the fields of the same name.
type wireStep struct {
	ID string `json:"id,omitempty"`
	bareStep
	// Actions are what is done to the domain, in order.
	Actions      []string     `json:"actions"`
	Changes      []wireChange `json:"changes,omitempty"`
	Drift        []wireChange `json:"drift,omitempty"`
	RunningDrift []wireChange `json:"running_drift,omitempty"`
	// ReplacePaths are the fields because of which the domain is made anew.
	ReplacePaths []string `json:"replace_paths,omitempty"`
	Waits        []Wait   `json:"waits,omitempty"`
	// Preconditions are what has to be so when the step is carried out.
	Preconditions []wirePrecondition `json:"preconditions"`
	// Precondition is part of Preconditions.
	Precondition *string `json:"precondition,omitempty"`
}

// wirePrecondition is the domain as the plan saw it.
type wirePrecondition struct {
	Domain string `json:"domain"`
	Exists bool   `json:"exists"`
	// Fingerprint changes with everything that the plan depends on.
	Fingerprint string `json:"fingerprint,omitempty"`
}

// wireChange is a change as JSON has it.
type wireChange struct {
	Path   string `json:"path"`
	Before any    `json:"before"`
	After  any    `json:"after"`
	// The masks are true where the value is sensitive, and shaped like the value where only parts of it are.
	BeforeSensitive any         `json:"before_sensitive,omitempty"`
	AfterSensitive  any         `json:"after_sensitive,omitempty"`
	Consequence     Consequence `json:"consequence"`
	Note            string      `json:"note,omitempty"`
}

// wireOf returns a step as JSON has it.
func wireOf(s *Step) wireStep {
	out := wireStep{
		bareStep: bareStep(*s), ID: s.ID, Actions: s.actions(), Waits: s.Waits,
		Changes: wireChanges(s.Changes), Drift: wireChanges(s.Drift), RunningDrift: wireChanges(s.RunningDrift),
		Preconditions: []wirePrecondition{{Domain: s.Domain, Exists: s.Precondition != "", Fingerprint: s.Precondition}},
	}
	for i := range s.Changes {
		if s.Changes[i].Consequence == ConsequenceReplace {
			out.ReplacePaths = append(out.ReplacePaths, s.Changes[i].Path)
		}
	}
	return out
}

// actions are the primitive actions of the step, in order.
func (s *Step) actions() []string {
	var out []string
	switch s.Action {
	case ActionDestroy:
		return []string{"delete"}
	case ActionReplace:
		out = append(out, "delete", "create")
	case ActionAdopt, ActionRename, ActionRetire:
		out = append(out, string(s.Action))
		if s.Define {
			out = append(out, "update")
		}
	case ActionCreate:
		out = append(out, "create")
	default:
		if s.Define {
			out = append(out, "update")
		}
	}
	switch s.Power {
	case PowerOn:
		out = append(out, "start")
	case PowerOff:
		out = append(out, "stop")
	case PowerCycle:
		if s.Action == ActionReplace {
			return []string{"stop", "delete", "create", "start"}
		}
		out = append(out, "stop", "start")
	}
	switch {
	case len(out) > 0:
		return out
	case s.Action == ActionStart || s.Action == ActionStop:
		return []string{string(s.Action)}
	case s.Action == ActionRestart:
		return []string{"stop", "start"}
	}
	return []string{"update"}
}

func wireChanges(changes []Change) []wireChange {
	if len(changes) == 0 {
		return nil
	}
	out := make([]wireChange, len(changes))
	for i := range changes {
		c := &changes[i]
		out[i] = wireChange{Path: c.Path, Before: c.Before, After: c.After, Consequence: c.Consequence, Note: c.Note}
		if c.Sensitive {
			out[i].BeforeSensitive, out[i].AfterSensitive = true, true
			continue
		}
		out[i].BeforeSensitive, out[i].AfterSensitive = maskOf(c.Before), maskOf(c.After)
	}
	return out
}

// maskOf returns what of a value is concealed: true for all, a mask of the same shape for parts, nil for nothing.
func maskOf(value any) any {
	switch v := value.(type) {
	case string:
		if v == concealed || strings.HasSuffix(v, "?"+concealed) {
			return true
		}
	case map[string]any:
		var mask map[string]any
		for key, element := range v {
			if part := maskOf(element); part != nil {
				if mask == nil {
					mask = map[string]any{}
				}
				mask[key] = part
			}
		}
		if mask != nil {
			return mask
		}
	case []any:
		mask, found := make([]any, len(v)), false
		for i, element := range v {
			mask[i] = false
			if part := maskOf(element); part != nil {
				mask[i], found = part, true
			}
		}
		if found {
			return mask
		}
	}
	return nil
}

func (p *Plan) wire() wirePlan {
	out := wirePlan{barePlan: (*barePlan)(p), Steps: make([]wireStep, len(p.Steps))}
	for i := range p.Steps {
		out.Steps[i] = wireOf(&p.Steps[i])
	}
	return out
}

// JSON writes the plan in its JSON form, on one line when indent is empty.
func (p *Plan) JSON(out io.Writer, indent string) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(p.wire()); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return nil
}

// MarshalJSON is the JSON form of the plan.
func (p Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.wire()) }

// MarshalJSON is the JSON form of the step.
func (s Step) MarshalJSON() ([]byte, error) { return json.Marshal(wireOf(&s)) }

// UnmarshalJSON reads the JSON form of a plan. What the machines of its steps are is not part of it.
func (p *Plan) UnmarshalJSON(data []byte) error {
	var head struct {
		FormatVersion string `json:"format_version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("reading a plan: %w", err)
	}
	ours, _, _ := strings.Cut(FormatVersion, ".")
	if theirs, _, _ := strings.Cut(head.FormatVersion, "."); theirs != ours {
		return fmt.Errorf("reading a plan: its format_version is %q, and this gitvirt reads %s.x", head.FormatVersion, ours)
	}
	read := wirePlan{barePlan: (*barePlan)(p)}
	if err := json.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("reading a plan: %w", err)
	}
	p.Steps = make([]Step, len(read.Steps))
	for i := range read.Steps {
		p.Steps[i] = read.Steps[i].step()
	}
	return nil
}

// UnmarshalJSON reads the JSON form of a step.
func (s *Step) UnmarshalJSON(data []byte) error {
	var read wireStep
	if err := json.Unmarshal(data, &read); err != nil {
		return fmt.Errorf("reading a step: %w", err)
	}
	*s = read.step()
	return nil
}

// step is the step that the JSON form says.
func (w *wireStep) step() Step {
	s := Step(w.bareStep)
	s.ID, s.Waits = w.ID, w.Waits
	s.Changes, s.Drift, s.RunningDrift = changesOf(w.Changes), changesOf(w.Drift), changesOf(w.RunningDrift)
	if len(w.Preconditions) > 0 {
		s.Precondition = w.Preconditions[0].Fingerprint
	}
	return s
}

func changesOf(in []wireChange) []Change {
	if len(in) == 0 {
		return nil
	}
	out := make([]Change, len(in))
	for i, c := range in {
		out[i] = Change{Path: c.Path, Before: c.Before, After: c.After, Consequence: c.Consequence, Note: c.Note}
		out[i].Sensitive = c.BeforeSensitive == true && c.AfterSensitive == true && c.Before == nil && c.After == nil
	}
	return out
}

// ReadJSON reads a plan from its JSON form. Its steps can be compared and shown; to be carried out they are made anew, because
// what they need of their machines is sensitive and never written.
func ReadJSON(data []byte) (*Plan, error) {
	p := &Plan{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	return p, nil
}
