// Package domainxml turns a VM into libvirt's domain XML and back into facts: it renders the hardware that KubeVirt
// would give the same manifest, keeps gitvirt's record in the domain's metadata, and tells how a domain differs from
// what was rendered. It is pure: no libvirt, no files, no network. Driving libvirt is package hypervisor's work, making
// disks is package disks'.
package domainxml

import (
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"

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
	// Path is the disk image or block device, the folder of a shared file system, or the kernel of kernelBoot.
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
	// Initrd belongs to kernelBoot.
	Initrd string
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

// Render returns the domain of a VM. volumes has one entry for each volume of the manifest.
func Render(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec, host Host, volumes []Volume) (*libvirtxml.Domain, error) {
	r := renderer{address: address, spec: spec, host: host, volumes: make(map[string]Volume, len(volumes))}
	for _, volume := range volumes {
		r.volumes[volume.Name] = volume
	}
	domain := &libvirtxml.Domain{
		Type:     host.DomainType,
		Name:     DomainName(address),
		UUID:     r.uuid(),
		Features: r.features(),
		CPU:      r.cpu(),
		Clock:    r.clock(),
		VCPU:     &libvirtxml.DomainVCPU{Placement: "static", Value: r.vcpus()},
		Memory:   &libvirtxml.DomainMemory{Value: r.memory(), Unit: "b"},
	}
	var err error
	if domain.OS, err = r.os(); err != nil {
		return nil, err
	}
	domain.SysInfo = r.sysinfo()
	if domain.Devices, err = r.devices(); err != nil {
		return nil, err
	}
	if r.needsIOThread() {
		domain.IOThreads = 1
	}
	return domain, nil
}

// Marshal returns the domain's XML with the record in its metadata.
func Marshal(domain *libvirtxml.Domain, record *Record) (string, error) {
	if record != nil {
		metadata, err := record.XML()
		if err != nil {
			return "", err
		}
		domain.Metadata = &libvirtxml.DomainMetadata{XML: metadata}
	}
	out, err := domain.Marshal()
	if err != nil {
		return "", fmt.Errorf("writing domain XML of %s: %w", domain.Name, err)
	}
	return out, nil
}

type renderer struct {
	address schemas.Address
	spec    *kubevirtv1.VirtualMachineInstanceSpec
	host    Host
	volumes map[string]Volume
}

func (r *renderer) uuid() string {
	if firmware := r.spec.Domain.Firmware; firmware != nil && firmware.UUID != "" {
		return strings.ToLower(string(firmware.UUID))
	}
	return schemas.FirmwareUUID(r.address)
}

// topology returns sockets, cores and threads. A VM without a CPU topology gets its vCPUs as sockets from the CPU
// limit or request, as KubeVirt does; one vCPU without either.
func (r *renderer) topology() (sockets, cores, threads uint32) {
	sockets, cores, threads = 1, 1, 1
	if cpu := r.spec.Domain.CPU; cpu != nil && (cpu.Sockets != 0 || cpu.Cores != 0 || cpu.Threads != 0) {
		return max(cpu.Sockets, 1), max(cpu.Cores, 1), max(cpu.Threads, 1)
	}
	resources := r.spec.Domain.Resources
	if limit := resources.Limits.Cpu(); !limit.IsZero() {
		return uint32(limit.Value()), 1, 1 //nolint:gosec // validated: a few thousand at most
	}
	if request := resources.Requests.Cpu(); !request.IsZero() {
		return uint32(request.Value()), 1, 1 //nolint:gosec // validated: a few thousand at most
	}
	return sockets, cores, threads
}

func (r *renderer) vcpus() uint {
	sockets, cores, threads := r.topology()
	return uint(sockets) * uint(cores) * uint(threads)
}

// memory returns the guest's memory in bytes: memory.guest, or the request, or the limit.
func (r *renderer) memory() uint {
	if memory := r.spec.Domain.Memory; memory != nil && memory.Guest != nil {
		return uint(memory.Guest.Value()) //nolint:gosec // validated: positive
	}
	if request := r.spec.Domain.Resources.Requests.Memory(); !request.IsZero() {
		return uint(request.Value()) //nolint:gosec // validated: positive
	}
	return uint(r.spec.Domain.Resources.Limits.Memory().Value()) //nolint:gosec // validated: positive
}

func (r *renderer) cpu() *libvirtxml.DomainCPU {
	sockets, cores, threads := r.topology()
	out := &libvirtxml.DomainCPU{
		Mode:     "host-model",
		Topology: &libvirtxml.DomainCPUTopology{Sockets: int(sockets), Cores: int(cores), Threads: int(threads)},
	}
	cpu := r.spec.Domain.CPU
	if cpu == nil {
		return out
	}
	switch cpu.Model {
	case "", kubevirtv1.CPUModeHostModel:
	case kubevirtv1.CPUModeHostPassthrough:
		out.Mode = kubevirtv1.CPUModeHostPassthrough
	default:
		out.Mode = "custom"
		out.Model = &libvirtxml.DomainCPUModel{Value: cpu.Model}
	}
	for _, feature := range cpu.Features {
		policy := feature.Policy
		if policy == "" {
			policy = "require"
		}
		out.Features = append(out.Features, libvirtxml.DomainCPUFeature{Name: feature.Name, Policy: policy})
	}
	return out
}

func (r *renderer) os() (*libvirtxml.DomainOS, error) {
	machine := "q35"
	if r.spec.Domain.Machine != nil && r.spec.Domain.Machine.Type != "" {
		machine = r.spec.Domain.Machine.Type
	}
	out := &libvirtxml.DomainOS{
		Type:   &libvirtxml.DomainOSType{Arch: "x86_64", Machine: machine, Type: "hvm"},
		SMBios: &libvirtxml.DomainSMBios{Mode: "sysinfo"},
	}
	firmware := r.spec.Domain.Firmware
	if firmware == nil {
		return out, nil
	}
	if firmware.Bootloader != nil && firmware.Bootloader.EFI != nil {
		r.efi(out, firmware.Bootloader.EFI)
	}
	if bootloader := firmware.Bootloader; bootloader != nil && bootloader.BIOS != nil && bootloader.BIOS.UseSerial != nil && *bootloader.BIOS.UseSerial {
		out.BIOS = &libvirtxml.DomainBIOS{UseSerial: "yes"}
	}
	if boot := firmware.KernelBoot; boot != nil {
		out.Cmdline = boot.KernelArgs
		if boot.Container != nil {
			files, ok := r.volumes[KernelBootVolume]
			if !ok {
				return nil, fmt.Errorf("rendering %s: the files of kernelBoot are not there", r.address)
			}
			out.Kernel, out.Initrd = files.Path, files.Initrd
		}
	}
	return out, nil
}

// efi uses the firmware builds of Debian's package ovmf; libvirt copies the variables' template on the first start.
func (r *renderer) efi(out *libvirtxml.DomainOS, efi *kubevirtv1.EFI) {
	code, variables, secure := "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd", "no"
	if efi.SecureBoot == nil || *efi.SecureBoot {
		code, variables, secure = "/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd", "yes"
	}
	out.Loader = &libvirtxml.DomainLoader{Path: code, Readonly: "yes", Secure: secure, Type: "pflash"}
	out.NVRam = &libvirtxml.DomainNVRam{Template: variables, NVRam: r.host.NVRAM}
}

func (r *renderer) sysinfo() []libvirtxml.DomainSysInfo {
	system := []libvirtxml.DomainSysInfoEntry{
		{Name: "manufacturer", Value: "gitvirt"},
		{Name: "product", Value: "VirtualMachine"},
		{Name: "uuid", Value: r.uuid()},
	}
	if firmware := r.spec.Domain.Firmware; firmware != nil && firmware.Serial != "" {
		system = append(system, libvirtxml.DomainSysInfoEntry{Name: "serial", Value: firmware.Serial})
	}
	smbios := &libvirtxml.DomainSysInfoSMBIOS{System: &libvirtxml.DomainSysInfoSystem{Entry: system}}
	if chassis := r.spec.Domain.Chassis; chassis != nil {
		var entries []libvirtxml.DomainSysInfoEntry
		for _, entry := range []libvirtxml.DomainSysInfoEntry{
			{Name: "manufacturer", Value: chassis.Manufacturer},
			{Name: "version", Value: chassis.Version},
			{Name: "serial", Value: chassis.Serial},
			{Name: "asset", Value: chassis.Asset},
			{Name: "sku", Value: chassis.Sku},
		} {
			if entry.Value != "" {
				entries = append(entries, entry)
			}
		}
		if len(entries) > 0 {
			smbios.Chassis = &libvirtxml.DomainSysInfoChassis{Entry: entries}
		}
	}
	return []libvirtxml.DomainSysInfo{{SMBIOS: smbios}}
}
