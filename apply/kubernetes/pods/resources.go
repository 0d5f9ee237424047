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
	// overheadDevice is what a device of the host that is handed over maps.
	overheadDevice = 1024 * mebi
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
	if len(domain.Devices.HostDevices)+len(domain.Devices.GPUs) > 0 {
		bytes += overheadDevice
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
	devices := map[string]int64{}
	for i := range spec.Domain.Devices.GPUs {
		devices[spec.Domain.Devices.GPUs[i].DeviceName]++
	}
	for i := range spec.Domain.Devices.HostDevices {
		devices[spec.Domain.Devices.HostDevices[i].DeviceName]++
	}
	for name, count := range devices {
		both(corev1.ResourceName(name), *resource.NewQuantity(count, resource.DecimalSI))
	}
	return out
}

// cpus asks for CPUs: whole ones of its own for a guest with dedicated CPUs, else a share.
func cpus(out *corev1.ResourceRequirements, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	count, _ := domainxml.GuestCPUs(spec)
	if cpu := spec.Domain.CPU; cpu != nil && cpu.DedicatedCPUPlacement {
		if cpu.IsolateEmulatorThread {
			count++
		}
		whole := *resource.NewQuantity(int64(count), resource.DecimalSI)
		out.Requests[corev1.ResourceCPU], out.Limits[corev1.ResourceCPU] = whole, whole
		return
	}
	if _, asked := out.Requests[corev1.ResourceCPU]; !asked {
		out.Requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(count)*cpuShare, resource.DecimalSI)
	}
}

// memory asks for the guest's memory and the overhead. With huge pages the guest's memory is in them, and only the overhead is not.
func memory(out *corev1.ResourceRequirements, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	size := func(bytes uint64) resource.Quantity {
		return *resource.NewQuantity(int64(bytes), resource.BinarySI) //nolint:gosec // the checks of manifests bound memory
	}
	guest, overhead := domainxml.GuestMemory(spec), size(Overhead(spec))
	if memory := spec.Domain.Memory; memory != nil && memory.Hugepages != nil {
		pages := corev1.ResourceName(corev1.ResourceHugePagesPrefix + memory.Hugepages.PageSize)
		out.Requests[pages], out.Limits[pages] = size(guest), size(guest)
		out.Requests[corev1.ResourceMemory], out.Limits[corev1.ResourceMemory] = overhead, overhead
		return
	}
	request, asked := out.Requests[corev1.ResourceMemory]
	if !asked {
		request = size(guest)
	}
	if !spec.Domain.Resources.OvercommitGuestOverhead {
		request.Add(overhead)
	}
	out.Requests[corev1.ResourceMemory] = request
	limit, limited := out.Limits[corev1.ResourceMemory]
	if dedicated := spec.Domain.CPU != nil && spec.Domain.CPU.DedicatedCPUPlacement; limited || dedicated {
		if !limited {
			limit = size(guest)
		}
		limit.Add(overhead)
		out.Limits[corev1.ResourceMemory] = limit
		if dedicated { // only a Pod with equal requests and limits gets CPUs of its own
			out.Requests[corev1.ResourceMemory] = limit
		}
	}
}
