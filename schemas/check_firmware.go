package schemas

import (
	"encoding/base64"
	"fmt"
	"strings"
	"unicode"

	"github.com/google/uuid"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkFirmware(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	firmware := spec.Domain.Firmware
	in := func(parts ...any) []any { return c.in(append(at("domain", "firmware"), parts...)...) }
	if id := string(firmware.UUID); id != "" {
		if parsed, err := uuid.Parse(id); err != nil || len(id) != 36 {
			c.fail(in("uuid"), quoteValue(id)+" is not a UUID", "write it as 5d307ca9-b3ef-428c-8861-06e72d69f223, or leave it out")
		} else if parsed == uuid.Nil {
			c.fail(in("uuid"), "the UUID is all zeros", "leave it out, gitvirt derives one")
		} else {
			c.hold(holdsUUID, parsed.String(), in("uuid"), false)
		}
	}
	if strings.ContainsFunc(firmware.Serial, unicode.IsControl) {
		c.fail(in("serial"), "holds a control character", "write it on one line")
	}
	if loader := firmware.Bootloader; loader != nil && loader.BIOS != nil && loader.EFI != nil {
		c.fail(in("bootloader"), "bios and efi exclude each other", "keep one")
	} else if secureBoot(firmware) && !isForeign(spec.Architecture) && !enabled(spec.Domain.Features.SMM) {
		c.fail(in("bootloader", "efi"), "secure boot, which is on by default, needs the feature smm",
			"add features.smm: {} to domain, or write secureBoot: false")
	}
	c.checkKernelBoot(firmware.KernelBoot)
	if firmware.ACPI != nil {
		c.checkTables(spec, in)
	}
	c.checkMachineType(spec)
	if spec.Domain.RebootPolicy != nil {
		oneOf(c, func() []any { return c.in("domain", "rebootPolicy") }, *spec.Domain.RebootPolicy, "Reboot", "Terminate")
	}
	if security := spec.Domain.LaunchSecurity; security != nil {
		c.checkLaunchSecurity(spec, security)
	}
}

// secureBoot reports whether the firmware is UEFI with secure boot, which is on unless it is switched off.
func secureBoot(firmware *kubevirtv1.Firmware) bool {
	return firmware.Bootloader != nil && firmware.Bootloader.EFI != nil && isTrueOr(firmware.Bootloader.EFI.SecureBoot, true)
}

func isTrueOr(value *bool, otherwise bool) bool {
	if value == nil {
		return otherwise
	}
	return *value
}

// enabled reports whether a feature is given and not switched off.
func enabled(state *kubevirtv1.FeatureState) bool {
	return state != nil && isTrueOr(state.Enabled, true)
}

func (c *checker) checkMachineType(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	machine := spec.Domain.Machine
	if machine == nil || machine.Type == "" {
		return
	}
	alias, versions := machineTypes(spec.Architecture)
	if isToken(machine.Type) && (machine.Type == alias || strings.HasPrefix(machine.Type, versions)) {
		return
	}
	c.fail(c.in("domain", "machine", "type"), quoteValue(machine.Type)+" is not a machine type of this architecture",
		fmt.Sprintf("use %s or one that begins with %s, or leave it out", alias, versions))
}

// machineTypes returns the machine type of an architecture and how the names of its versions begin, as KubeVirt allows
// them.
func machineTypes(architecture string) (alias, versions string) {
	switch architecture {
	case archARM64:
		return "virt", "virt-"
	case archS390X:
		return "s390-ccw-virtio", "s390-ccw-virtio-"
	}
	return "q35", "pc-q35-"
}

// checkTables checks the ACPI tables, which come from Secrets.
func (c *checker) checkTables(spec *kubevirtv1.VirtualMachineInstanceSpec, in func(...any) []any) {
	tables := spec.Domain.Firmware.ACPI
	if tables.SlicNameRef == "" && tables.MsdmNameRef == "" {
		c.fail(in("acpi"), "no table", "add slicNameRef or msdmNameRef with the name of a secret volume")
	}
	for _, table := range []struct{ field, volume string }{{"slicNameRef", tables.SlicNameRef}, {"msdmNameRef", tables.MsdmNameRef}} {
		if table.volume == "" {
			continue
		}
		volume := volumeNamed(spec, table.volume)
		switch {
		case volume == nil && c.listMisread(c.in("volumes")):
		case volume == nil:
			fix := "add a secret volume of this name"
			if near := closest(table.volume, volumeNames(spec)); near != "" {
				fix = fmt.Sprintf("did you mean %q?", near)
			}
			c.fail(in("acpi", table.field), "no volume is named "+quoteValue(table.volume), fix)
		case volume.Secret == nil:
			c.fail(in("acpi", table.field), fmt.Sprintf("the volume %s is not a secret", quoteValue(table.volume)), "put the table into a Secret and name a volume with it")
		}
	}
}

func (c *checker) checkKernelBoot(boot *kubevirtv1.KernelBoot) {
	if boot == nil {
		return
	}
	if boot.Container == nil {
		if boot.KernelArgs != "" {
			c.fail(c.in("domain", "firmware", "kernelBoot", "kernelArgs"), "arguments without a kernel", "add container with image and kernelPath")
		}
		return
	}
	in := func(field string) []any {
		return c.in("domain", "firmware", "kernelBoot", "container", field)
	}
	if boot.Container.Image == "" {
		c.fail(in("image"), "no image", "name the image that holds the kernel")
	} else if problem := imageProblem(boot.Container.Image); problem != "" {
		c.fail(in("image"), problem, "write it as registry/name:tag")
	}
	oneOf(c, func() []any { return in("imagePullPolicy") }, boot.Container.ImagePullPolicy, "Always", "IfNotPresent", "Never")
	c.checkReference(func() []any { return in("imagePullSecret") }, "Secret", boot.Container.ImagePullSecret)
	if boot.Container.KernelPath == "" && boot.Container.InitrdPath == "" {
		c.fail(in("kernelPath"), "neither kernelPath nor initrdPath", "write where the kernel is in the image")
	}
	if boot.KernelArgs != "" && boot.Container.KernelPath == "" && boot.Container.InitrdPath != "" {
		c.fail(in("kernelPath"), "arguments without a kernel", "write where the kernel is in the image")
	}
	for _, file := range []struct{ name, path string }{{"kernelPath", boot.Container.KernelPath}, {"initrdPath", boot.Container.InitrdPath}} {
		if file.path == "" {
			continue
		}
		if problem := pathProblem(file.path); problem != "" {
			c.fail(in(file.name), problem, "write the absolute path of the file in the image")
		}
	}
}

// checkLaunchSecurity checks what encrypted memory excludes. On s390x an empty launchSecurity means Secure Execution.
func (c *checker) checkLaunchSecurity(spec *kubevirtv1.VirtualMachineInstanceSpec, security *kubevirtv1.LaunchSecurity) {
	in := func(parts ...any) []any { return c.in(append(at("domain", "launchSecurity"), parts...)...) }
	var kinds []string
	for _, kind := range []struct {
		name string
		set  bool
	}{{"sev", security.SEV != nil}, {"snp", security.SNP != nil}, {"tdx", security.TDX != nil}} {
		if kind.set {
			kinds = append(kinds, kind.name)
		}
	}
	switch {
	case spec.Architecture == archS390X && len(kinds) == 0:
		return
	case isForeign(spec.Architecture):
		c.fail(in(), "memory encryption of this kind exists on amd64 only", "remove it")
		return
	case len(kinds) != 1:
		c.fail(in(), "exactly one of sev, snp and tdx says how memory is encrypted", "keep one")
		return
	}
	kind, loader := kinds[0], spec.Domain.Firmware.Bootloader
	if loader == nil || loader.EFI == nil {
		c.fail(in(kind), "encrypted memory needs UEFI firmware", "add bootloader: {efi: {secureBoot: false}} to domain.firmware")
	} else {
		if kind != "tdx" && secureBoot(spec.Domain.Firmware) {
			c.fail(in(kind), "secure boot, which is on by default, and "+kind+" exclude each other", "write secureBoot: false under domain.firmware.bootloader.efi")
		}
		if kind != "sev" && isTrueOr(loader.EFI.Persistent, false) {
			c.fail(in(kind), "UEFI variables cannot be kept with "+kind, "remove persistent from domain.firmware.bootloader.efi")
		}
	}
	if kind == "tdx" && enabled(spec.Domain.Features.SMM) {
		c.fail(in(kind), "tdx and the feature smm exclude each other", "remove features.smm")
	}
	for i := range spec.Domain.Devices.Interfaces {
		if spec.Domain.Devices.Interfaces[i].BootOrder != nil {
			c.fail(c.in("domain", "devices", "interfaces", i, "bootOrder"), "a machine with encrypted memory does not boot from the network", "remove it")
		}
	}
	if security.SEV != nil {
		c.checkSEV(spec, security.SEV, in)
	}
}

func (c *checker) checkSEV(spec *kubevirtv1.VirtualMachineInstanceSpec, sev *kubevirtv1.SEV, in func(...any) []any) {
	if sev.Attestation != nil && (spec.StartStrategy == nil || *spec.StartStrategy != kubevirtv1.StartStrategyPaused) {
		c.fail(in("sev", "attestation"), "nobody can attest a machine that runs already", "add startStrategy: Paused")
	}
	for _, blob := range []struct{ field, text string }{{"session", sev.Session}, {"dhCert", sev.DHCert}} {
		if _, err := base64.StdEncoding.DecodeString(blob.text); err != nil {
			c.fail(in("sev", blob.field), "is not base64", "encode it (base64 -w0)")
		}
	}
	if (sev.Session == "") != (sev.DHCert == "") {
		c.fail(in("sev"), "session and dhCert belong together", "give both or neither")
	}
}
