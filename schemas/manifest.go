package schemas

import (
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// File is one file of manifests, read and checked by itself. It depends on nothing but the file's path and
// content, so it can be cached by blob hash and shared; nobody changes it after Parse.
type File struct {
	Path        string
	VMs         []*VM
	Secrets     []*Secret
	Fleet       *Fleet
	Diagnostics Diagnostics
	// Broken lists the objects the file names but that have errors: they exist in the desired state and are
	// neither changed nor removed until they are mended.
	Broken []Broken
	// Opaque says that not even the names of all its objects could be read, so nobody can tell what the file
	// asks for; while there is an opaque file nothing is destroyed.
	Opaque bool
}

// Broken is an object whose manifest has errors.
type Broken struct {
	Address  Address
	Position Position
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
	// Secrets holds, by volume name, what the volume's Secret references resolved to. Filled by Assemble.
	Secrets map[string]SecretVolume
	// Record is what travels with the domain: see Record. Encoded canonically, without sensitive values.
	Record []byte
	// Hash is the hex SHA-256 of Record: equal hashes mean equal wishes.
	Hash string

	claims []claim
	// secretsAt is where the digests of Secrets go in Record.
	secretsAt int
}

// Spec returns the VirtualMachineInstanceSpec of the VM.
func (vm *VM) Spec() *kubevirtv1.VirtualMachineInstanceSpec { return &vm.Object.Spec.Template.Spec }

// SecretVolume is the sensitive content of a cloud-init volume that a Secret holds.
type SecretVolume struct {
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`
}

// Secret is a core/v1 Secret of the repository; its values are sensitive.
type Secret struct {
	Address  Address
	Position Position
	Object   *corev1.Secret
}
