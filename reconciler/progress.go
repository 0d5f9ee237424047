package reconciler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// Progress is how far a revision is carried out. It is about what the revision asks for: a guest that crashed or was changed by hand after
// it had become what the revision wants does not make the revision less applied.
type Progress struct {
	Revision, Fleet string
	// Unknown says why nothing can be said; then the rest is empty.
	Unknown string
	// Applied of Total objects are as the revision wants them. Those that are paused, or only kept for their grace period, are no part of it.
	Applied, Total int
	// Waiting is how many wait, by what they wait for.
	Waiting map[plan.WaitFor]int
	// Blocked is how many are only shown: protected, left to somebody, or never carried out by the policy.
	Blocked int
	// Failed are those that could not be carried out, ordered by address.
	Failed []Failure
	// Mistakes are what is wrong with the manifests.
	Mistakes schemas.Diagnostics
}

// Failure is an object that is not as the revision wants it, and why.
type Failure struct {
	Address schemas.Address
	Message string
}

// Progress derives how far the view's revision is carried out.
func (v *View) Progress() Progress {
	out := Progress{Revision: v.Revision()}
	if v.Plan == nil {
		out.Unknown = "nothing is planned yet"
		return out
	}
	out.Fleet, out.Unknown = v.Plan.Fleet, v.Plan.Unknown
	if out.Unknown != "" {
		return out
	}
	out.Applied, out.Waiting = v.Plan.Unchanged, map[plan.WaitFor]int{}
	failed := map[key]Failure{}
	for i := range v.Plan.Steps {
		v.count(&out, failed, &v.Plan.Steps[i])
	}
	for k, attempt := range v.attempts {
		if _, known := failed[k]; !known && attempt.NotReady != "" {
			address := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: k.namespace, Name: k.name}
			failed[k] = Failure{address, attempt.NotReady}
			out.Applied = max(0, out.Applied-1) // it is as wanted, and does not work
		}
	}
	for i := range v.Desired.Broken {
		address := v.Desired.Broken[i].Address
		if problem, told := v.problems[address]; told {
			failed[keyFor(address)] = Failure{address, problem}
		}
	}
	out.Failed = slices.SortedFunc(maps.Values(failed), func(a, b Failure) int { return a.Address.Compare(b.Address) })
	for _, diagnostic := range v.Desired.Diagnostics {
		if diagnostic.Severity != schemas.SeverityWarning {
			out.Mistakes = append(out.Mistakes, diagnostic)
		}
	}
	out.Total = out.Applied + out.Blocked + len(out.Failed)
	for _, n := range out.Waiting {
		out.Total += n
	}
	return out
}

// underWay is what Progress.Waiting counts the steps by that wait for nobody.
const underWay plan.WaitFor = ""

// count counts a step.
func (v *View) count(out *Progress, failed map[key]Failure, step *plan.Step) {
	attempt := v.attempts[keyFor(step.Address)]
	problem := cmp.Or(attempt.Error, attempt.NotReady)
	if len(step.Refused) > 0 {
		problem = step.Blocked
	}
	switch {
	case problem != "":
		failed[keyFor(step.Address)] = Failure{step.Address, status.OneLine(problem)}
	case v.happenedLater(step):
		out.Applied++
	case step.Blocked != "":
		out.Blocked++
	case len(step.Waits) > 0 && step.Waits[0].For == plan.WaitGrace: // nobody has to do anything, for days
	case len(step.Waits) > 0:
		out.Waiting[step.Waits[0].For]++
	default:
		out.Waiting[underWay]++
	}
}

// happenedLater reports whether a step mends what has happened to a machine, and is not what the revision asks for.
func (v *View) happenedLater(step *plan.Step) bool {
	switch step.Reason {
	case plan.ReasonDrift, plan.ReasonRunningDrift:
		return true
	case plan.ReasonPower:
		domain := v.Observed.Domain(step.Address)
		return domain != nil && domain.Ran && step.Power == plan.PowerOn
	case plan.ReasonNew, plan.ReasonChanged, plan.ReasonRemoved, plan.ReasonPendingRestart, plan.ReasonAdopted, plan.ReasonRenamed, plan.ReasonReturned:
	}
	return false
}
