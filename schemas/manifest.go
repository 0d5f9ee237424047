package schemas

import (
	"strconv"
	"sync/atomic"

	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// File is one file of manifests, read and checked by itself. It depends on nothing but the file's path and
// content, so it can be cached by blob hash and shared; nobody changes it after Parse.
type File struct {
	// Source is the one that the file is from; empty for the repository of the Fleet itself.
	Source      string
	Path        string
	VMs         []*VM
	Fleet       *Fleet
	Diagnostics Diagnostics
	// Broken lists the objects the file names but that have errors: they exist in the desired state and are
	// neither changed nor removed until they are mended.
	Broken []Broken
	// Opaque says that not even the names of all its objects could be read, so nobody can tell what the file
	// asks for; while there is an opaque file nothing is destroyed.
	Opaque bool

	// objects are what machines refer to.
	objects []*object
	// drafts wait for their instancetype or preference, which other files may hold.
	drafts []*draft
	// paused are the sets whose machines nobody is to touch.
	paused []Broken
	// mayHoldFleet says that a Fleet may be in what could not be read.
	mayHoldFleet bool
	// secret says that no value in the file may be printed: it was encrypted.
	secret bool
	// members counts the machines that come from sets.
	members int
}

// object is something of the repository that machines refer to.
type object struct {
	address  Address
	position Position
	// value is a Content (Secret, ConfigMap), *instancetype, *preference, *claimSource, *volumeSource, *service or
	// *attachment.
	value any
	// passed is the object for a cluster that gets it as it is; nil for others.
	passed *Object
}

// Broken is an object whose manifest has errors.
type Broken struct {
	Address  Address
	Position Position
	// Previous is the address that the object says it had (AnnotationPreviousName); zero for none.
	Previous Address
}

// VM is a VirtualMachine, or a VirtualMachineInstance in the form of a VirtualMachine that runs once:
// decoded, defaulted and validated.
type VM struct {
	Address  Address
	Position Position
	// Object is the manifest with KubeVirt's defaults filled in. A VirtualMachineInstance has runStrategy Once.
	Object *kubevirtv1.VirtualMachine
	// RunStrategy is never empty.
	RunStrategy kubevirtv1.VirtualMachineRunStrategy
	// Owner is the VirtualMachineInstanceReplicaSet or VirtualMachinePool that the machine is a member of; zero for none.
	Owner Address
	// Settings are gitvirt's own annotations.
	Settings Settings
	// Contents holds what references to Secrets and ConfigMaps resolved to, by VolumeContent, CredentialContent or
	// PullSecretContent. Sensitive. Filled by Assemble.
	Contents map[string]Content
	// Claims holds, by volume name, the claims that volumes name. Filled by Assemble.
	Claims map[string]Claim
	// HostDevices holds, by the name of a GPU, a host device or an SR-IOV interface, what the Fleet permits for it.
	// Filled by Assemble.
	HostDevices map[string]HostDeviceSelector
	// Record is what travels with the domain: see Record. Encoded canonically, without sensitive values.
	Record []byte
	// Hash is the hex SHA-256 of Record: equal hashes mean equal wishes.
	Hash string

	holdings   []holding
	references []reference
	// reaches and size are known of machines of sources only.
	reaches []reach
	size    size
	uses    []claimUse
	// labels are those that Services select by.
	labels map[string]string
	// resolvedAt is where what references resolve to goes in Record.
	resolvedAt int
	// memory is what is remembered from one time to the next; several goroutines may use a VM.
	memory *vmMemory
}

// vmMemory is what a machine is asked time and again.
type vmMemory struct {
	// resolved is what references resolved to last.
	resolved atomic.Pointer[resolution]
	// derived is what the machine has without having been given it.
	derived atomic.Pointer[derived]
}

// Spec returns the VirtualMachineInstanceSpec of the VM.
func (vm *VM) Spec() *kubevirtv1.VirtualMachineInstanceSpec { return &vm.Object.Spec.Template.Spec }

// Content is what a reference to a Secret or ConfigMap resolved to: values by key.
type Content map[string]string

// The keys of a cloud-init volume's Content.
const (
	ContentUserData    = "userdata"
	ContentNetworkData = "networkdata"
)

// VolumeContent is the key in VM.Contents of the files of a volume: all keys of its Secret, ConfigMap or sysprep source;
// for cloud-init ContentUserData and ContentNetworkData.
func VolumeContent(volume string) string { return volume }

// CredentialContent is the key in VM.Contents of the i-th of accessCredentials: all keys of its Secret.
func CredentialContent(i int) string { return "accessCredentials/" + strconv.Itoa(i) }

// PullSecretContent is the key in VM.Contents of an imagePullSecret: all keys of the Secret.
func PullSecretContent(secret string) string { return "imagePullSecrets/" + secret }

// Claim is a PersistentVolumeClaim, which a DataVolume or a dataVolumeTemplate may make, as a volume uses it. On a host
// it is an image that holds data and outlives every machine.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Capacity is the size in bytes; 0 when nothing says it, as for one that is cloned.
	Capacity int64 `json:"capacity,omitempty"`
	// Path is the file or block device that a PersistentVolume with hostPath or local names; empty for an image of
	// gitvirt's own.
	Path string `json:"path,omitempty"`
	// Block is volumeMode Block.
	Block bool `json:"block,omitempty"`
	// Shared is access mode ReadWriteMany or ReadOnlyMany: several machines may have it open.
	Shared bool `json:"shared,omitempty"`
	// Source is what a DataVolume fills a new image with; nil leaves it empty.
	Source *cdiv1.DataVolumeSource `json:"source,omitempty"`
	// SourceContent holds the keys of the Secret that Source refers to. Sensitive.
	SourceContent Content `json:"-"`
	// CopyOf is the claim that Source names, when it is one of the repository's: it may have to be made first.
	CopyOf *Claim `json:"-"`
}

// HostDeviceSelector is what a resource name of a GPU, a host device or an SR-IOV network means on a host, from
// permittedHostDevices of the Fleet (the structure of KubeVirt's configuration).
type HostDeviceSelector struct {
	// Resource is the deviceName of the manifest.
	Resource string `json:"resource"`
	// PCI are vendor and device in hexadecimal: "10DE:1EB8".
	PCI []string `json:"pci,omitempty"`
	// Mediated are names of mediated device types: "GRID T4-1Q".
	Mediated []string `json:"mediated,omitempty"`
	// USB are the devices that are handed over together: all of one entry.
	USB []kubevirtv1.USBSelector `json:"usb,omitempty"`
}
