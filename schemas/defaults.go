package schemas

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// applyDefaults fills in what KubeVirt fills in when a machine starts (pkg/defaults in kubevirt/kubevirt), without
// what depends on a cluster's configuration and without anything random: a firmware UUID or a MAC address that the
// manifest does not name stays empty, see FirmwareUUID and MACAddress. It may be applied twice.
func applyDefaults(vm *kubevirtv1.VirtualMachine) {
	spec := &vm.Spec.Template.Spec
	if spec.Architecture == "" {
		spec.Architecture = archAMD64
	}
	defaultMachineType(spec)
	defaultCPURequest(&spec.Domain.Resources)
	defaultGuestMemory(&spec.Domain)
	defaultTopology(&spec.Domain)
	defaultPullPolicies(spec)
	defaultNetwork(spec)
	defaultDisks(spec)
	if spec.Domain.Features == nil {
		spec.Domain.Features = &kubevirtv1.Features{}
	}
	defaultInputs(spec)
	defaultForeign(spec)
	// KubeVirt's own defaulting would invent a random UUID here.
	firmware := spec.Domain.Firmware
	spec.Domain.Firmware = nil
	kubevirtv1.SetObjectDefaults_VirtualMachine(vm)
	spec.Domain.Firmware = firmware
	if firmware == nil {
		spec.Domain.Firmware = &kubevirtv1.Firmware{}
	}
	defaultHyperv(&spec.Domain)
	defaultBuses(spec)
	defaultWatchdog(spec)
}

// defaultMachineType takes the board that KubeVirt takes on each architecture.
func defaultMachineType(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	if spec.Domain.Machine == nil {
		spec.Domain.Machine = &kubevirtv1.Machine{}
	}
	if spec.Domain.Machine.Type == "" {
		spec.Domain.Machine.Type, _ = machineTypes(spec.Architecture)
	}
}

func defaultInputs(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	bus := kubevirtv1.InputBusUSB
	if spec.Architecture == archS390X { // which has no USB
		bus = kubevirtv1.InputBusVirtio
	}
	for i := range spec.Domain.Devices.Inputs {
		input := &spec.Domain.Devices.Inputs[i]
		if input.Bus == "" {
			input.Bus = bus
		}
		if input.Type == "" {
			input.Type = kubevirtv1.InputTypeTablet
		}
	}
}

// defaultForeign is what other architectures have in place of amd64's defaults.
func defaultForeign(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	switch spec.Architecture {
	case archARM64:
		if spec.Domain.CPU.Model == "" {
			spec.Domain.CPU.Model = kubevirtv1.CPUModeHostPassthrough
		}
		if spec.Domain.Firmware == nil {
			spec.Domain.Firmware = &kubevirtv1.Firmware{}
		}
		if spec.Domain.Firmware.Bootloader == nil {
			spec.Domain.Firmware.Bootloader = &kubevirtv1.Bootloader{EFI: &kubevirtv1.EFI{SecureBoot: new(bool)}}
		}
	case archS390X:
		if spec.Domain.Features.ACPI.Enabled == nil {
			spec.Domain.Features.ACPI.Enabled = new(bool)
		}
	}
}

// defaultWatchdog gives a watchdog the model of its architecture and has it reset the machine.
func defaultWatchdog(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	watchdog := spec.Domain.Devices.Watchdog
	if watchdog == nil {
		return
	}
	if watchdog.I6300ESB == nil && watchdog.Diag288 == nil {
		if spec.Architecture == archS390X {
			watchdog.Diag288 = &kubevirtv1.Diag288Watchdog{}
		} else {
			watchdog.I6300ESB = &kubevirtv1.I6300ESBWatchdog{}
		}
	}
	if watchdog.I6300ESB != nil && watchdog.I6300ESB.Action == "" {
		watchdog.I6300ESB.Action = kubevirtv1.WatchdogActionReset
	}
	if watchdog.Diag288 != nil && watchdog.Diag288.Action == "" {
		watchdog.Diag288.Action = kubevirtv1.WatchdogActionReset
	}
}

func defaultCPURequest(resources *kubevirtv1.ResourceRequirements) {
	limit, limited := resources.Limits[corev1.ResourceCPU]
	if !limited || limit.IsZero() {
		return
	}
	if request := resources.Requests[corev1.ResourceCPU]; !request.IsZero() {
		return
	}
	if resources.Requests == nil {
		resources.Requests = corev1.ResourceList{}
	}
	resources.Requests[corev1.ResourceCPU] = limit
}

// defaultGuestMemory takes the guest's memory from the requests or else the limits; a guest on huge pages of which
// nobody says more has one page.
func defaultGuestMemory(domain *kubevirtv1.DomainSpec) {
	if domain.Memory == nil {
		domain.Memory = &kubevirtv1.Memory{}
	}
	if domain.Memory.Guest != nil {
		return
	}
	var found resource.Quantity
	for _, list := range []corev1.ResourceList{domain.Resources.Requests, domain.Resources.Limits} {
		if quantity := list[corev1.ResourceMemory]; !quantity.IsZero() {
			found = quantity.DeepCopy()
			domain.Memory.Guest = &found
			return
		}
	}
	if pages := domain.Memory.Hugepages; pages != nil {
		if size, err := resource.ParseQuantity(pages.PageSize); err == nil && size.Sign() > 0 {
			domain.Memory.Guest = &size
		}
	}
}

// defaultTopology makes one socket per requested CPU when the manifest gives no topology, and completes a partial one.
func defaultTopology(domain *kubevirtv1.DomainSpec) {
	if domain.CPU == nil {
		domain.CPU = &kubevirtv1.CPU{}
	}
	cpu := domain.CPU
	if cpu.Cores == 0 && cpu.Sockets == 0 && cpu.Threads == 0 {
		for _, list := range []corev1.ResourceList{domain.Resources.Limits, domain.Resources.Requests} {
			if quantity, ok := list[corev1.ResourceCPU]; ok {
				if n := quantity.Value(); n > 0 && n <= maxCPUs {
					cpu.Sockets = uint32(n)
				}
				break
			}
		}
	}
	cpu.Cores, cpu.Sockets, cpu.Threads = max(cpu.Cores, 1), max(cpu.Sockets, 1), max(cpu.Threads, 1)
}

func defaultPullPolicies(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	for i := range spec.Volumes {
		disk := spec.Volumes[i].ContainerDisk
		if disk == nil || disk.ImagePullPolicy != "" {
			continue
		}
		disk.ImagePullPolicy = corev1.PullIfNotPresent
		if strings.HasSuffix(disk.Image, ":latest") || !strings.ContainsAny(disk.Image, ":@") {
			disk.ImagePullPolicy = corev1.PullAlways
		}
	}
}

func defaultNetwork(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	if devices.AutoattachPodInterface != nil && !*devices.AutoattachPodInterface {
		return
	}
	if len(devices.Interfaces) > 0 || len(spec.Networks) > 0 {
		return
	}
	devices.Interfaces = []kubevirtv1.Interface{*kubevirtv1.DefaultMasqueradeNetworkInterface()}
	spec.Networks = []kubevirtv1.Network{*kubevirtv1.DefaultPodNetwork()}
}

// defaultDisks gives every volume that no disk shows to the guest a disk of its own.
func defaultDisks(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	devices := &spec.Domain.Devices
	shown := func(name string) bool {
		for i := range devices.Disks {
			if devices.Disks[i].Name == name {
				return true
			}
		}
		for i := range devices.Filesystems {
			if devices.Filesystems[i].Name == name {
				return true
			}
		}
		return false
	}
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		if volume.MemoryDump == nil && volume.Name != "" && !shown(volume.Name) {
			devices.Disks = append(devices.Disks, kubevirtv1.Disk{
				Name: volume.Name, DiskDevice: kubevirtv1.DiskDevice{Disk: &kubevirtv1.DiskTarget{}},
			})
		}
	}
}

// defaultBuses attaches disks the way every guest understands: SATA on x86, virtio elsewhere. What such a bus cannot
// carry goes elsewhere: SCSI commands and CD-ROMs without SATA to a SCSI bus, downward metrics to virtio.
func defaultBuses(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	bus, trays := kubevirtv1.DiskBusSATA, kubevirtv1.DiskBusSATA
	if spec.Architecture == archARM64 || spec.Architecture == archS390X {
		bus, trays = kubevirtv1.DiskBusVirtio, kubevirtv1.DiskBusSCSI
	}
	for i := range spec.Domain.Devices.Disks {
		disk := &spec.Domain.Devices.Disks[i]
		if disk.Disk != nil && disk.Disk.Bus == "" {
			disk.Disk.Bus = bus
			if volume := volumeNamed(spec, disk.Name); volume != nil && volume.DownwardMetrics != nil {
				disk.Disk.Bus = kubevirtv1.DiskBusVirtio
			}
		}
		if disk.LUN != nil && disk.LUN.Bus == "" {
			disk.LUN.Bus = kubevirtv1.DiskBusSCSI
		}
		if disk.CDRom != nil && disk.CDRom.Bus == "" {
			disk.CDRom.Bus = trays
		}
	}
}

// defaultHyperv switches on what other enlightenments need, unless the manifest switched it off.
func defaultHyperv(domain *kubevirtv1.DomainSpec) {
	hyperv := domain.Features.Hyperv
	if hyperv == nil {
		return
	}
	on := func(enabled *bool) bool { return enabled != nil && *enabled }
	need := func(state **kubevirtv1.FeatureState) {
		if *state == nil {
			*state = &kubevirtv1.FeatureState{}
		}
		if (*state).Enabled == nil {
			enabled := true
			(*state).Enabled = &enabled
		}
	}
	if hyperv.EVMCS != nil && on(hyperv.EVMCS.Enabled) {
		need(&hyperv.VAPIC)
		addCPUFeature(domain.CPU, "vmx", "require")
	}
	if hyperv.SyNICTimer != nil && on(hyperv.SyNICTimer.Enabled) {
		need(&hyperv.SyNIC)
	}
	if hyperv.IPI != nil && on(hyperv.IPI.Enabled) || hyperv.TLBFlush != nil && on(hyperv.TLBFlush.Enabled) ||
		hyperv.SyNIC != nil && on(hyperv.SyNIC.Enabled) {
		need(&hyperv.VPIndex)
	}
}

func addCPUFeature(cpu *kubevirtv1.CPU, name, policy string) {
	for i := range cpu.Features {
		if cpu.Features[i].Name == name {
			cpu.Features[i].Policy = policy
			return
		}
	}
	cpu.Features = append(cpu.Features, kubevirtv1.CPUFeature{Name: name, Policy: policy})
}
