package status

import (
	"cmp"
	"fmt"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Attempt is what was tried with a machine.
type Attempt struct {
	// Action is what is being carried out now; "" when nothing is.
	Action plan.Action
	// Step is what was planned for it when that began; a plan that is made meanwhile sees the work half done.
	Step *plan.Step
	// Error says why the last attempt failed; Stalled, that trying again does not help.
	Error   string
	Stalled bool
	// RetryAt is when a step that failed, or a guest that keeps going down, is tried again.
	RetryAt time.Time
	// CrashLoop says that the guest keeps going down and waits to be started again.
	CrashLoop bool
	// Waits says what its step waits for in the order and the pace of its revision; empty when it does not.
	Waits string
	// NotReady says why the guest is not ready although a step that started it was carried out.
	NotReady string
	Restarts int
}

// Input is everything that the status of one machine is derived from.
type Input struct {
	Address schemas.Address
	// VM is what git wants; nil when git no longer has it, or with ManifestProblem.
	VM *schemas.VM
	// ManifestProblem says where and how the manifest is broken.
	ManifestProblem string
	// Domain is what lives, or what lived when the host could last be read; nil when there is none.
	Domain *plan.Domain
	// Step is what the plan wants to do, nil when nothing.
	Step *plan.Step
	// Held says why nothing is done although something may be needed.
	Held    string
	Attempt Attempt
	// Unknown says why the host cannot be read.
	Unknown        string
	Node, Revision string
	PlanID         string
}

// Of derives the status of a machine, without the times: History adds those.
func Of(in Input) VM {
	vm := VM{
		Address: in.Address, Phase: phaseOf(&in), Message: messageOf(&in), Node: in.Node,
		Restarts: in.Attempt.Restarts, Waits: in.Attempt.Waits, RetryAt: in.Attempt.RetryAt,
	}
	if in.VM != nil {
		vm.Source, vm.WantedRevision, vm.hash = in.VM.Position.Short(), in.Revision, in.VM.Hash
	}
	if d := in.Domain; d != nil {
		vm.found = true
		vm.Domain, vm.Addresses, vm.ObservedRevision = d.Name, d.Addresses, d.Revision
		vm.Unread, vm.Node = d.Unread, cmp.Or(d.Node, in.Node)
		if vm.Source == "" {
			vm.Source = d.Source
		}
		if in.VM != nil && in.VM.Hash == d.Hash {
			vm.WantedRevision = d.Revision
		}
		for _, disk := range d.Disks {
			if disk.Keep {
				vm.Disks = append(vm.Disks, Disk{Volume: disk.Volume, Kind: disk.Kind, Path: disk.Path, CapacityBytes: disk.CapacityBytes})
			}
		}
	} else if in.Unknown == "" {
		vm.Node, vm.found = "", true
	}
	vm.Conditions = []Condition{ready(vm.Phase, &in), synced(&in), drifted(&in), restartPending(&in), manifestValid(&in)}
	step := in.Step
	if in.Attempt.Step != nil {
		step = in.Attempt.Step
	}
	if step != nil {
		vm.LastPlan = &LastPlan{ID: in.PlanID, Action: step.Action, Consequence: step.Consequence, Summary: step.Summary}
	}
	return vm
}

func phaseOf(in *Input) Phase {
	if in.Unknown != "" {
		return PhaseUnknown
	}
	if in.Attempt.Action == plan.ActionDestroy {
		return PhaseTerminating
	}
	if in.Domain == nil || in.Domain.State == plan.StateMissing {
		return absentPhase(in)
	}
	switch in.Domain.State {
	case "":
		return PhaseBlocked
	case plan.StateRunning:
		switch {
		case in.Attempt.Action == plan.ActionStop:
			return PhaseStopping
		case in.Domain.Pod != "" && in.Domain.UUID == "": // its Pod is on its way, and nobody has told of a guest
			return PhaseStarting
		}
		return PhaseRunning
	case plan.StatePaused:
		return PhasePaused
	case plan.StateStopped, plan.StateMissing:
	}
	return offPhase(in)
}

// absentPhase is the phase of a machine that the host does not have.
func absentPhase(in *Input) Phase {
	switch {
	case in.Attempt.Action != "":
		return PhaseStarting
	case in.ManifestProblem != "" || in.Held != "" || (in.Step != nil && in.Step.Blocked != ""):
		if in.Domain != nil {
			return PhaseMissing
		}
		return PhaseBlocked
	case in.Attempt.Error != "":
		return PhaseFailed
	case in.Domain != nil:
		return PhaseMissing
	}
	return PhasePending
}

// offPhase is the phase of a machine whose guest is off.
func offPhase(in *Input) Phase {
	switch in.Attempt.Action {
	case plan.ActionStart, plan.ActionRestart, plan.ActionCreate, plan.ActionReplace:
		return PhaseStarting
	case plan.ActionUpdate, plan.ActionStop, plan.ActionDestroy:
	}
	halted := in.VM != nil && in.VM.RunStrategy == kubevirtv1.RunStrategyHalted
	if in.Domain.Ran && !halted { // off is what it should be, however it got there
		switch in.Domain.Stop {
		case plan.StopCrashed, plan.StopFailed:
			return PhaseCrashed
		case plan.StopShutdown:
			if in.VM != nil && (in.VM.RunStrategy == kubevirtv1.RunStrategyOnce || in.VM.RunStrategy == kubevirtv1.RunStrategyRerunOnFailure) {
				return PhaseSucceeded
			}
		}
	}
	return PhaseStopped
}

// messageOf says the one thing that people should know.
func messageOf(in *Input) string {
	switch {
	case in.Unknown != "":
		return "the host cannot be read: " + in.Unknown
	case in.ManifestProblem != "":
		return in.ManifestProblem
	case in.Attempt.Error != "":
		return in.Attempt.Error
	case in.Held != "":
		return in.Held
	case in.Step != nil && in.Step.Blocked != "":
		return in.Step.Summary + "; blocked: " + in.Step.Blocked
	case in.Step != nil && len(in.Step.Waits) > 0 && in.Attempt.Action == "":
		return in.Step.Summary + "; " + in.Step.Waits[0].Reason
	case in.Attempt.CrashLoop:
		return fmt.Sprintf("keeps going down; waits to be started again (restart %d)", in.Attempt.Restarts+1)
	case in.Step != nil && in.Attempt.Waits != "":
		return in.Step.Summary + "; not begun: " + in.Attempt.Waits
	case in.Step != nil:
		return in.Step.Summary
	case in.Attempt.NotReady != "":
		return "the guest is not ready: " + in.Attempt.NotReady
	case in.Domain == nil || in.Domain.State != plan.StateRunning:
		return ""
	case in.Domain.Ready == "false" || in.Domain.Ready == "unknown":
		return "readiness probe: " + in.Domain.ReadyReason
	case in.Domain.CredentialsProblem != "":
		return "access credentials are not in the guest: " + in.Domain.CredentialsProblem
	case in.Domain.PortsProblem != "":
		return "ports are not forwarded: " + in.Domain.PortsProblem
	}
	return ""
}

func condition(kind ConditionType, status Truth, reason, message string) Condition {
	return Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func unknownHost(kind ConditionType, in *Input) Condition {
	return condition(kind, Unknown, "HostUnknown", in.Unknown)
}

func ready(phase Phase, in *Input) Condition {
	switch {
	case in.Unknown != "":
		return unknownHost(ConditionReady, in)
	case phase == PhaseRunning && in.Domain != nil && in.Domain.Ready == "false":
		return condition(ConditionReady, False, "ReadinessProbeFailed", in.Domain.ReadyReason)
	case phase == PhaseRunning && in.Domain != nil && in.Domain.Ready == "unknown":
		return condition(ConditionReady, Unknown, "ReadinessProbeUnknown", in.Domain.ReadyReason)
	case phase == PhaseRunning && in.Attempt.NotReady != "":
		return condition(ConditionReady, False, "GuestNotReady", in.Attempt.NotReady)
	case phase == PhaseRunning || phase == PhaseStopping:
		return condition(ConditionReady, True, string(phase), "")
	case in.Attempt.CrashLoop:
		return condition(ConditionReady, False, "CrashLoopBackOff", "")
	}
	return condition(ConditionReady, False, string(phase), "")
}

func synced(in *Input) Condition {
	switch {
	case in.Unknown != "":
		return unknownHost(ConditionSynced, in)
	case in.ManifestProblem != "":
		return condition(ConditionSynced, Unknown, "ManifestBroken", in.ManifestProblem)
	case in.Held != "":
		return condition(ConditionSynced, False, "Held", in.Held)
	case in.Step == nil && in.Attempt.Action == "":
		return condition(ConditionSynced, True, "Synced", "")
	case in.Attempt.Action != "":
		return condition(ConditionSynced, False, "Applying", "")
	case in.Step.Blocked != "":
		return condition(ConditionSynced, False, "Blocked", in.Step.Blocked)
	case len(in.Step.Waits) > 0:
		return condition(ConditionSynced, False, "Waiting", in.Step.Waits[0].Reason)
	case in.Attempt.Stalled:
		return condition(ConditionSynced, False, "Stalled", in.Attempt.Error)
	case in.Attempt.Error != "":
		return condition(ConditionSynced, False, "Failed", in.Attempt.Error)
	case in.Attempt.CrashLoop:
		return condition(ConditionSynced, False, "CrashLoopBackOff", in.Step.Summary)
	}
	return condition(ConditionSynced, False, "Pending", in.Step.Summary)
}

// DescribeChanges says in a line what changes, or what somebody changed outside gitvirt.
func DescribeChanges(changes []plan.Change) string {
	text := ""
	for i, change := range changes {
		switch {
		case i == 3:
			return text + fmt.Sprintf(" and %d more", len(changes)-i)
		case i > 0:
			text += ", "
		}
		if change.Sensitive {
			text += change.Path + " (sensitive)"
			continue
		}
		text += fmt.Sprintf("%s: %s -> %s", change.Path, brief(change.Before), brief(change.After))
	}
	return text
}

func brief(value any) string {
	if value == nil {
		return "(none)"
	}
	text := fmt.Sprint(value)
	if runes := []rune(text); len(runes) > 60 {
		return string(runes[:60]) + "..."
	}
	return text
}

func manifestValid(in *Input) Condition {
	switch {
	case in.ManifestProblem != "":
		return condition(ConditionManifestValid, False, "ManifestBroken", in.ManifestProblem)
	case in.VM == nil:
		return condition(ConditionManifestValid, False, "Removed", "git no longer has it")
	}
	return condition(ConditionManifestValid, True, "Valid", "")
}
