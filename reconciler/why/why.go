// Package why says, in one screen, why a machine is not as the wanted revision asks, or that it is: every cause that is
// known, when it is over by itself, and the command that helps. It is pure: facts in, an answer out.
package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// Facts are what is known of one machine.
type Facts struct {
	// VM is its status: the controller's, or derived from git and the host.
	VM status.VM
	// Step is what the plan wants to do; nil when nothing. PlanID is that plan.
	Step   *plan.Step
	PlanID string
	// Revision is the commit that is wanted.
	Revision string
	// PollError says why the controller cannot read git.
	PollError string
	// Refused says why it does not apply what git has.
	Refused string
	// NoController says that nobody carries anything out by itself, and why that is believed.
	NoController string
}

// Kind is what keeps a machine from being as it is wanted.
type Kind string

// The closed set of kinds.
const (
	HostUnknown  Kind = "host-unknown"
	GitUnknown   Kind = "git-unknown"
	NotTrusted   Kind = "not-trusted"
	Manifest     Kind = "manifest"
	HeldBack     Kind = "held"
	Blocked      Kind = "blocked"
	Window       Kind = "window"
	NeedApproval Kind = "approval"
	Budget       Kind = "budget"
	Grace        Kind = "grace"
	Dependency   Kind = "dependency"
	Failed       Kind = "failed"
	Stalled      Kind = "stalled"
	CrashLoop    Kind = "crash-loop"
	Applying     Kind = "applying"
	Pending      Kind = "pending" // nothing stands in the way, it is only not done yet
	Drift        Kind = "drift"
	Restart      Kind = "restart-pending"
	NotReady     Kind = "not-ready"
	NobodyActs   Kind = "no-controller"
)

// Cause is one thing that keeps a machine from being as it is wanted.
type Cause struct {
	Kind Kind   `json:"kind"`
	Text string `json:"text"`
	// Until is when it is over, or tried again, by itself; zero when nobody knows.
	Until time.Time `json:"until,omitzero"`
	// Command is what helps; empty when only waiting does.
	Command string `json:"command,omitempty"`
}

// Answer is why a machine is not as the wanted revision asks, or that it is.
type Answer struct {
	Address schemas.Address `json:"address"`
	// Synced says that it is.
	Synced bool `json:"synced"`
	// Wanted is the revision that is wanted, Observed the one that was applied last.
	Wanted   string `json:"wanted"`
	Observed string `json:"observed,omitempty"`
	// Summary says what would be done about it.
	Summary string        `json:"summary,omitempty"`
	Causes  []Cause       `json:"causes,omitempty"`
	Changes []plan.Change `json:"changes,omitempty"`
}

// Of answers.
func Of(f Facts) Answer {
	a := Answer{Address: f.VM.Address, Synced: f.VM.Synced() == status.True, Wanted: f.Revision, Observed: f.VM.ObservedRevision}
	if f.Step != nil {
		a.Summary, a.Changes = f.Step.Summary, f.Step.Changes
	}
	add := func(kind Kind, until time.Time, command, format string, args ...any) {
		a.Causes = append(a.Causes, Cause{Kind: kind, Text: fmt.Sprintf(format, args...), Until: until, Command: command})
	}
	unread(&f, add)
	held := standsInTheWay(&f, add) || f.Refused != ""
	if f.Step != nil {
		held = waits(&f, add) || held
	}
	held = attempts(&f, add) || held
	gaps(&f, add)
	if !a.Synced && !held && f.Step != nil {
		act(&f, add)
	}
	if a.Synced {
		if ready := f.VM.Condition(status.ConditionReady); ready.Status == status.False && f.VM.Message != "" {
			add(NotReady, time.Time{}, "gitvirt describe "+name(f.VM.Address), "it is as git wants it, and not ready: %s", f.VM.Message)
		}
	}
	return a
}

// adder takes a cause.
type adder func(kind Kind, until time.Time, command, format string, args ...any)

func name(a schemas.Address) string { return a.Namespace + "/" + a.Name }

// unread tells which of the two sides is not known.
func unread(f *Facts, add adder) {
	if synced := f.VM.Condition(status.ConditionSynced); synced.Reason == "HostUnknown" {
		add(HostUnknown, time.Time{}, "gitvirt doctor", "the host cannot be read, so nobody can tell: %s", synced.Message)
	}
	if f.Refused != "" {
		add(NotTrusted, time.Time{}, "", "what git has is not applied: %s", f.Refused)
	}
	if f.PollError != "" {
		add(GitUnknown, time.Time{}, "", "the controller cannot read git and goes by what it fetched last: %s", f.PollError)
	}
}

// standsInTheWay tells what has to be changed before anything can happen, and whether there is any.
func standsInTheWay(f *Facts, add adder) bool {
	manifest, synced := f.VM.Condition(status.ConditionManifestValid), f.VM.Condition(status.ConditionSynced)
	switch {
	case manifest.Reason == "ManifestBroken":
		add(Manifest, time.Time{}, "gitvirt validate SOURCE", "its manifest has mistakes, so it is left as it is: %s", manifest.Message)
	case synced.Reason == "Held":
		add(HeldBack, time.Time{}, "", "it is left as it is: %s", synced.Message)
	case f.Step != nil && f.Step.Blocked != "":
		add(Blocked, time.Time{}, "", "what has to be done is blocked: %s", f.Step.Blocked)
	default:
		return false
	}
	return true
}

var waitKinds = map[plan.WaitFor]Kind{
	plan.WaitWindow: Window, plan.WaitApproval: NeedApproval, plan.WaitBudget: Budget,
	plan.WaitGrace: Grace,
}

// waits tells what a step waits for, and whether it does.
func waits(f *Facts, add adder) bool {
	for _, wait := range f.Step.Waits {
		command := ""
		switch wait.For {
		case plan.WaitApproval, plan.WaitWindow, plan.WaitBudget:
			if f.PlanID != "" {
				command = fmt.Sprintf("gitvirt approve %s --only %s", f.PlanID, name(f.VM.Address))
			}
		case plan.WaitGrace:
		}
		add(waitKinds[wait.For], wait.Until, command, "it waits for %s: %s", waitNames[wait.For], wait.Reason)
	}
	if f.VM.Waits != "" {
		command := ""
		if len(f.Step.DependsOn) > 0 {
			command = "gitvirt why " + name(f.Step.DependsOn[0].Address)
		}
		add(Dependency, time.Time{}, command, "it has not begun: %s", f.VM.Waits)
	}
	return len(f.Step.Waits) > 0 || f.VM.Waits != ""
}

var waitNames = map[plan.WaitFor]string{
	plan.WaitWindow: "a maintenance window", plan.WaitApproval: "an approval", plan.WaitBudget: "a budget",
	plan.WaitGrace: "the end of its grace period",
}

// attempts tells what was tried, and whether anything was.
func attempts(f *Facts, add adder) bool {
	synced := f.VM.Condition(status.ConditionSynced)
	describe := "gitvirt describe " + name(f.VM.Address)
	switch synced.Reason {
	case "Applying":
		text := "it is being carried out now"
		if f.VM.Progress != "" {
			text += ": " + f.VM.Progress
		}
		add(Applying, time.Time{}, "", "%s", text)
	case "Failed":
		add(Failed, f.VM.RetryAt, describe, "the last attempt failed: %s", synced.Message)
	case "Stalled":
		add(Stalled, f.VM.RetryAt, describe, "it cannot be done until git or the host changes: %s", synced.Message)
	case "CrashLoopBackOff":
		add(CrashLoop, f.VM.RetryAt, describe, "the guest keeps going down (%d restart%s) and waits to be started again", f.VM.Restarts, plural(f.VM.Restarts))
	default:
		return false
	}
	return true
}

// gaps tells how what lives differs from what was applied.
func gaps(f *Facts, add adder) {
	if drifted := f.VM.Condition(status.ConditionDrifted); drifted.Status == status.True {
		add(Drift, time.Time{}, "", "it was changed outside gitvirt: %s", drifted.Message)
	}
	if f.Step != nil && f.Step.PendingRestart != nil && len(f.Step.PendingRestart.Fields) > 0 {
		pending := f.Step.PendingRestart
		add(Restart, time.Time{}, "", "its guest runs an older configuration%s: %s", since(" since ", pending.Since), strings.Join(pending.Fields, ", "))
	} else if pending := f.VM.Condition(status.ConditionRestartPending); pending.Status == status.True {
		add(Restart, time.Time{}, "", "its guest runs an older configuration: %s", pending.Message)
	}
}

// since is a time after a word, and nothing when nobody knows it.
func since(word string, at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return word + at.UTC().Format(time.DateTime) + " UTC"
}

// act tells who carries out a step that nothing stands in the way of.
func act(f *Facts, add adder) {
	if approved := f.Step.Approved; approved != nil {
		add(Pending, time.Time{}, "", "%s approved of it%s", approved.By, since(" at ", approved.At))
	}
	if f.NoController != "" {
		add(NobodyActs, time.Time{}, "gitvirt apply SOURCE --target "+name(f.VM.Address), "no controller carries it out: %s", f.NoController)
		return
	}
	add(Pending, time.Time{}, "", "nothing stands in the way; the controller is about to carry it out")
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
