package schemas

import (
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// The architectures of machines, as KubeVirt says them.
const (
	archAMD64 = "amd64"
	archARM64 = "arm64"
	archS390X = "s390x"
)

// isForeign tells the architectures that are not x86; one that nobody knows counts as x86, and is told once.
func isForeign(architecture string) bool {
	return architecture == archARM64 || architecture == archS390X
}

// checkArchitecture checks what machines other than amd64 do not have. Watchdogs, panic devices, machine types, disk
// buses and huge pages are checked where they are, for all architectures.
func (c *checker) checkArchitecture(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	c.checkForeignFeatures(spec)
	loader := spec.Domain.Firmware.Bootloader
	switch {
	case loader == nil:
	case loader.BIOS != nil && (spec.Architecture == archARM64 || isTrueOr(loader.BIOS.UseSerial, false)):
		c.fail(c.in("domain", "firmware", "bootloader", "bios"), "there is no BIOS on "+spec.Architecture, "remove it")
	case loader.EFI != nil && spec.Architecture == archS390X:
		c.fail(c.in("domain", "firmware", "bootloader", "efi"), "there is no UEFI on s390x", "remove it")
	case secureBoot(spec.Domain.Firmware):
		c.fail(c.in("domain", "firmware", "bootloader", "efi"), "there is no secure boot, which is on by default, on arm64", "write secureBoot: false")
	}
	devices := &spec.Domain.Devices
	if spec.Architecture == archARM64 {
		if model := spec.Domain.CPU.Model; model != "" && model != kubevirtv1.CPUModeHostPassthrough {
			c.fail(c.in("domain", "cpu", "model"), "host-passthrough is the only CPU model on arm64", "leave it out")
		}
		if cpu := spec.Domain.CPU; cpu.DedicatedCPUPlacement && cpu.Threads > 1 {
			c.fail(c.in("domain", "cpu", "threads"), "the host's cores have one thread on arm64", "write 1, or leave it out")
		}
	} else {
		c.checkMainframe(devices)
	}
	if devices.Sound != nil {
		c.fail(c.in("domain", "devices", "sound"), "there is no sound device on "+spec.Architecture, "remove it")
	}
	if video := devices.Video; video != nil {
		path := func() []any { return c.in("domain", "devices", "video", "type") }
		if spec.Architecture == archARM64 {
			oneOf(c, path, video.Type, "virtio", "ramfb")
		} else {
			oneOf(c, path, video.Type, "virtio")
		}
	}
}

// checkForeignFeatures checks the features of x86 processors and boards.
func (c *checker) checkForeignFeatures(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	features, mainframe := spec.Domain.Features, spec.Architecture == archS390X
	for _, feature := range []struct {
		name string
		set  bool
	}{
		{"hyperv", mainframe && features.Hyperv != nil},
		{"hypervPassthrough", mainframe && features.HypervPassthrough != nil && isTrueOr(features.HypervPassthrough.Enabled, true)},
		{"smm", enabled(features.SMM)},
		{"pvspinlock", enabled(features.Pvspinlock)},
		{"apic", features.APIC != nil && isTrueOr(features.APIC.Enabled, true)},
		{"acpi", mainframe && isTrueOr(features.ACPI.Enabled, false)},
	} {
		if feature.set {
			c.fail(c.in("domain", "features", feature.name), fmt.Sprintf("there is no %s on %s", feature.name, spec.Architecture), "remove it")
		}
	}
	if clock := spec.Domain.Clock; clock != nil && clock.Timer != nil {
		for _, timer := range []struct {
			name string
			set  bool
		}{
			{"hpet", clock.Timer.HPET != nil && isTrueOr(clock.Timer.HPET.Enabled, true)},
			{"pit", clock.Timer.PIT != nil && isTrueOr(clock.Timer.PIT.Enabled, true)},
			{"kvm", clock.Timer.KVM != nil && isTrueOr(clock.Timer.KVM.Enabled, true)},
			{"hyperv", clock.Timer.Hyperv != nil && isTrueOr(clock.Timer.Hyperv.Enabled, true)},
		} {
			if timer.set {
				c.fail(c.in("domain", "clock", "timer", timer.name), fmt.Sprintf("there is no such timer on %s", spec.Architecture), "remove it")
			}
		}
	}
	if spec.Domain.Firmware.ACPI != nil {
		c.fail(c.in("domain", "firmware", "acpi"), "Windows looks for these tables on amd64 only", "remove it")
	}
}

// checkMainframe checks devices that need PCI or USB, which an s390x machine does not have.
func (c *checker) checkMainframe(devices *kubevirtv1.Devices) {
	for i := range devices.Inputs {
		if devices.Inputs[i].Bus == kubevirtv1.InputBusUSB {
			c.fail(c.in("domain", "devices", "inputs", i, "bus"), "there is no USB on s390x", "use virtio")
		}
	}
	if devices.ClientPassthrough != nil {
		c.fail(c.in("domain", "devices", "clientPassthrough"), "there is no USB on s390x", "remove it")
	}
	if devices.TPM != nil && isTrueOr(devices.TPM.Enabled, true) {
		c.fail(c.in("domain", "devices", "tpm"), "there is no TPM on s390x", "remove it")
	}
	for i := range devices.Disks {
		if disk := devices.Disks[i].Disk; disk != nil && disk.PciAddress != "" {
			c.fail(c.in("domain", "devices", "disks", i, "disk", "pciAddress"), "devices of s390x are not on a PCI bus", "remove it")
		}
	}
	for i := range devices.Interfaces {
		iface := &devices.Interfaces[i]
		if iface.PciAddress != "" {
			c.fail(c.in("domain", "devices", "interfaces", i, "pciAddress"), "devices of s390x are not on a PCI bus", "remove it")
		}
		if iface.Model != "" && iface.Model != kubevirtv1.VirtIO {
			c.fail(c.in("domain", "devices", "interfaces", i, "model"), "virtio is the only model on s390x", "use virtio")
		}
	}
}
