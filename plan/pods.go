package plan

import (
	"errors"
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// Pods is what a plan has to know of a platform on which every machine that is on has a Pod of its own. A machine that is off has none
// there: nothing of it lives but its claims.
type Pods interface {
	// Name is the name of a machine's Pod, in its namespace.
	Name(vm schemas.Address) string
	// Refused says what of a machine cannot be carried out in a Pod, or what it may not have in this fleet; nil when it can have everything. An
	// error that is a Refusal has a word for it.
	Refused(fleet *schemas.Fleet, vm *schemas.VM) error
	// Differences are the parts of a machine's Pod that are others than with what was applied, and that no Pod can be given while
	// it lives.
	Differences(applied *schemas.Recorded, vm *schemas.VM) ([]Change, error)
}

// Refusal is an error with words for its reasons, of which there are few: they are what is counted.
type Refusal interface {
	error
	Reasons() []string
}

// Pod is the Pod that a step touches.
type Pod struct {
	Name string `json:"name"`
	// Node is where it runs; empty when that is not decided.
	Node string `json:"node,omitempty"`
	// New says that the step makes a Pod, in the place of the one that there is: what lives in that goes with it.
	New bool `json:"new,omitempty"`
}

// text is a Pod for people.
func (p *Pod) text(namespace string) string {
	out := namespace + "/" + p.Name
	switch {
	case p.Node != "" && p.New:
		out += ", made anew (so far on " + p.Node + ")"
	case p.Node != "":
		out += " on " + p.Node
	case p.New:
		out += ", new"
	}
	return out
}

// podless reports whether a machine has nothing to do because it is off and a machine that is off has no Pod.
func (b *builder) podless(power PowerChange, have *Domain) bool {
	return b.pods != nil && power != PowerOn && (have == nil || !have.active())
}

// inPod says which Pod a step is about, and what of it cannot stay.
func (b *builder) inPod(step *Step, vm *schemas.VM, have *Domain) error {
	if b.pods == nil {
		return nil
	}
	step.Pod = &Pod{Name: b.pods.Name(vm.Address), New: have == nil || !have.active()}
	if err := b.pods.Refused(b.want.Fleet, vm); err != nil {
		step.Blocked = err.Error()
		var refusal Refusal
		if errors.As(err, &refusal) {
			step.Refused = refusal.Reasons()
		}
	}
	if step.Pod.New {
		return nil
	}
	step.Pod.Node = have.Node
	if step.Consequence == ConsequenceReplace {
		step.Pod.New = true
		return nil
	}
	if have.Hash == vm.Hash || step.Blocked != "" {
		return nil
	}
	applied, err := b.records.Read(have.Record)
	if err != nil {
		return fmt.Errorf("reading what was applied: %w", err)
	}
	changes, err := b.pods.Differences(applied, vm)
	if err != nil {
		return err
	}
	if len(changes) > 0 {
		step.Pod.New = true
		step.add(changes)
		for i := range changes {
			step.Consequence = step.Consequence.Worse(changes[i].Consequence)
		}
	}
	return nil
}

// podRisk is what goes with a Pod that a step ends.
func (s *Step) podRisk() []string {
	if s.Pod == nil || (!s.Pod.New && s.Power != PowerOff) {
		return nil
	}
	var lost []string
	for _, volume := range s.VM.Spec().Volumes {
		if volume.EmptyDisk != nil {
			lost = append(lost, "disk "+volume.Name+" (emptyDisk): it lives in the Pod, and what the guest wrote to it is discarded")
		}
	}
	return lost
}

// outlives reports whether a volume that outlives a machine on a host outlives its Pod.
func outlives(volume kubevirtv1.Volume, keep, inPod bool) bool {
	return keep && (!inPod || volume.EmptyDisk == nil)
}
