package schemas

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// FleetSource is another repository whose manifests the Fleet takes in, and what they may ask for. Whatever is not said here
// is refused, object by object; only the repository of the Fleet itself may ask for everything.
type FleetSource struct {
	// Name is what the source is called in positions, messages and records: a DNS label that no other source has.
	Name string `json:"name"`
	// Git is where its manifests are.
	Git FleetSourceGit `json:"git"`
	// Namespaces are those that its objects may be in; at least one.
	Namespaces []string `json:"namespaces"`
	// HostPaths are the files and folders of hosts that its machines may use, each with everything below it.
	HostPaths []string `json:"hostPaths,omitempty"`
	// Networks are those that its interfaces may use besides the pod network, as NAMESPACE/NAME, or NAME for one of the
	// machine's own namespace.
	Networks []string `json:"networks,omitempty"`
	// Quota bounds its machines together; nil does not.
	Quota *FleetQuota `json:"quota,omitempty"`
	// Allow lists what of a host or a cluster its machines may take from others.
	Allow []SourceRight `json:"allow,omitempty"`
	// Trust is whose commits of this repository are applied; nil leaves it to the controller.
	Trust *FleetTrust `json:"trust,omitempty"`
	// Doubt says that the entry has mistakes: then nothing of the source is changed or removed.
	Doubt bool `json:"-"`
}

// SourceRight is something that machines take from others when they get it.
type SourceRight string

// The rights.
const (
	// RightDedicatedCPUs is dedicatedCpuPlacement: CPUs of the host that nobody else gets.
	RightDedicatedCPUs SourceRight = "dedicatedCPUs"
	// RightHugePages is memory.hugepages and hugepages-* of resources, of which a host has few.
	RightHugePages SourceRight = "hugePages"
	// RightPriorityClasses is priorityClassName: Pods of others make room.
	RightPriorityClasses SourceRight = "priorityClasses"
	// RightTolerations is tolerations: nodes that were kept free for others.
	RightTolerations SourceRight = "tolerations"
	// RightNodePorts is Services of the types NodePort and LoadBalancer: ports of every node.
	RightNodePorts SourceRight = "nodePorts"
)

// sourceRights lists them as they are written.
func sourceRights() []SourceRight {
	return []SourceRight{RightDedicatedCPUs, RightHugePages, RightPriorityClasses, RightTolerations, RightNodePorts}
}

// FleetSourceGit is where a source's manifests are.
type FleetSourceGit struct {
	// URL of the repository, without credentials.
	URL string `json:"url"`
	// Branch is the one that counts; empty is the one that the repository names itself.
	Branch string `json:"branch,omitempty"`
	// Path is the folder of the manifests; empty is the whole repository.
	Path string `json:"path,omitempty"`
}

// FleetQuota bounds the machines of a source together; what is zero or missing is not bounded.
type FleetQuota struct {
	// VMs counts the machines, members of sets included.
	VMs int `json:"vms,omitempty"`
	// CPUs counts the virtual CPUs that the guests may come to have.
	CPUs int `json:"cpus,omitempty"`
	// Memory is that of the guests, or what is set aside for them where that is more.
	Memory resource.Quantity `json:"memory,omitempty,omitzero"`
	// Storage is that of claims, DataVolumes, empty disks, and what is set aside on nodes.
	Storage resource.Quantity `json:"storage,omitempty,omitzero"`
}

// Provenance is how a record says where a machine was applied from: the commit alone for the repository of the Fleet, and
// SOURCE@COMMIT for a source.
func Provenance(source, commit string) string {
	if source == "" {
		return commit
	}
	return source + "@" + commit
}

// SplitProvenance reads what Provenance wrote.
func SplitProvenance(provenance string) (source, commit string) {
	if source, commit, ok := strings.Cut(provenance, "@"); ok {
		return source, commit
	}
	return "", provenance
}

// ParseFrom is Parse for a file of a source: positions in it begin with the name of the source.
func ParseFrom(source, path string, content []byte) *File {
	return mayHoldFleet(&File{Source: source, Path: path}, content)
}

// ParseSecretFrom is ParseFrom for a file that was decrypted: no value of it is in a diagnostic.
func ParseSecretFrom(source, path string, content []byte) *File {
	return mayHoldFleet(&File{Source: source, Path: path, secret: true}, content)
}

// Unread stands for all files of a source that cannot be read: nobody knows what it asks for.
func Unread(source, problem string) *File {
	return Unreadable(Position{Source: source}, problem, "nothing that was made from "+source+" is removed until it can be read")
}

// Held is a machine that lives, as far as it decides who keeps what several sources ask for.
type Held struct {
	// Source is the one that it was made from; empty for the repository of the Fleet itself.
	Source string
	// Fleet is the one that it belongs to; empty when that is not known.
	Fleet string
	// Record is what was applied last (VM.Record): what the machine has, and how large it is. It is read only where sources
	// clash or a quota is used up.
	Record []byte
}

// Living is what lives.
type Living interface {
	// Holder says what lives at an address. It is asked for machines by both of their kinds, and for objects that a cluster gets
	// as they are.
	Holder(address Address) (held Held, lives bool)
	// Machines visits all machines that live. It is asked only where there are several sources.
	Machines(visit func(address Address, held Held))
}

// Holding tells Assemble what lives. Who has something keeps it when another source asks for it too, and what lives keeps
// its part of a quota.
func Holding(living Living) Option {
	return func(a *assembly) { a.holding = living }
}
