package plan

import "github.com/gitvirt/gitvirt/schemas"

// State is what a domain does.
type State string

// The closed set of states.
const (
	StateRunning State = "running"
	StatePaused  State = "paused"
	StateStopped State = "stopped"
	// StateMissing is a domain that was applied and is gone without gitvirt having removed it.
	StateMissing State = "missing"
)

// The reasons for a domain to be off, in libvirt's words.
const (
	StopShutdown  = "shutdown"  // the guest powered itself off
	StopDestroyed = "destroyed" // somebody pulled the plug
	StopCrashed   = "crashed"
	StopFailed    = "failed"
	StopSaved     = "saved" // suspended to disk
)

// Observed is what lives on a host.
type Observed struct {
	// Node is the host's name.
	Node string `json:"node"`
	// Unknown says why the host could not be read; everything else is then without meaning.
	Unknown string `json:"unknown,omitempty"`
	// Domains are gitvirt's domains, ordered by address.
	Domains []*Domain `json:"domains"`
	// Foreign are the domains of others, ordered by name.
	Foreign []Foreign `json:"foreign,omitempty"`
}

// Foreign is a domain that gitvirt does not touch.
type Foreign struct {
	Name string   `json:"name"`
	UUID string   `json:"uuid"`
	MACs []string `json:"macs,omitempty"`
}

// Domain is one of gitvirt's domains as it lives.
type Domain struct {
	Address schemas.Address `json:"address"`
	// Name is the libvirt domain's name.
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Fleet, Revision and Source are from the record: which fleet owns it, the commit that was applied, the manifest.
	Fleet    string `json:"fleet"`
	Revision string `json:"revision"`
	Source   string `json:"source"`
	State    State  `json:"state"`
	// Stop is why it is off; empty when unknown or when it runs.
	Stop string `json:"stop,omitempty"`
	// Ran says that the guest has been started since it was created.
	Ran bool `json:"ran"`
	// Transient says that somebody took the persistent definition away while the guest runs.
	Transient bool `json:"transient,omitempty"`
	// Hash and Record are what was applied last (schemas.VM); without sensitive values.
	Hash   string `json:"hash"`
	Record []byte `json:"record,omitempty"`
	// RunningHash and RunningRecord are what the running guest was started with or got live; empty when off.
	RunningHash   string `json:"running_hash,omitempty"`
	RunningRecord []byte `json:"running_record,omitempty"`
	// Drift is how the persistent definition differs from what Record renders to.
	Drift []Change `json:"drift,omitempty"`
	// Disks are the domain's disks.
	Disks []Disk `json:"disks,omitempty"`
	// Addresses are the guest's known IP addresses.
	Addresses []string `json:"addresses,omitempty"`
	// Ready is what the readiness probe says: "true", "false" or "unknown", ReadyReason why; empty without a probe.
	Ready       string `json:"ready,omitempty"`
	ReadyReason string `json:"ready_reason,omitempty"`
	// CredentialsProblem says why the access credentials are not in the guest.
	CredentialsProblem string `json:"credentials_problem,omitempty"`
	// PortsProblem says why the host does not forward all ports that the manifest opens.
	PortsProblem string `json:"ports_problem,omitempty"`
	// Fingerprint changes with everything that a plan depends on.
	Fingerprint string `json:"fingerprint"`
	// Problem says why the domain's record could not be understood; such a domain is left alone.
	Problem string `json:"problem,omitempty"`
	// Unread are the paths of what its domain XML holds and the agent does not know.
	Unread []string `json:"unread,omitempty"`
}

// Disk is one disk of a domain.
type Disk struct {
	Volume string `json:"volume"`
	// Kind is the volume source: emptyDisk, hostDisk, containerDisk, cloudInitNoCloud.
	Kind string `json:"kind"`
	Path string `json:"path"`
	// CapacityBytes is what the guest sees.
	CapacityBytes int64 `json:"capacity_bytes,omitempty"`
	// Keep says that the disk outlives its domain.
	Keep bool `json:"keep"`
}
