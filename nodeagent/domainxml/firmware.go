package domainxml

import (
	"errors"
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

func uuidOf(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) string {
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.UUID != "" {
		return strings.ToLower(string(firmware.UUID))
	}
	return schemas.FirmwareUUID(address)
}

// The kinds of memory encryption, as libvirt names them.
const (
	securitySEV = "sev"
	securitySNP = "sev-snp"
	securityTDX = "tdx"
	// securityPV is IBM Secure Execution. The guest itself switches it on, and all that the machine needs for it is iommu.
	securityPV = "s390-pv"
)

// launchSecurity returns the kind of memory encryption that the manifest asks for, "" for none.
func (r *renderer) launchSecurity() string {
	security := r.spec.Domain.LaunchSecurity
	switch {
	case security == nil || r.arch.name == "aarch64":
		return ""
	case r.arch.name == "s390x":
		return securityPV
	case security.SEV != nil:
		return securitySEV
	case security.SNP != nil:
		return securitySNP
	case security.TDX != nil:
		return securityTDX
	}
	return ""
}

// iommu is the value of the attribute of virtio devices that makes them use the DMA API of an encrypted guest.
func (r *renderer) iommu() string {
	if kind := r.launchSecurity(); kind == "" || kind == securityTDX {
		return ""
	}
	return "on"
}

func (r *renderer) launchSecurityElement() {
	switch kind := r.launchSecurity(); kind {
	case securitySEV:
		sev := r.spec.Domain.LaunchSecurity.SEV
		policy := "0x1" // no debugging
		if sev.Policy != nil && isTrue(sev.Policy.EncryptedState) {
			policy = "0x5" // and SEV-ES
		}
		r.start("launchSecurity", "type", kind)
		r.text("policy", policy)
		if sev.DHCert != "" {
			r.text("dhCert", sev.DHCert)
		}
		if sev.Session != "" {
			r.text("session", sev.Session)
		}
		r.end("launchSecurity")
	case securitySNP:
		r.start("launchSecurity", "type", kind)
		r.text("policy", "0x30000") // hyper-threads are allowed; the other bit is always set
		r.end("launchSecurity")
	case securityTDX:
		r.leaf("launchSecurity", "type", kind)
	}
}

func (r *renderer) os() error {
	machine := r.arch.machine
	if r.spec.Domain.Machine != nil && r.spec.Domain.Machine.Type != "" {
		machine = r.spec.Domain.Machine.Type
	}
	firmware := r.spec.Domain.Firmware
	if firmware == nil {
		firmware = &kubevirtv1.Firmware{}
	}
	r.start("os")
	r.text("type", "hvm", "arch", r.arch.name, "machine", machine)
	r.bootloader(firmware.Bootloader)
	if boot := firmware.KernelBoot; boot != nil {
		if boot.Container != nil {
			files := r.volume(KernelBootVolume)
			if files == nil {
				return errors.New("the files of kernelBoot are not there")
			}
			if files.Path != "" {
				r.text("kernel", files.Path)
			}
			if files.Initrd != "" {
				r.text("initrd", files.Initrd)
			}
		}
		if boot.KernelArgs != "" {
			r.text("cmdline", boot.KernelArgs)
		}
	}
	if err := r.acpiTables(firmware.ACPI); err != nil {
		return err
	}
	if r.arch.smbios {
		r.leaf("smbios", "mode", "sysinfo")
	}
	if strategy := r.spec.StartStrategy; strategy != nil && *strategy == kubevirtv1.StartStrategyPaused {
		r.leaf("bootmenu", "enable", "yes", "timeout", "10000") // time to reach the firmware once it goes on
	}
	r.end("os")
	return nil
}

// bootloader uses the firmware builds of Debian's packages; libvirt copies the variables' template on the first start.
func (r *renderer) bootloader(in *kubevirtv1.Bootloader) {
	if in == nil {
		in = &kubevirtv1.Bootloader{}
		if r.arch.name == "aarch64" { // there is no other firmware
			no := false
			in.EFI = &kubevirtv1.EFI{SecureBoot: &no}
		}
	}
	if in.BIOS != nil && isTrue(in.BIOS.UseSerial) {
		r.leaf("bios", "useserial", "yes")
	}
	if in.EFI == nil {
		return
	}
	secure := notFalse(in.EFI.SecureBoot) && r.arch.name == "x86_64" // libvirt knows it of no other machine
	switch r.launchSecurity() {
	case securitySNP: // measured by the processor: one file, no variables
		r.text("loader", "/usr/share/ovmf/OVMF.amdsev.fd", "readonly", "yes", "secure", yesNo(secure), "type", "rom")
		return
	case securityTDX:
		r.text("loader", "/usr/share/ovmf/OVMF.inteltdx.fd", "readonly", "yes", "secure", yesNo(secure), "type", "rom")
		return
	}
	code, variables := "/usr/share/OVMF/OVMF_CODE_4M", "/usr/share/OVMF/OVMF_VARS_4M"
	if r.arch.name == "aarch64" {
		code, variables = "/usr/share/AAVMF/AAVMF_CODE", "/usr/share/AAVMF/AAVMF_VARS"
	}
	build := ".fd"
	if secure {
		build = ".ms.fd"
	}
	r.text("loader", code+build, "readonly", "yes", "secure", yesNo(secure), "type", "pflash")
	r.text("nvram", r.host.NVRAM, "template", variables+build)
}

// acpiTables hands Windows licences to the guest. libvirt 9 knows only slic; msdm goes to QEMU in the way in which libvirt
// passes slic on.
func (r *renderer) acpiTables(in *kubevirtv1.ACPI) error {
	if in == nil {
		return nil
	}
	table := func(name string) (string, error) {
		volume := r.volume(name)
		if volume == nil || volume.Path == "" {
			return "", fmt.Errorf("firmware.acpi: volume %s was not prepared", name)
		}
		return volume.Path, nil
	}
	if in.SlicNameRef != "" {
		path, err := table(in.SlicNameRef)
		if err != nil {
			return err
		}
		r.start("acpi")
		r.text("table", path, "type", "slic")
		r.end("acpi")
	}
	if in.MsdmNameRef != "" {
		path, err := table(in.MsdmNameRef)
		if err != nil {
			return err
		}
		r.arguments = append(r.arguments, "-acpitable", "sig=MSDM,file="+strings.ReplaceAll(path, ",", ",,"))
	}
	return nil
}

func (r *renderer) entry(name, value string) {
	if value != "" {
		r.text("entry", value, "name", name)
	}
}

func (r *renderer) sysinfo() {
	if !r.arch.smbios {
		return
	}
	r.start("sysinfo", "type", "smbios")
	r.start("system")
	r.entry("manufacturer", "gitvirt")
	r.entry("product", "VirtualMachine")
	r.entry("uuid", r.uuid)
	if firmware := r.spec.Domain.Firmware; firmware != nil {
		r.entry("serial", firmware.Serial)
	}
	r.end("system")
	if chassis := r.spec.Domain.Chassis; chassis != nil && *chassis != (kubevirtv1.Chassis{}) {
		r.start("chassis")
		r.entry("manufacturer", chassis.Manufacturer)
		r.entry("version", chassis.Version)
		r.entry("serial", chassis.Serial)
		r.entry("asset", chassis.Asset)
		r.entry("sku", chassis.Sku)
		r.end("chassis")
	}
	r.end("sysinfo")
}
