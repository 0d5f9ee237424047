package reconciler

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// View is what a round saw and decided. It is immutable, and holds sensitive values (in Desired): what leaves the
// process is Plan and what Statuses derives.
type View struct {
	// Time is when the round was.
	Time time.Time
	// Snapshot, Desired and Plan are nil until git is known.
	Snapshot *sources.Snapshot
	Desired  *schemas.Desired
	Observed plan.Observed
	Plan     *plan.Plan
	// Pods says how machines become Pods; nil where they do not.
	Pods plan.Pods
	// Approvals are those that the Plan was made with; ApprovalsKnown says that the branch they are on was read.
	Approvals      []policy.Approval
	ApprovalsKnown bool
	// PollError says why the last poll failed; empty when it did not.
	PollError string
	// Refused says why the head of the branch is not applied, and by whom it is; empty when it is.
	Refused string
	// Refusal is that head; zero where there is none, or it is not known which one it is.
	Refusal Refusal

	attempts map[key]status.Attempt
	problems map[schemas.Address]string
}

// Refusal is a revision that is not applied because nobody trusts it.
type Refusal struct {
	// Revision is its full name.
	Revision string
	// Reason says in a few words why, such as "it is not signed".
	Reason string
}

// refusalOf finds in an error of a source which revision is refused; zero when it does not say it.
func refusalOf(err error) Refusal {
	var told *sources.Error
	if !errors.As(err, &told) {
		return Refusal{}
	}
	return Refusal{Revision: told.Revision, Reason: told.Reason}
}

// Revision is what is wanted (sources.Snapshot), or "".
func (v *View) Revision() string {
	if v.Snapshot == nil {
		return ""
	}
	return v.Snapshot.Revision
}

// Commit is the commit of the repository that the Fleet is in, or "".
func (v *View) Commit() string { return sources.CommitOf(v.Revision()) }

// Statuses derives the status of every machine of the fleet, ordered by address.
func (v *View) Statuses() []status.VM {
	if v.Desired == nil {
		return nil
	}
	inputs := v.inputs()
	out := make([]status.VM, 0, len(inputs))
	for i := range inputs {
		out = append(out, status.Of(inputs[i]))
	}
	return out
}

// statusesOf is Statuses for one namespace and name.
func (v *View) statusesOf(namespace, name string) []status.VM {
	if v.Desired == nil {
		return nil
	}
	var out []status.VM
	for _, input := range v.inputs() {
		if input.Address.Namespace == namespace && input.Address.Name == name {
			out = append(out, status.Of(input))
		}
	}
	return out
}

// inputs gathers what is known of each machine: of those that git names, and of those that this fleet has put on the
// host.
func (v *View) inputs() []status.Input {
	inputs := make([]status.Input, 0, len(v.Desired.VMs)+len(v.Desired.Broken))
	for _, vm := range v.Desired.VMs {
		inputs = append(inputs, status.Input{Address: vm.Address, VM: vm})
	}
	for i := range v.Desired.Broken {
		broken := &v.Desired.Broken[i]
		if !broken.Address.IsMachine() {
			continue
		}
		problem := v.problems[broken.Address]
		if problem == "" {
			problem = broken.Position.String() + ": the manifest has errors"
		}
		inputs = append(inputs, status.Input{Address: broken.Address, ManifestProblem: problem})
	}
	slices.SortFunc(inputs, compareInputs)
	named := len(inputs)
	for _, domain := range v.Observed.Domains {
		at, found := slices.BinarySearchFunc(inputs[:named], status.Input{Address: domain.Address}, compareInputs)
		switch {
		case found:
			inputs[at].Domain = domain
		case v.Plan != nil && domain.Fleet == v.Plan.Fleet:
			inputs = append(inputs, status.Input{Address: domain.Address, Domain: domain})
		}
	}
	slices.SortFunc(inputs, compareInputs)
	v.decisions(inputs)
	return inputs
}

func compareInputs(a, b status.Input) int { return a.Address.Compare(b.Address) }

// decisions adds what the plan and the gate say.
func (v *View) decisions(inputs []status.Input) {
	find := func(address schemas.Address) *status.Input {
		at, found := slices.BinarySearchFunc(inputs, status.Input{Address: address}, compareInputs)
		if !found {
			return nil
		}
		return &inputs[at]
	}
	for i := range inputs {
		inputs[i].Node, inputs[i].Unknown = v.Observed.Node, v.Observed.Unknown
		inputs[i].PlanID = v.Plan.ID
		if vm := inputs[i].VM; vm != nil {
			inputs[i].Revision = v.Snapshot.Provenance(vm.Position.Source)
		}
		inputs[i].Attempt = v.attempts[keyFor(inputs[i].Address)]
	}
	for i := range v.Plan.Steps {
		if input := find(v.Plan.Steps[i].Address); input != nil {
			input.Step = &v.Plan.Steps[i]
		}
	}
	for _, held := range v.Plan.Held {
		if input := find(held.Address); input != nil && input.ManifestProblem == "" {
			input.Held = held.Reason
		}
	}
}

// brokenProblems says for each object with mistakes what is wrong with it: its first error and how many more there are. It may be one
// that counts nevertheless, when only another repository's claim to its name does not.
func brokenProblems(desired *schemas.Desired) map[schemas.Address]string {
	if desired.Diagnostics.Errors() == 0 {
		return nil
	}
	out := make(map[schemas.Address]string, len(desired.Broken))
	more := map[schemas.Address]int{}
	for _, diagnostic := range desired.Diagnostics {
		if diagnostic.Severity == schemas.SeverityWarning || diagnostic.Address.IsZero() {
			continue
		}
		if _, ok := out[diagnostic.Address]; ok {
			more[diagnostic.Address]++
			continue
		}
		out[diagnostic.Address] = diagnostic.Error()
	}
	for address, n := range more {
		out[address] += " (and " + plural(n, "more error") + ")"
	}
	return out
}

func plural(n int, noun string) string {
	var b strings.Builder
	b.WriteString(itoa(n))
	b.WriteString(" ")
	b.WriteString(noun)
	if n != 1 {
		b.WriteString("s")
	}
	return b.String()
}
