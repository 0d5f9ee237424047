package plan

import (
	"bytes"
	"slices"

	"github.com/gitvirt/gitvirt/schemas"
)

// Beyond returns the plan without what another one, of the revision that it builds upon, says as well: the steps that happen anyway,
// and the problems that are there already. same is how many steps these are. Its ID is of what is left, so that it stays the same when only
// the other one changes; the steps keep theirs. Neither plan is changed.
func (p *Plan) Beyond(base *Plan) (own *Plan, same int, err error) {
	before := make(map[schemas.Address]*Step, len(base.Steps))
	for i := range base.Steps {
		before[base.Steps[i].Address] = &base.Steps[i]
	}
	out := *p
	out.Steps = make([]Step, 0, max(0, len(p.Steps)-len(base.Steps)))
	var buffers [2][]byte
	for i := range p.Steps {
		step := &p.Steps[i]
		if other := before[step.Address]; other != nil {
			for j, one := range []*Step{step, other} {
				if buffers[j], err = one.appendWanted(buffers[j][:0]); err != nil {
					return nil, 0, err
				}
			}
			if bytes.Equal(buffers[0], buffers[1]) {
				same++
				continue
			}
		}
		out.Steps = append(out.Steps, *step)
	}
	out.Held = slices.DeleteFunc(slices.Clone(p.Held), func(held Held) bool { return slices.Contains(base.Held, held) })
	known := make(map[string]bool, len(base.Diagnostics))
	for _, diagnostic := range base.Diagnostics {
		known[diagnostic.Error()] = true
	}
	out.Diagnostics = slices.DeleteFunc(slices.Clone(p.Diagnostics), func(d schemas.Diagnostic) bool { return known[d.Error()] })
	out.summarize()
	return &out, same, out.identify()
}

// appendWanted appends what the step does and what for, whatever revision wants it.
func (s *Step) appendWanted(buf []byte) ([]byte, error) {
	buf, err := s.appendContent(buf)
	if err != nil {
		return nil, err
	}
	if s.VM != nil {
		buf = append(append(buf, 0), s.VM.Hash...)
	}
	if s.Object != nil {
		buf = append(append(buf, 0), s.Object.Hash...)
	}
	return buf, nil
}
