// Package capabilities knows what a VM may need of its host beside libvirt and QEMU: firmware, a TPM emulator, a daemon for
// shared folders, device nodes, pages of memory. It says what is missing, and what to install, before anything is changed:
// libvirt would say it late and in the words of a program that the manifest does not name. Which devices of the host a VM
// gets is package hostdevices' work, which CPUs package cpus'.
package capabilities

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// ErrMissing says that the host lacks something that the VM needs; trying again helps only once somebody has changed the host.
var ErrMissing = errors.New("this host cannot run it")

// Host is a host that is looked at through its file system.
type Host struct {
	root string
}

// New returns the host whose file system begins at root: "/", or a folder that a test filled.
func New(root string) Host { return Host{root: root} }

// Capability is something that some VMs need.
type Capability struct {
	// Name is short: "UEFI with Secure Boot".
	Name string `json:"name"`
	// Field is what in a manifest needs it.
	Field string `json:"field"`
	// Problem says why it is not there; empty when it is.
	Problem string `json:"problem,omitempty"`
	// Fix says what to do about the problem.
	Fix string `json:"fix,omitempty"`
}

// Files that are looked for, as Debian names them.
const (
	vhostUserDir = "/usr/share/qemu/vhost-user"
	firmwareSEV  = "/usr/share/ovmf/OVMF.amdsev.fd"
	firmwareTDX  = "/usr/share/ovmf/OVMF.inteltdx.fd"
)

// programDirs are where programs are looked for: the PATH of an agent that is a service may be short.
var programDirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// List returns every capability, for people who look whether a host is complete.
func (h Host) List() []Capability {
	return []Capability{
		h.firmware("", false), h.firmware("", true), h.tpm(), h.virtiofs(), h.vsock(), h.iommu(), h.sev(false), h.sev(true), h.tdx(),
	}
}

// Check returns ErrMissing, naming everything that a VM needs and this host lacks, or nil.
func (h Host) Check(spec *kubevirtv1.VirtualMachineInstanceSpec) error {
	var problems []string
	for _, need := range h.needs(spec) {
		if need.Problem != "" {
			problems = append(problems, fmt.Sprintf("%s needs %s: %s; %s", need.Field, need.Name, need.Problem, need.Fix))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrMissing, strings.Join(problems, "; "))
}

func (h Host) needs(spec *kubevirtv1.VirtualMachineInstanceSpec) []Capability {
	var needs []Capability
	security := spec.Domain.LaunchSecurity
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil && security == nil {
		secure := firmware.Bootloader.EFI.SecureBoot
		needs = append(needs, h.firmware(spec.Architecture, secure == nil || *secure))
	}
	if tpm := spec.Domain.Devices.TPM; tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) {
		needs = append(needs, h.tpm())
	}
	if len(spec.Domain.Devices.Filesystems) > 0 {
		needs = append(needs, h.virtiofs())
	}
	if vsock := spec.Domain.Devices.AutoattachVSOCK; vsock != nil && *vsock {
		needs = append(needs, h.vsock())
	}
	if security != nil {
		switch {
		case security.SEV != nil:
			needs = append(needs, h.sev(false))
		case security.SNP != nil:
			needs = append(needs, h.sev(true))
		case security.TDX != nil:
			needs = append(needs, h.tdx())
		}
	}
	return needs
}

// firmware is a UEFI, in the builds that rendering names.
func (h Host) firmware(architecture string, secure bool) Capability {
	out := Capability{Name: "UEFI firmware", Field: "firmware.bootloader.efi", Fix: "apt-get install ovmf"}
	build := ".fd"
	if secure {
		out.Name, build = "UEFI firmware with Secure Boot", ".ms.fd"
	}
	files := []string{"/usr/share/OVMF/OVMF_CODE_4M" + build, "/usr/share/OVMF/OVMF_VARS_4M" + build}
	switch architecture {
	case "", "amd64":
	case "arm64":
		out.Fix = "apt-get install qemu-efi-aarch64"
		files = []string{"/usr/share/AAVMF/AAVMF_CODE" + build, "/usr/share/AAVMF/AAVMF_VARS" + build}
	default:
		return found(out) // no machine of it has a UEFI
	}
	if missing := h.missing(files...); missing != "" {
		out.Problem = missing + " is not there"
		return out
	}
	return found(out)
}

// missing returns the first of some files that is not there, or "".
func (h Host) missing(paths ...string) string {
	for _, path := range paths {
		if !h.exists(path) {
			return path
		}
	}
	return ""
}

func (h Host) tpm() Capability {
	out := Capability{Name: "TPM emulator", Field: "devices.tpm", Fix: "apt-get install swtpm swtpm-tools"}
	for _, name := range []string{"swtpm", "swtpm_setup"} {
		if !h.program(name) {
			out.Problem = "the program " + name + " is not there"
			return out
		}
	}
	return found(out)
}

// virtiofs looks for what libvirt looks for: a description of a daemon whose program is there.
func (h Host) virtiofs() Capability {
	out := Capability{
		Name: "virtiofsd", Field: "devices.filesystems",
		Problem: "no description in " + vhostUserDir + " names a virtiofsd that is there", Fix: "apt-get install virtiofsd (Debian 12: qemu-system-common)",
	}
	descriptions, err := filepath.Glob(filepath.Join(h.root, vhostUserDir, "*.json"))
	if err != nil {
		return out
	}
	for _, path := range descriptions {
		content, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		var description struct{ Type, Binary string }
		if json.Unmarshal(content, &description) == nil && description.Type == "fs" && h.exists(description.Binary) {
			return found(out)
		}
	}
	return out
}

func (h Host) vsock() Capability {
	out := Capability{Name: "vsock", Field: "devices.autoattachVSOCK", Fix: "modprobe vhost_vsock"}
	if !h.exists("/dev/vhost-vsock") {
		out.Problem = "/dev/vhost-vsock is not there"
		return out
	}
	return found(out)
}

// iommu is what PCI devices and mediated devices of a host need.
func (h Host) iommu() Capability {
	out := Capability{
		Name: "IOMMU", Field: "devices.gpus, devices.hostDevices, devices.interfaces.sriov",
		Fix: "enable VT-d or AMD-Vi in the firmware, boot with intel_iommu=on, and modprobe vfio-pci",
	}
	groups, err := os.ReadDir(filepath.Join(h.root, "/sys/kernel/iommu_groups"))
	if err != nil || len(groups) == 0 {
		out.Problem = "the kernel has no IOMMU groups"
		return out
	}
	return found(out)
}

func (h Host) sev(snp bool) Capability {
	out := Capability{Name: "AMD SEV", Field: "launchSecurity.sev", Fix: "enable SEV in the firmware and load kvm_amd with sev=1"}
	parameter := "sev"
	if snp {
		out.Name, out.Field, parameter = "AMD SEV-SNP", "launchSecurity.snp", "sev_snp"
		out.Fix = "enable SEV-SNP in the firmware and load kvm_amd with sev_snp=1"
	}
	switch {
	case !h.on("kvm_amd", parameter):
		out.Problem = "kvm_amd does not offer " + parameter
	case !h.exists("/dev/sev"):
		out.Problem = "/dev/sev is not there"
	case !h.exists(firmwareSEV):
		out.Problem, out.Fix = firmwareSEV+" is not there", "install an ovmf that has it (Debian 13)"
	default:
		return found(out)
	}
	return out
}

func (h Host) tdx() Capability {
	out := Capability{Name: "Intel TDX", Field: "launchSecurity.tdx", Fix: "enable TDX in the firmware and load kvm_intel with tdx=1"}
	if !h.on("kvm_intel", "tdx") {
		out.Problem = "kvm_intel does not offer tdx"
		return out
	}
	if !h.exists(firmwareTDX) {
		out.Problem, out.Fix = firmwareTDX+" is not there", "install an ovmf that has it (Debian 13)"
		return out
	}
	return found(out)
}

// found is a capability without its problem and fix.
func found(c Capability) Capability {
	c.Problem, c.Fix = "", ""
	return c
}

// on reports whether a parameter of a kernel module is switched on.
func (h Host) on(module, parameter string) bool {
	content, err := os.ReadFile(filepath.Join(h.root, "/sys/module", module, "parameters", parameter))
	value := strings.TrimSpace(string(content))
	return err == nil && (value == "Y" || value == "1")
}

func (h Host) program(name string) bool {
	for _, dir := range programDirs {
		if h.exists(filepath.Join(dir, name)) {
			return true
		}
	}
	return false
}

// exists reports whether something is at a path; what cannot be looked at counts as there, and libvirt has the last word.
func (h Host) exists(path string) bool {
	_, err := os.Stat(filepath.Join(h.root, path))
	return !errors.Is(err, os.ErrNotExist)
}
