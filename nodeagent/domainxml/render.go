// Package domainxml turns a VM into libvirt's domain XML and back into facts: it renders the hardware that KubeVirt
// would give the same manifest, keeps gitvirt's record in the domain's metadata, and tells how a domain differs from
// what was rendered. It is pure: no libvirt, no files, no network. Driving libvirt is package hypervisor's work, making
// disks is package disks'.
package domainxml

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// DefaultGraceSeconds is how long a guest may take to shut down when its manifest does not say (KubeVirt: 30 s for
// VirtualMachines).
const DefaultGraceSeconds = 30

// Host is what rendering needs to know of the host.
type Host struct {
	// DomainType is "kvm", or "qemu" for software emulation.
	DomainType string
	// ConsoleLog is the file that keeps what the guest writes to its serial console; empty for none.
	ConsoleLog string
	// NVRAM is the file for a UEFI guest's variables.
	NVRAM string
	// Dir is the folder of the VM on the host; sockets of its devices (USB redirection, downward metrics) belong there.
	Dir string
	// Assignment is what was chosen on the host for this VM.
	Assignment Assignment
}

// Assignment is what the agent chose on the host for one VM. It stands in the record, so that the VM is rendered the
// same way again when its definition is compared.
type Assignment struct {
	// Devices are the host's devices for the GPUs, host devices and SR-IOV interfaces of the manifest.
	Devices []HostDevice `json:"devices,omitempty"`
	// CPUs are the host's CPUs for a VM with dedicatedCpuPlacement; nil for others.
	CPUs *CPUPlacement `json:"cpus,omitempty"`
	// Taps are the network devices that were made for a VM in its Pod, one for each interface but those of SR-IOV. A VM that
	// has any runs in a Pod; without them its interfaces join what a host without Kubernetes has.
	Taps []Tap `json:"taps,omitempty"`
}

// Tap is a network device in a VM's Pod that waits for the guest's network card.
type Tap struct {
	// Name is that of the interface in the manifest.
	Name string `json:"name"`
	// Device is the tap device's name in the Pod.
	Device string `json:"device"`
	// MAC is the guest's address.
	MAC string `json:"mac"`
	// MTU is that of the Pod's interface.
	MTU int `json:"mtu"`
	// Queues is how many pairs of queues the device was made for; 0 and 1 are both one.
	Queues int `json:"queues,omitempty"`
	// VHost says that the kernel moves the packets (/dev/vhost-net) in place of QEMU.
	VHost bool `json:"vhost,omitempty"`
}

// HostDevice is a device of the host that is handed to a guest.
type HostDevice struct {
	// Name is that of the GPU, host device or interface in the manifest. A USB resource may consist of several devices of
	// one name.
	Name string `json:"name"`
	// Type is pci, mdev or usb.
	Type string `json:"type"`
	// Address is "0000:81:01.0" for pci, the UUID for mdev, "BUS:DEVICE" in decimal for usb.
	Address string `json:"address"`
}

// CPUPlacement says on which CPUs of the host a VM runs.
type CPUPlacement struct {
	// VCPUs has the host's CPU for each vCPU.
	VCPUs []int `json:"vcpus"`
	// Emulator are the CPUs of QEMU's own threads; empty lets them run on those of the vCPUs.
	Emulator []int `json:"emulator,omitempty"`
	// Nodes has the host's NUMA node for each vCPU; empty when nobody asked for guestMappingPassthrough.
	Nodes []int `json:"nodes,omitempty"`
}

// Volume is where a volume of the VM is on the host. The kernelBoot container is the volume named KernelBootVolume.
type Volume struct {
	Name string
	// Kind is the name of the volume source in the manifest: containerDisk, emptyDisk, ...
	Kind string
	// Path is the disk image or block device, the folder of a shared file system, the file of an ACPI table, or the kernel of
	// kernelBoot.
	Path string
	// Block says that Path is a block device.
	Block bool
	// Format is qcow2 or raw.
	Format string
	// Capacity is the size the guest sees, in bytes; 0 when unknown.
	Capacity int64
	// Cached says that the file system cannot do direct I/O, so the disk goes through the host's page cache.
	Cached bool
	// Backing is the image below an overlay, BackingFormat its format.
	Backing       string
	BackingFormat string
	// LogicalBlock and PhysicalBlock are the block sizes of a block device in bytes, for blockSize.matchVolume; 0 when unknown.
	LogicalBlock  uint
	PhysicalBlock uint
	// Initrd belongs to kernelBoot.
	Initrd string
	// Content is a digest of what a medium is made of that is exchanged while the guest runs; empty for others.
	Content string
}

// KernelBootVolume is the name under which kernelBoot's files are found among the volumes. No volume can have it:
// names of volumes are DNS labels.
const KernelBootVolume = "kernel/boot"

// DomainName returns the libvirt domain's name, KubeVirt's NAMESPACE_NAME.
func DomainName(address schemas.Address) string { return address.Namespace + "_" + address.Name }

// GraceSeconds returns how long the guest may take to shut down.
func GraceSeconds(spec *kubevirtv1.VirtualMachineInstanceSpec) int64 {
	if spec.TerminationGracePeriodSeconds == nil {
		return DefaultGraceSeconds
	}
	return *spec.TerminationGracePeriodSeconds
}

// Machine is a VM on a host.
type Machine struct {
	// Address is the one that the domain was made under: see Record.Made.
	Address schemas.Address
	// Name and UUID are the domain's, where they do not derive from Address.
	Name, UUID string
	Spec       *kubevirtv1.VirtualMachineInstanceSpec
	Host       Host
	// Volumes has one entry for each volume of the manifest.
	Volumes []Volume
	// Record is what the domain carries about itself in its metadata; nil for nothing.
	Record *Record
	// Kept is what the domain was before it was adopted; nil for one that gitvirt made.
	Kept *Kept
}

// Render returns the domain XML document of a VM. The same machine always gives the same document. An error means that
// the manifest asks for what no domain can hold, or that something of the host is missing that it needs.
func Render(m Machine) (string, error) {
	if m.Kept != nil {
		return m.renderKept()
	}
	r, err := newRenderer(m)
	if err != nil {
		return "", err
	}
	r.out = make([]byte, 0, sizeHint(m))
	if err := r.domain(m.Record); err != nil {
		return "", fmt.Errorf("rendering %s: %w", m.Address, err)
	}
	return string(r.out), nil
}

func newRenderer(m Machine) (*renderer, error) {
	arch, err := architectureOf(m.Spec)
	if err != nil {
		return nil, fmt.Errorf("rendering %s: %w", m.Address, err)
	}
	return &renderer{
		address: m.Address, name: cmp.Or(m.Name, DomainName(m.Address)), uuid: cmp.Or(m.UUID, uuidOf(m.Address, m.Spec)), spec: m.Spec, host: m.Host, volumes: m.Volumes,
		arch: arch, virtio: arch.virtioModel(m.Spec), topology: topologyOf(m.Spec), memory: memoryOf(m.Spec),
	}, nil
}

// sizeHint is about the size of the document.
func sizeHint(m Machine) int {
	devices := &m.Spec.Domain.Devices
	size := 4096 + 512*(len(devices.Disks)+len(devices.Interfaces))
	if m.Record != nil {
		size += 1024 + len(m.Record.Spec) + 256*len(m.Record.Volumes)
	}
	return size
}

// renderer writes one domain.
type renderer struct {
	xmlWriter
	address schemas.Address
	name    string
	uuid    string
	spec    *kubevirtv1.VirtualMachineInstanceSpec
	host    Host
	volumes []Volume

	arch     architecture
	virtio   string // the model of virtio devices
	topology topology
	memory   uint64 // bytes
	threads  ioThreads
	aliases  []string
	// overrides are properties of QEMU's devices that libvirt has no element for; arguments those of its command line.
	overrides []override
	arguments []string
}

// override is a property of one device in QEMU.
type override struct{ alias, property, value string }

const qemuNamespace = "http://libvirt.org/schemas/domain/qemu/1.0"

func (r *renderer) domain(record *Record) error {
	if err := r.check(); err != nil {
		return err
	}
	namespace := ""
	if r.needsQEMU() {
		namespace = qemuNamespace
	}
	r.start("domain", "type", r.host.DomainType, "xmlns:qemu", namespace)
	r.text("name", r.name)
	r.text("uuid", r.uuid)
	if record != nil {
		r.start("metadata")
		if err := record.write(&r.xmlWriter, MetadataPrefix+":vm", MetadataURI); err != nil {
			return err
		}
		r.end("metadata")
	}
	r.memories()
	if err := r.cpus(); err != nil {
		return err
	}
	r.sysinfo()
	if err := r.os(); err != nil {
		return err
	}
	r.features()
	r.cpu()
	r.clock()
	r.events()
	if err := r.devices(); err != nil {
		return err
	}
	r.launchSecurityElement()
	r.qemu()
	r.end("domain")
	return r.err
}

// maxThreads bounds the vCPUs and the IO threads of a guest; QEMU's machines end at 4096 and below.
const maxThreads = 4096

// check refuses numbers that would make a document of any size.
func (r *renderer) check() error {
	t := r.topology // one that is too large may overflow when it is multiplied
	if count := r.topology.most(); count > maxThreads || max(t.sockets, t.maxSockets, t.cores, t.threads) > maxThreads {
		return fmt.Errorf("cpu: the topology makes more than the %d vCPUs that any machine has", maxThreads)
	}
	r.threads = ioThreadsOf(r.spec)
	if r.threads.count > maxThreads {
		return fmt.Errorf("%d IO threads are more than %d", r.threads.count, maxThreads)
	}
	return nil
}

// events says what happens when the guest reboots.
func (r *renderer) events() {
	if policy := r.spec.Domain.RebootPolicy; policy != nil {
		switch *policy {
		case kubevirtv1.RebootPolicyTerminate:
			r.text("on_reboot", "destroy")
		case kubevirtv1.RebootPolicyReboot:
			r.text("on_reboot", "restart")
		}
	}
}

// needsQEMU reports whether something is passed to QEMU past libvirt.
func (r *renderer) needsQEMU() bool {
	if firmware := r.spec.Domain.Firmware; firmware != nil && firmware.ACPI != nil && firmware.ACPI.MsdmNameRef != "" {
		return true
	}
	for i := range r.spec.Domain.Devices.Disks {
		if _, _, granularity := r.blockSizes(&r.spec.Domain.Devices.Disks[i]); granularity != nil {
			return true
		}
	}
	return false
}

func (r *renderer) qemu() {
	if len(r.arguments) > 0 {
		r.start("qemu:commandline")
		for _, argument := range r.arguments {
			r.leaf("qemu:arg", "value", argument)
		}
		r.end("qemu:commandline")
	}
	if len(r.overrides) == 0 {
		return
	}
	r.start("qemu:override")
	for _, override := range r.overrides {
		r.start("qemu:device", "alias", override.alias)
		r.start("qemu:frontend")
		r.leaf("qemu:property", "name", override.property, "type", "unsigned", "value", override.value)
		r.end("qemu:frontend")
		r.end("qemu:device")
	}
	r.end("qemu:override")
}

// volume finds a volume by name.
func (r *renderer) volume(name string) *Volume {
	for i := range r.volumes {
		if r.volumes[i].Name == name {
			return &r.volumes[i]
		}
	}
	return nil
}

// alias returns the name that a device has in libvirt: KubeVirt's, "ua-" and its name in the manifest. libvirt wants them
// unique, a manifest may call a disk and an interface the same.
func (r *renderer) alias(name string) string {
	alias := "ua-" + name
	for n := 2; slices.Contains(r.aliases, alias); n++ {
		alias = "ua-" + name + "-" + strconv.Itoa(n)
	}
	r.aliases = append(r.aliases, alias)
	return alias
}

func decimal[T uint | uint32 | uint64 | int | int64](n T) string {
	return strconv.FormatUint(uint64(n), 10)
}
