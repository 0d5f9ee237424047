// Package status is what gitvirt tells about its machines: the status of each, derived from what git wants, what lives
// and what was tried, and the files that the status branch holds. It is pure and deterministic: equal states give equal
// bytes, and no time is in them that changes without a change of state.
//
// Nothing of a manifest's content is in a status but names, positions and the texts of plans and diagnostics, which
// never hold sensitive values.
package status

import (
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// Phase is where a machine is in its life.
type Phase string

// The closed set of phases.
const (
	PhasePending     Phase = "Pending"     // not on the host yet
	PhaseBlocked     Phase = "Blocked"     // not on the host, and must not be put there
	PhaseFailed      Phase = "Failed"      // not on the host, and could not be put there
	PhaseStarting    Phase = "Starting"    // being started
	PhaseRunning     Phase = "Running"     // the guest runs
	PhasePaused      Phase = "Paused"      // the guest is paused
	PhaseStopping    Phase = "Stopping"    // being shut down
	PhaseStopped     Phase = "Stopped"     // the guest is off
	PhaseCrashed     Phase = "Crashed"     // the guest crashed and is off
	PhaseSucceeded   Phase = "Succeeded"   // the guest powered itself off, and that was its purpose (Once, RerunOnFailure)
	PhaseMissing     Phase = "Missing"     // was on the host and vanished
	PhaseTerminating Phase = "Terminating" // being removed
	PhaseUnknown     Phase = "Unknown"     // the host cannot be read
)

// ConditionType names a condition.
type ConditionType string

// The conditions of every machine, in the order in which they are written.
const (
	ConditionReady          ConditionType = "Ready"          // the guest runs
	ConditionSynced         ConditionType = "Synced"         // the machine is as git wants it
	ConditionDrifted        ConditionType = "Drifted"        // somebody changed it outside gitvirt
	ConditionRestartPending ConditionType = "RestartPending" // the guest runs an older configuration
	ConditionManifestValid  ConditionType = "ManifestValid"  // git holds a manifest without mistakes
)

// Truth is the status of a condition.
type Truth string

// The values of a condition, as in Kubernetes.
const (
	True    Truth = "True"
	False   Truth = "False"
	Unknown Truth = "Unknown"
)

// Condition is one aspect of a machine's state.
type Condition struct {
	Type    ConditionType `json:"type"`
	Status  Truth         `json:"status"`
	Reason  string        `json:"reason"`
	Message string        `json:"message,omitempty"`
	// LastTransitionTime is when Status became what it is, in whole seconds, UTC.
	LastTransitionTime time.Time `json:"lastTransitionTime,omitzero"`
}

// Disk is a disk that outlives its machine.
type Disk struct {
	Volume string `json:"volume"`
	Kind   string `json:"kind"`
	Path   string `json:"path,omitempty"`
	// CapacityBytes is what the guest sees.
	CapacityBytes int64 `json:"capacityBytes,omitempty"`
}

// KeptDisk is a disk with data whose machine is gone.
type KeptDisk struct {
	// Owner is the machine it belonged to.
	Owner schemas.Address `json:"owner,omitzero"`
	Disk
	Node string `json:"node,omitempty"`
}

// LastPlan is the last thing that was planned for a machine.
type LastPlan struct {
	// ID is the plan that first had it.
	ID          string           `json:"id"`
	Action      plan.Action      `json:"action"`
	Consequence plan.Consequence `json:"consequence"`
	Summary     string           `json:"summary"`
	// Time is when it was first planned, in whole seconds, UTC.
	Time time.Time `json:"time,omitzero"`
}

// VM is the status of one machine.
type VM struct {
	Address schemas.Address `json:"address"`
	Phase   Phase           `json:"phase"`
	// Message says in a line what people should know; empty when all is well.
	Message string `json:"message,omitempty"`
	Node    string `json:"node,omitempty"`
	Domain  string `json:"domain,omitempty"`
	// Addresses are the guest's known IP addresses.
	Addresses []string `json:"addresses,omitempty"`
	// Source is the place of the manifest.
	Source string `json:"source,omitempty"`
	// WantedRevision is the commit since which git wants the machine as it does now, ObservedRevision the one that was
	// applied last.
	WantedRevision   string      `json:"wantedRevision,omitempty"`
	ObservedRevision string      `json:"observedRevision,omitempty"`
	Conditions       []Condition `json:"conditions"`
	// Disks are those that outlive the machine.
	Disks    []Disk    `json:"disks,omitempty"`
	LastPlan *LastPlan `json:"lastPlan,omitempty"`
	// Restarts counts how often the guest was started again since it last ran for a while.
	Restarts int `json:"restarts,omitempty"`
	// Unread are the paths of what the domain XML holds and gitvirt does not know. They are not written to git.
	Unread []string `json:"unread,omitempty"`
	// Progress says what is being done right now. It is not written to git.
	Progress string `json:"progress,omitempty"`
	// Waits says what its step waits for in the order and the pace of its revision, RetryAt when a step that failed is
	// tried again. They are not written to git.
	Waits   string    `json:"waits,omitempty"`
	RetryAt time.Time `json:"retryAt,omitzero"`

	// hash is the wish that WantedRevision belongs to; "" when it is not known, as after reading a file.
	hash string
	// found says that the facts about the domain are present ones.
	found bool
}

// Condition returns the condition of a type; its zero value when there is none.
func (vm *VM) Condition(kind ConditionType) Condition {
	for _, condition := range vm.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return Condition{}
}

// Synced is the status of the Synced condition.
func (vm *VM) Synced() Truth { return vm.Condition(ConditionSynced).Status }

// ShortRevision is a revision for people: seven digits of a commit, more of a content hash, with the source that it is of
// before it and what says of other repositories behind it.
func ShortRevision(revision string) string {
	const prefix = "sha256:"
	whole := sources.CommitOf(revision)
	others := revision[len(whole):]
	source, commit := schemas.SplitProvenance(whole)
	if !safeName(source) {
		source, commit = "", whole
	}
	n := 7
	if strings.HasPrefix(commit, prefix) {
		n += len(prefix)
	}
	return schemas.Provenance(source, commit[:min(n, len(commit))]) + others[:min(8, len(others))]
}
