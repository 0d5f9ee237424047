package schemas

import (
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
)

// prefer sets a value that is not there.
func prefer[T any](mine **T, theirs *T) {
	if theirs != nil && *mine == nil {
		value := *theirs
		*mine = &value
	}
}

// preferCopy is prefer for types with references inside.
func preferCopy[T any, P interface {
	*T
	DeepCopy() *T
}](mine *P, theirs P) {
	if theirs != nil && *mine == nil {
		*mine = theirs.DeepCopy()
	}
}

// preferText sets a text that is empty.
func preferText[T ~string](mine *T, theirs T) {
	if *mine == "" {
		*mine = theirs
	}
}

// preference adds what a preference says where the machine says nothing.
func (x *expander) preference(p *instancetypev1.VirtualMachinePreferenceSpec) {
	domain := &x.spec.Domain
	if p.CPU != nil && len(p.CPU.PreferredCPUFeatures) > 0 {
		if domain.CPU == nil {
			domain.CPU = &kubevirtv1.CPU{}
		}
		for _, feature := range p.CPU.PreferredCPUFeatures {
			if !slices.ContainsFunc(domain.CPU.Features, func(f kubevirtv1.CPUFeature) bool { return f.Name == feature.Name }) {
				domain.CPU.Features = append(domain.CPU.Features, feature)
			}
		}
	}
	if p.Devices != nil {
		x.preferDevices(p.Devices)
	}
	if p.Features != nil {
		x.preferFeatures(p.Features)
	}
	if p.Firmware != nil {
		preferFirmware(domain, p.Firmware)
	}
	if p.Machine != nil && p.Machine.PreferredMachineType != "" {
		if domain.Machine == nil {
			domain.Machine = &kubevirtv1.Machine{}
		}
		preferText(&domain.Machine.Type, p.Machine.PreferredMachineType)
	}
	if p.Clock != nil {
		if domain.Clock == nil {
			domain.Clock = &kubevirtv1.Clock{}
		}
		if offset := p.Clock.PreferredClockOffset; offset != nil && domain.Clock.UTC == nil && domain.Clock.Timezone == nil {
			domain.Clock.ClockOffset = *offset.DeepCopy()
		}
		preferCopy(&domain.Clock.Timer, p.Clock.PreferredTimer)
	}
	preferCopy(&domain.LaunchSecurity, p.PreferredLaunchSecurity)
	if p.PreferredSubdomain != nil {
		preferText(&x.spec.Subdomain, *p.PreferredSubdomain)
	}
	if p.PreferredArchitecture != nil {
		preferText(&x.spec.Architecture, *p.PreferredArchitecture)
	}
	prefer(&x.spec.TerminationGracePeriodSeconds, p.PreferredTerminationGracePeriodSeconds)
	x.metadata(p.Annotations, false)
}

// preferDevices adds preferences for devices. The interface and the disks that the machine gets by default are made
// first, so that the preferences hold for them too.
func (x *expander) preferDevices(p *instancetypev1.DevicePreferences) {
	devices := &x.spec.Domain.Devices
	prefer(&devices.AutoattachGraphicsDevice, p.PreferredAutoattachGraphicsDevice)
	prefer(&devices.AutoattachMemBalloon, p.PreferredAutoattachMemBalloon)
	prefer(&devices.AutoattachPodInterface, p.PreferredAutoattachPodInterface)
	prefer(&devices.AutoattachSerialConsole, p.PreferredAutoattachSerialConsole)
	prefer(&devices.AutoattachInputDevice, p.PreferredAutoattachInputDevice)
	defaultNetwork(x.spec)
	defaultDisks(x.spec)
	if attach := devices.AutoattachInputDevice; attach != nil && *attach && len(devices.Inputs) == 0 && (p.PreferredInputBus != "" || p.PreferredInputType != "") {
		devices.Inputs = []kubevirtv1.Input{{Name: "default-0"}} // KubeVirt's name for it
	}
	prefer(&devices.UseVirtioTransitional, p.PreferredUseVirtioTransitional)
	prefer(&devices.BlockMultiQueue, p.PreferredBlockMultiQueue)
	prefer(&devices.NetworkInterfaceMultiQueue, p.PreferredNetworkInterfaceMultiQueue)
	// KubeVirt cannot tell false from nothing here and lets the preference win; the manifest tells.
	if p.PreferredDisableHotplug != nil && !x.wasGiven(x.in("domain", "devices", "disableHotplug")) {
		devices.DisableHotplug = *p.PreferredDisableHotplug
	}
	if devices.Sound != nil {
		preferText(&devices.Sound.Model, p.PreferredSoundModel)
	}
	preferCopy(&devices.Rng, p.PreferredRng)
	preferCopy(&devices.TPM, p.PreferredTPM)
	if p.PreferredVideoType != nil {
		if devices.Video == nil {
			devices.Video = &kubevirtv1.VideoDevice{}
		}
		preferText(&devices.Video.Type, *p.PreferredVideoType)
	}
	for i := range devices.GPUs {
		preferCopy(&devices.GPUs[i].VirtualGPUOptions, p.PreferredVirtualGPUOptions)
	}
	for i := range devices.Inputs {
		preferText(&devices.Inputs[i].Bus, p.PreferredInputBus)
		preferText(&devices.Inputs[i].Type, p.PreferredInputType)
	}
	if p.PreferredPanicDeviceModel != nil {
		if len(devices.PanicDevices) == 0 {
			devices.PanicDevices = make([]kubevirtv1.PanicDevice, 1)
		}
		for i := range devices.PanicDevices {
			prefer(&devices.PanicDevices[i].Model, p.PreferredPanicDeviceModel)
		}
	}
	for i := range devices.Disks {
		preferDisk(&devices.Disks[i], p)
	}
	for i := range devices.Interfaces {
		x.preferInterface(&devices.Interfaces[i], p)
	}
}

func preferDisk(disk *kubevirtv1.Disk, p *instancetypev1.DevicePreferences) {
	if disk.Disk == nil && disk.CDRom == nil && disk.LUN == nil {
		disk.Disk = &kubevirtv1.DiskTarget{}
	}
	switch {
	case disk.Disk != nil:
		preferText(&disk.Disk.Bus, p.PreferredDiskBus)
		preferCopy(&disk.BlockSize, p.PreferredDiskBlockSize)
		preferText(&disk.Cache, p.PreferredDiskCache)
		preferText(&disk.IO, p.PreferredDiskIO)
		if disk.Disk.Bus == kubevirtv1.DiskBusVirtio {
			prefer(&disk.DedicatedIOThread, p.PreferredDiskDedicatedIoThread)
		}
	case disk.CDRom != nil:
		preferText(&disk.CDRom.Bus, p.PreferredCdromBus)
	case disk.LUN != nil:
		preferText(&disk.LUN.Bus, p.PreferredLunBus)
	}
}

func (x *expander) preferInterface(in *kubevirtv1.Interface, p *instancetypev1.DevicePreferences) {
	preferText(&in.Model, p.PreferredInterfaceModel)
	if p.PreferredInterfaceMasquerade == nil || in.Binding != nil || in.InterfaceBindingMethod != (kubevirtv1.InterfaceBindingMethod{}) {
		return
	}
	for i := range x.spec.Networks {
		if network := &x.spec.Networks[i]; network.Name == in.Name && network.Pod != nil {
			in.Masquerade = p.PreferredInterfaceMasquerade.DeepCopy()
		}
	}
}

func (x *expander) preferFeatures(p *instancetypev1.FeaturePreferences) {
	domain := &x.spec.Domain
	if domain.Features == nil {
		domain.Features = &kubevirtv1.Features{}
	}
	features := domain.Features
	if p.PreferredAcpi != nil && !x.wasGiven(x.in("domain", "features", "acpi")) {
		features.ACPI = *p.PreferredAcpi.DeepCopy()
	}
	preferCopy(&features.APIC, p.PreferredApic)
	preferCopy(&features.KVM, p.PreferredKvm)
	preferCopy(&features.Pvspinlock, p.PreferredPvspinlock)
	preferCopy(&features.SMM, p.PreferredSmm)
	passthrough := features.HypervPassthrough != nil && features.HypervPassthrough.Enabled != nil && *features.HypervPassthrough.Enabled
	if p.PreferredHyperv != nil && !passthrough {
		if features.Hyperv == nil {
			features.Hyperv = &kubevirtv1.FeatureHyperv{}
		}
		preferHyperv(features.Hyperv, p.PreferredHyperv)
	}
}

func preferHyperv(mine, theirs *kubevirtv1.FeatureHyperv) {
	preferCopy(&mine.Relaxed, theirs.Relaxed)
	preferCopy(&mine.VAPIC, theirs.VAPIC)
	preferCopy(&mine.Spinlocks, theirs.Spinlocks)
	preferCopy(&mine.VPIndex, theirs.VPIndex)
	preferCopy(&mine.Runtime, theirs.Runtime)
	preferCopy(&mine.SyNIC, theirs.SyNIC)
	preferCopy(&mine.SyNICTimer, theirs.SyNICTimer)
	preferCopy(&mine.Reset, theirs.Reset)
	preferCopy(&mine.VendorID, theirs.VendorID)
	preferCopy(&mine.Frequencies, theirs.Frequencies)
	preferCopy(&mine.Reenlightenment, theirs.Reenlightenment)
	preferCopy(&mine.TLBFlush, theirs.TLBFlush)
	preferCopy(&mine.IPI, theirs.IPI)
	preferCopy(&mine.EVMCS, theirs.EVMCS)
}

func preferFirmware(domain *kubevirtv1.DomainSpec, p *instancetypev1.FirmwarePreferences) {
	on := func(flag *bool) bool { return flag != nil && *flag }
	var loader kubevirtv1.Bootloader
	if domain.Firmware != nil && domain.Firmware.Bootloader != nil {
		loader = *domain.Firmware.Bootloader
	}
	whole := false
	switch {
	case loader.BIOS != nil || loader.EFI != nil:
	case on(p.PreferredUseBios):
		loader.BIOS = &kubevirtv1.BIOS{}
	case p.PreferredEfi != nil:
		loader.EFI, whole = p.PreferredEfi.DeepCopy(), true
	case on(p.DeprecatedPreferredUseEfi):
		loader.EFI = &kubevirtv1.EFI{}
	}
	if loader.BIOS != nil {
		prefer(&loader.BIOS.UseSerial, p.PreferredUseBiosSerial)
	}
	if loader.EFI != nil && !whole {
		prefer(&loader.EFI.SecureBoot, p.DeprecatedPreferredUseSecureBoot)
	}
	if loader.BIOS == nil && loader.EFI == nil {
		return
	}
	if domain.Firmware == nil {
		domain.Firmware = &kubevirtv1.Firmware{}
	}
	domain.Firmware.Bootloader = &loader
}
