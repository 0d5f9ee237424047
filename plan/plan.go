// Package plan compares what git wants with what runs and says what has to happen, why, and what the guest notices.
// A Plan is plain data: it can be saved, sent, compared and carried out later. The package is pure: it reads no
// file, no network and no clock, so the same input always gives the same plan. Carrying a plan out is package
// apply's work.
package plan

import (
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// FormatVersion is the version of the JSON form. The minor part grows when fields are added, the major part when
// fields change or go.
const FormatVersion = "2.1"

// Action is what happens to one object.
type Action string

// The closed set of actions.
const (
	ActionCreate  Action = "create"
	ActionUpdate  Action = "update"
	ActionStart   Action = "start"
	ActionStop    Action = "stop"
	ActionRestart Action = "restart"
	ActionReplace Action = "replace"
	ActionDestroy Action = "destroy"
	ActionAdopt   Action = "adopt"  // a domain of others becomes gitvirt's, as it is
	ActionRename  Action = "rename" // the same domain under another name in git
	ActionRetire  Action = "retire" // a removed VM is shut down and kept for its grace period
)

// Reason is why a step is there.
type Reason string

// The closed set of reasons.
const (
	ReasonNew            Reason = "new"             // in git, not on the host
	ReasonChanged        Reason = "changed"         // git differs from what was applied
	ReasonRemoved        Reason = "removed"         // applied once, no longer in git
	ReasonDrift          Reason = "drift"           // what lives differs from what was applied
	ReasonPower          Reason = "power"           // runStrategy wants another power state
	ReasonPendingRestart Reason = "pending-restart" // configured already, the guest still runs the old configuration
	ReasonRunningDrift   Reason = "running-drift"   // the running guest differs from what it was started with
	ReasonAdopted        Reason = "adopted"         // gitvirt.io/adopt names the domain
	ReasonRenamed        Reason = "renamed"         // gitvirt.io/previous-name names the VM it was
	ReasonReturned       Reason = "returned"        // retired, and in git again before it was destroyed
)

// Consequence is what the guest notices, ordered from nothing to everything.
type Consequence string

// The closed set of consequences.
const (
	ConsequenceNone     Consequence = "none"      // the guest cannot notice
	ConsequenceLive     Consequence = "live"      // arrives without interruption
	ConsequenceNextBoot Consequence = "next-boot" // stays in the configuration until somebody boots the guest
	ConsequenceStop     Consequence = "stop"      // the guest is shut down and stays off
	ConsequenceMigrate  Consequence = "migrate"   // the guest moves to another host and runs on
	ConsequenceRestart  Consequence = "restart"   // power cycle
	ConsequenceReplace  Consequence = "replace"   // the domain is made anew, its disks are kept
	ConsequenceData     Consequence = "data"      // data of a disk is destroyed
	ConsequenceDestroy  Consequence = "destroy"   // the domain goes
)

var severity = map[Consequence]int{
	ConsequenceNone: 0, ConsequenceLive: 1, ConsequenceNextBoot: 2, ConsequenceMigrate: 3,
	ConsequenceRestart: 4, ConsequenceStop: 5, ConsequenceReplace: 6, ConsequenceData: 7, ConsequenceDestroy: 8,
}

// Worse returns the consequence of the two that interrupts the guest more.
func (c Consequence) Worse(other Consequence) Consequence {
	if severity[other] > severity[c] {
		return other
	}
	return c
}

// PowerChange is what a step does to the guest's power.
type PowerChange string

// The closed set of power changes.
const (
	PowerKeep  PowerChange = ""
	PowerOn    PowerChange = "on"
	PowerOff   PowerChange = "off"   // graceful, then forced after the grace period
	PowerCycle PowerChange = "cycle" // off, then on with the new configuration
)

// Change is one field whose value changes.
type Change struct {
	// Path is the field in the manifest, list elements by name: spec.template.spec.domain.devices.disks[root].bootOrder.
	Path string `json:"path"`
	// Before and After are the JSON values; nil means the field is not there. Both are nil when Sensitive.
	Before any `json:"before"`
	After  any `json:"after"`
	// Sensitive hides both values: secrets and user data.
	Sensitive   bool        `json:"sensitive,omitempty"`
	Consequence Consequence `json:"consequence"`
	// Note says why the consequence is worse than the table's row: the host or this guest cannot be changed live.
	Note string `json:"note,omitempty"`
}

// WaitFor is what a step waits for.
type WaitFor string

// The closed set of what steps wait for.
const (
	WaitWindow   WaitFor = "window"   // a maintenance window
	WaitApproval WaitFor = "approval" // gitvirt approve
	WaitBudget   WaitFor = "budget"   // too many of this kind at this revision, or on this host now
	WaitGrace    WaitFor = "grace"    // the grace period of a removed VM
)

// Wait is one thing that a step waits for. A step that waits is shown and not carried out.
type Wait struct {
	For WaitFor `json:"for"`
	// Until is when the wait is over by itself; zero when nobody knows.
	Until time.Time `json:"until,omitzero"`
	// Reason says it for people: which window, how to approve.
	Reason string `json:"reason"`
}

// Approved says who let a step happen that would have waited, and when.
type Approved struct {
	// By is who, as git names people: "Name <email>".
	By string    `json:"by"`
	At time.Time `json:"at,omitzero"`
}

// Pending is a restart that the guest still has before it.
type Pending struct {
	// Fields are the paths that the running guest has otherwise than its configuration.
	Fields []string `json:"fields"`
	// Since is when the configuration was written; zero when nobody knows.
	Since time.Time `json:"since,omitzero"`
}

// Dependency is another machine that has to be ready before a step.
type Dependency struct {
	Address schemas.Address `json:"address"`
	Ready   schemas.Ready   `json:"ready"`
}

// Step is what happens to one object.
type Step struct {
	// ID is a hash of everything that the step does; approvals are bound to it.
	ID          string          `json:"id"`
	Address     schemas.Address `json:"address"`
	Action      Action          `json:"action"`
	Reason      Reason          `json:"reason"`
	Consequence Consequence     `json:"consequence"`
	// Summary says in one line, for people, what happens and why.
	Summary string `json:"summary"`
	// Domain is the libvirt domain that is touched.
	Domain string `json:"domain"`
	// Pod is the Pod that the domain is in; nil on a host.
	Pod *Pod `json:"pod,omitempty"`
	// Source is the place of the manifest; empty for objects that git no longer has. Revision is what is recorded with its
	// domain where that is not the plan's: the commit of another repository (schemas.Provenance).
	Source   string   `json:"source,omitempty"`
	Revision string   `json:"revision,omitempty"`
	Changes  []Change `json:"changes,omitempty"`
	// Drift lists what somebody changed behind our back: Before is what was applied, After is what lives.
	Drift []Change `json:"drift,omitempty"`
	// RunningDrift lists what somebody changed in the running guest: Before is what it was started with, After is what it has.
	RunningDrift []Change `json:"running_drift,omitempty"`
	// PendingRestart says that the guest runs an older configuration than the one that is defined.
	PendingRestart *Pending `json:"pending_restart,omitempty"`
	// Waits are what the step waits for; it is carried out when there is none.
	Waits []Wait `json:"waits,omitempty"`
	// Approved says who let the step happen; nil where nobody was asked.
	Approved *Approved `json:"approved,omitempty"`
	// DependsOn are the machines that have to be ready first, or of a guest that goes down: that it goes down before.
	DependsOn []Dependency `json:"depends_on,omitempty"`
	// Ready is when the step counts as done.
	Ready schemas.Ready `json:"ready,omitzero"`
	// DowntimeSeconds is about how long the guest is down; 0 when it is not.
	DowntimeSeconds int64 `json:"downtime_seconds,omitempty"`
	// Live says that the running guest is changed without a restart.
	Live bool `json:"live,omitempty"`
	// Adopt is the name of the domain that is taken over, Previous the address that it had.
	Adopt    string           `json:"adopt,omitempty"`
	Previous *schemas.Address `json:"previous,omitempty"`
	// Kept are the parts of an adopted domain, by their path in its XML, that no field of the manifest says; they stay.
	Kept []string `json:"kept,omitempty"`
	// DataAtRisk says for each disk what the step discards.
	DataAtRisk []string `json:"data_at_risk,omitempty"`
	// Keeps lists the disks that outlive a destroyed domain.
	Keeps []string `json:"keeps,omitempty"`
	// Warnings are what the policy's rules say that only warn, and what the host says that may go wrong later.
	Warnings []string `json:"warnings,omitempty"`
	// Blocked says why the step is shown but not carried out.
	Blocked string `json:"blocked,omitempty"`
	// Refused has a word for each reason why the platform does not take the machine as it is; then the step is blocked.
	Refused []string `json:"refused,omitempty"`
	// Define says that the persistent definition is written.
	Define bool `json:"define"`
	// Power is the change of power that belongs to the step.
	Power PowerChange `json:"power,omitempty"`
	// Precondition is the fingerprint of the domain that the step was made for, "" when it must not exist.
	Precondition string `json:"precondition"`
	// GraceSeconds is how long the guest may take to shut down before it is stopped.
	GraceSeconds int64 `json:"grace_seconds,omitempty"`

	// VM is what git wants; nil for a destroy. It holds sensitive values and never leaves the process in a
	// rendering.
	VM *schemas.VM `json:"-"`
	// Object is what a cluster gets as it is; nil for machines, and for a destroy.
	Object *schemas.Object `json:"-"`
}

// Held is an object that nothing is done about, with the reason.
type Held struct {
	Address schemas.Address `json:"address"`
	Reason  string          `json:"reason"`
}

// Plan is what one revision means for one fleet.
type Plan struct {
	FormatVersion string `json:"format_version"`
	// ID is a hash of everything that decides what happens: equal IDs are equal plans.
	ID string `json:"id"`
	// Revision is the commit that is wanted; Base, where known, the one it is compared with.
	Revision string `json:"revision"`
	Base     string `json:"base,omitempty"`
	Fleet    string `json:"fleet"`
	// Policy is a hash of the policy that took part, "" for none.
	Policy string `json:"policy,omitempty"`
	// Partial says that only some objects were planned (--target, --exclude); nil when all were.
	Partial *Partial `json:"partial,omitempty"`
	// Steps are ordered by address; objects without a step are up to date.
	Steps []Step `json:"steps"`
	// Held are the objects with broken manifests: neither changed nor removed.
	Held []Held `json:"held,omitempty"`
	// Unknown says why the host could not be read; then there are no steps.
	Unknown string `json:"unknown,omitempty"`
	// UnknownCount is the number of objects whose state is unknown.
	UnknownCount int `json:"unknown_count"`
	// Unchanged is the number of objects that are as git wants them.
	Unchanged int     `json:"unchanged"`
	Summary   Summary `json:"summary"`
	// Notes say what took no part in the plan, for people. They are not part of its ID.
	Notes       []string            `json:"notes,omitempty"`
	Diagnostics schemas.Diagnostics `json:"diagnostics,omitempty"`
}

// Approvable reports whether an approval would let the step happen, or let it come closer.
func (s *Step) Approvable() bool {
	return s.Blocked == "" && slices.ContainsFunc(s.Waits, func(w Wait) bool {
		return w.For == WaitApproval || w.For == WaitWindow || w.For == WaitBudget
	})
}

// StartsGuest reports whether the step starts a guest, or starts it again.
func (s *Step) StartsGuest() bool { return s.Power == PowerOn || s.Power == PowerCycle }

// StopsGuest reports whether the step leaves a guest off, or none.
func (s *Step) StopsGuest() bool {
	return s.Action == ActionDestroy || s.Action == ActionRetire || s.Power == PowerOff
}

// ReachesGuest reports whether the running guest gets what the step changes, without a restart. What the guest cannot notice is brought
// into its running domain too, so that nothing waits for a restart that nobody needs.
func (s *Step) ReachesGuest() bool {
	return s.Live || s.Consequence == ConsequenceNone || s.Consequence == ConsequenceLive
}

// Runs reports whether the step is carried out: nothing blocks it and it waits for nothing.
func (s *Step) Runs() bool { return s.Blocked == "" && len(s.Waits) == 0 }

// Empty reports whether nothing would be carried out.
func (p *Plan) Empty() bool {
	for i := range p.Steps {
		if p.Steps[i].Runs() {
			return false
		}
	}
	return true
}

// Executable returns the steps that are carried out, in order.
func (p *Plan) Executable() []Step {
	var steps []Step
	for _, step := range p.Steps {
		if step.Runs() {
			steps = append(steps, step)
		}
	}
	return steps
}
