package plan

import (
	"slices"
	"time"

	"github.com/gitvirt/gitvirt/schemas"
)

// State is what a domain does.
type State string

// The closed set of states. "" is a domain of which nothing is believed: its Pod is not as the controller made it.
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
	// StopReplaced is why a domain is missing that gitvirt was making anew when it was interrupted.
	StopReplaced = "replaced"
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
	// Objects are what a cluster got as it is in git, ordered by address.
	Objects []*Object `json:"objects,omitempty"`
	// Live is what the host can do for running guests.
	Live LiveSet `json:"live,omitempty"`
}

// Domain returns the domain of an address; nil when there is none.
func (o *Observed) Domain(address schemas.Address) *Domain {
	at, found := slices.BinarySearchFunc(o.Domains, address, func(d *Domain, a schemas.Address) int { return d.Address.Compare(a) })
	if !found {
		return nil
	}
	return o.Domains[at]
}

// Holder implements schemas.Living: at an address lives a domain, or an object that a cluster got as it is. Nothing is known of a host
// that cannot be read.
func (o *Observed) Holder(address schemas.Address) (held schemas.Held, lives bool) {
	switch {
	case o.Unknown != "":
	case schemas.IsPassed(address.Kind):
		at, found := slices.BinarySearchFunc(o.Objects, address, func(object *Object, a schemas.Address) int { return object.Address.Compare(a) })
		if found {
			return schemas.Held{Source: o.Objects[at].Holder(), Fleet: o.Objects[at].Fleet, Record: o.Objects[at].Record}, true
		}
	default:
		if domain := o.Domain(address); domain != nil {
			return domain.held(), true
		}
	}
	return schemas.Held{}, false
}

// Machines implements schemas.Living.
func (o *Observed) Machines(visit func(schemas.Address, schemas.Held)) {
	if o.Unknown != "" {
		return
	}
	for _, domain := range o.Domains {
		visit(domain.Address, domain.held())
	}
}

func (d *Domain) held() schemas.Held {
	return schemas.Held{Source: d.Holder(), Fleet: d.Fleet, Record: d.Record}
}

// For returns what a Fleet may plan with: on a platform that is not the Fleet's, nothing is known of its machines.
func (o Observed) For(fleet *schemas.Fleet, pods Pods) Observed {
	switch cluster := fleet.Spec.Platform == schemas.PlatformKubernetes; {
	case o.Unknown != "" || cluster == (pods != nil):
	case cluster:
		return Observed{Node: o.Node, Unknown: "the Fleet's spec.platform is kubernetes, and this gitvirt drives a libvirt host; run it with --kubernetes, or set the platform to host"}
	default:
		return Observed{Node: o.Node, Unknown: "the Fleet's spec.platform is host, and this gitvirt drives a cluster; run it without --kubernetes, or set the platform to kubernetes"}
	}
	return o
}

// Own leaves out what was made from repositories that the Fleet names, for a plan that is not about them, unless the Fleet's own wants
// the same address.
func (o Observed) Own(want *schemas.Desired) Observed {
	wanted := make(map[schemas.Address]bool, len(want.VMs)+len(want.Objects))
	for _, vm := range want.VMs {
		wanted[vm.Address] = true
	}
	for _, object := range want.Objects {
		wanted[object.Address] = true
	}
	o.Domains = slices.DeleteFunc(slices.Clone(o.Domains), func(d *Domain) bool { return d.Holder() != "" && !wanted[d.Address] })
	o.Objects = slices.DeleteFunc(slices.Clone(o.Objects), func(object *Object) bool { return object.Holder() != "" && !wanted[object.Address] })
	return o
}

// LiveChange is something that a host can do for a running guest.
type LiveChange string

// The closed set of live changes.
const (
	LiveCPU       LiveChange = "cpu-plug"
	LiveMemory    LiveChange = "memory-plug"
	LiveBalloon   LiveChange = "balloon"
	LiveDisk      LiveChange = "disk-plug"
	LiveDiskGrow  LiveChange = "disk-grow"
	LiveMedia     LiveChange = "media"
	LiveInterface LiveChange = "interface-plug"
	LiveLink      LiveChange = "link"
)

// LiveSet are the live changes that a host can make.
type LiveSet []LiveChange

// Has reports whether a change is among them.
func (s LiveSet) Has(change LiveChange) bool { return slices.Contains(s, change) }

// Headroom is what a running guest can be changed to without a restart.
type Headroom struct {
	MaxVCPUs uint32 `json:"max_vcpus,omitempty"`
	// MaxMemoryBytes is up to how much memory can be plugged in; 0 for none.
	MaxMemoryBytes uint64 `json:"max_memory_bytes,omitempty"`
	// BalloonBytes is up to how much the balloon can give back; 0 without a balloon.
	BalloonBytes uint64 `json:"balloon_bytes,omitempty"`
	FreePCISlots uint32 `json:"free_pci_slots,omitempty"`
}

// Foreign is a domain that gitvirt does not touch.
type Foreign struct {
	Name  string   `json:"name"`
	UUID  string   `json:"uuid"`
	MACs  []string `json:"macs,omitempty"`
	State State    `json:"state,omitempty"`
	// Fingerprint changes with the definition and the power state.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Record is that of the manifest which describes the domain, at an address of no meaning; Unexpressed are the paths of what it does
	// not say.
	Record      []byte   `json:"record,omitempty"`
	Unexpressed []string `json:"unexpressed,omitempty"`
	// Problem says why the domain cannot be adopted.
	Problem string `json:"problem,omitempty"`
}

// Domain is one of gitvirt's domains as it lives.
type Domain struct {
	Address schemas.Address `json:"address"`
	// Name is the libvirt domain's name.
	Name string `json:"name"`
	// Former are the addresses that the machine had before it was renamed, the latest last.
	Former []schemas.Address `json:"former,omitempty"`
	UUID   string            `json:"uuid"`
	// Node is where the domain is, on a platform of several; Pod the name of its Pod, if it has one.
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"`
	// Fleet, Revision and Source are from the record: which fleet owns it, the commit that was applied (schemas.Provenance), the
	// manifest.
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
	// RunningDrift is how the running guest differs from what RunningRecord renders to.
	RunningDrift []Change `json:"running_drift,omitempty"`
	// PendingSince is since when the guest runs something else than what is configured; zero when it does not or nobody knows.
	PendingSince time.Time `json:"pending_since,omitzero"`
	// LiveRefused is the hash of a record that the host could not give this run of the guest, LiveRefusedReason why.
	LiveRefused       string `json:"live_refused,omitempty"`
	LiveRefusedReason string `json:"live_refused_reason,omitempty"`
	// RetiredSince is since when the domain is retired; zero when it is not.
	RetiredSince time.Time `json:"retired_since,omitzero"`
	// Headroom is what the running guest can be changed to; nil when it is off or nobody knows.
	Headroom *Headroom `json:"headroom,omitempty"`
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
	// Leave says why nothing can be decided about the domain now; it is left as it is until that is over.
	Leave string `json:"leave,omitempty"`
	// Problem says why the domain's record could not be understood; such a domain is left alone.
	Problem string `json:"problem,omitempty"`
	// Unread are the paths of what its domain XML holds and the agent does not know.
	Unread []string `json:"unread,omitempty"`
}

// Holder is the source that it was made from; empty for the repository of the Fleet.
func (d *Domain) Holder() string {
	source, _ := schemas.SplitProvenance(d.Revision)
	return source
}

// active reports whether the guest runs or is paused.
func (d *Domain) active() bool { return d.State == StateRunning || d.State == StatePaused }

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
