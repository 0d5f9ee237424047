package policy

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/rules"
)

// finding is a rule that is not true of a step, or could not be evaluated.
type finding struct {
	rule *rule
	err  error
}

// evaluate evaluates the rules on all steps that nothing blocks yet, on all processors.
func (p *Policy) evaluate(of []subject) [][]finding {
	out := make([][]finding, len(of))
	if len(p.rules) == 0 {
		return out
	}
	const enough = 64 // fewer are not worth a goroutine
	workers := max(1, min(runtime.GOMAXPROCS(0), len(of)/enough))
	var group sync.WaitGroup
	for n := range workers {
		from, to := len(of)*n/workers, len(of)*(n+1)/workers
		group.Go(func() {
			for i := from; i < to; i++ {
				if of[i].step.Blocked == "" {
					out[i] = p.violations(&of[i])
				}
			}
		})
	}
	group.Wait()
	return out
}

// violations evaluates the rules on one step.
func (p *Policy) violations(s *subject) []finding {
	var out []finding
	arguments := rules.Prepare(s.input())
	for i := range p.rules {
		if holds, err := p.rules[i].compiled.Holds(arguments); err != nil || !holds {
			out = append(out, finding{&p.rules[i], err})
		}
	}
	return out
}

// judge does with a step what the rules say that are not true of it. One that cannot be evaluated blocks, unless it only
// warns.
func (p *Policy) judge(s *subject, findings []finding) {
	for _, found := range findings {
		text := fmt.Sprintf("%s (rule %s)", found.rule.Message, found.rule.Name)
		if found.err != nil {
			text = fmt.Sprintf("the rule %s cannot be evaluated: %s", found.rule.Name, found.err)
		}
		switch {
		case found.rule.Action == schemas.RuleWarn:
			s.step.Warnings = append(s.step.Warnings, text)
		case found.err != nil, found.rule.Action != schemas.RuleApproval:
			s.block(text)
		case !p.cleared(s):
			s.wait(plan.WaitApproval, time.Time{}, "waits for gitvirt approve: "+text)
		}
	}
}

// input is what rules see of a step. The records that it is made of have digests in place of what is secret.
func (s *subject) input() *rules.Input {
	step := s.step
	before := func() *rules.Machine { return machine(step.Address, s.applied()) }
	object := &rules.Machine{Kind: step.Address.Kind, Namespace: step.Address.Namespace, Name: step.Address.Name}
	if vm := step.VM; vm != nil {
		object.Labels, object.Annotations = vm.Object.Labels, vm.Object.Annotations
		object.Spec = func() map[string]any {
			if read := readRecord(vm.Record); read != nil {
				return read.Spec
			}
			return nil
		}
	} else if applied := before(); applied != nil {
		object = applied
	}
	return &rules.Input{
		Object: object,
		Before: before,
		Step: &rules.Step{
			Action: string(step.Action), Reason: string(step.Reason), Consequence: string(step.Consequence), Power: string(step.Power),
			Changes: changes(step.Changes), Drift: changes(step.Drift), DataAtRisk: step.DataAtRisk, Keeps: step.Keeps,
			DowntimeSeconds: step.DowntimeSeconds, Live: step.Live,
		},
	}
}

func machine(address schemas.Address, read *recorded) *rules.Machine {
	if read == nil {
		return nil
	}
	return &rules.Machine{
		Kind: address.Kind, Namespace: address.Namespace, Name: address.Name,
		Labels: read.Metadata.Labels, Annotations: read.Metadata.Annotations,
		Spec: func() map[string]any { return read.Spec },
	}
}

func changes(list []plan.Change) []rules.Change {
	out := make([]rules.Change, len(list))
	for i := range list {
		change := &list[i]
		out[i] = rules.Change{Path: change.Path, Consequence: string(change.Consequence)}
		if !change.Sensitive {
			out[i].Before, out[i].After = change.Before, change.After
		}
	}
	return out
}
