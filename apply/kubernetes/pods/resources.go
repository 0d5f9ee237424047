package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// Devices of nodes that the node agent offers as resources.
const (
	ResourceKVM   corev1.ResourceName = "devices.gitvirt.io/kvm"
	ResourceTun   corev1.ResourceName = "devices.gitvirt.io/tun"
	ResourceVhost corev1.ResourceName = "devices.gitvirt.io/vhost-net"
)

// The parts of the overhead, in bytes: what a Pod takes beside the guest's memory. docs/kubernetes.md tells them.
const (
	mebi = 1 << 20
	// overheadLauncher is the launcher with its libvirt daemon.
	overheadLauncher = 64 * mebi
	// overheadQEMU is QEMU itself: code, heap, and the devices that every guest has.
	overheadQEMU = 96 * mebi
	// overheadCPU is a vCPU: its thread, and its share of translated or cached state.
	overheadCPU = 8 * mebi
	// overheadIOThread is an I/O thread.
	overheadIOThread = 8 * mebi
	// overheadScreen is the memory of a graphics card, and what is drawn into.
	overheadScreen = 32 * mebi
	// overheadTPM is an emulated TPM, which is a process of its own.
	overheadTPM = 53 * mebi
	// overheadFirmware is UEFI firmware and its variables.
	overheadFirmware = 16 * mebi
	// tableShare is how many bytes of a guest's memory have one byte of page tables.
	tableShare = 512
)

// cpuShare is how much of a CPU a vCPU asks for when nobody says how much: as with KubeVirt, ten share one.
const cpuShare = 100

// Overhead is how much memory a Pod takes beside the memory of its guest, in bytes.
func Overhead(spec *kubevirtv1.VirtualMachineInstanceSpec) uint64 {
	cpus, _ := domainxml.GuestCPUs(spec)
	domain := &spec.Domain
	bytes := uint64(overheadLauncher+overheadQEMU) + domainxml.GuestMemory(spec)/tableShare + uint64(cpus)*overheadCPU //nolint:gosec // a guest has hundreds
	threads := 0
	for i := range domain.Devices.Disks {
		if own := domain.Devices.Disks[i].DedicatedIOThread; own != nil && *own {
			threads++
		}
	}
	if pool := domain.IOThreads; pool != nil && pool.SupplementalPoolThreadCount != nil {
		threads += int(*pool.SupplementalPoolThreadCount)
	}
	if domain.IOThreadsPolicy != nil && threads == 0 {
		threads = 1
	}
	bytes += uint64(threads) * overheadIOThread
	if screen := domain.Devices.AutoattachGraphicsDevice; screen == nil || *screen {
		bytes += overheadScreen
	}
	if tpm := domain.Devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) {
		bytes += overheadTPM
	}
	if firmware := domain.Firmware; firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil {
		bytes += overheadFirmware
	}
	if memory := domain.Memory; memory != nil && memory.ReservedOverhead != nil && memory.ReservedOverhead.AddedOverhead != nil {
		bytes += uint64(max(memory.ReservedOverhead.AddedOverhead.Value(), 0))
	}
	return bytes
}

// resources is what the Pod asks its node for.
func resources(spec *kubevirtv1.VirtualMachineInstanceSpec, emulation bool) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	both := func(name corev1.ResourceName, amount resource.Quantity) {
		out.Requests[name], out.Limits[name] = amount, amount
	}
	for name, amount := range spec.Domain.Resources.Limits {
		out.Limits[name] = amount
	}
	for name, amount := range spec.Domain.Resources.Requests {
		out.Requests[name] = amount
	}
	cpus(&out, spec)
	memory(&out, spec)
	if !emulation {
		both(ResourceKVM, *resource.NewQuantity(1, resource.DecimalSI))
	}
	if len(spec.Domain.Devices.Interfaces) > 0 {
		both(ResourceTun, *resource.NewQuantity(1, resource.DecimalSI))
		if !emulation {
			both(ResourceVhost, *resource.NewQuantity(1, resource.DecimalSI))
		}
	}
	return out
}

// cpus asks for a share of CPUs.
func cpus(out *corev1.ResourceRequirements, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	count, _ := domainxml.GuestCPUs(spec)
	if _, asked := out.Requests[corev1.ResourceCPU]; !asked {
		out.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(count)*cpuShare, resource.DecimalSI)
	}
}

// memory asks for the guest's memory and the overhead.
func memory(out *corev1.ResourceRequirements, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	size := func(bytes uint64) resource.Quantity {
		return *resource.NewQuantity(int64(bytes), resource.BinarySI) //nolint:gosec // the checks of manifests bound memory
	}
	guest, overhead := domainxml.GuestMemory(spec), size(Overhead(spec))
	request, asked := out.Requests[corev1.ResourceMemory]
	if !asked {
		request = size(guest)
	}
	if !spec.Domain.Resources.OvercommitGuestOverhead {
		request.Add(overhead)
	}
	out.Requests[corev1.ResourceMemory] = request
	if limit, limited := out.Limits[corev1.ResourceMemory]; limited {
		limit.Add(overhead)
		out.Limits[corev1.ResourceMemory] = limit
	}
}
