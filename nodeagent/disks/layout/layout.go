// Package layout says where everything of a virtual machine lies on a host. It is pure: it names files and makes none. The
// agent that makes them and the command that only shows what would be made both ask here, so that they cannot drift
// apart.
//
// Below the agent's state directory:
//
//	disks/NAMESPACE/NAME/VOLUME.qcow2            an emptyDisk's data
//	disks/NAMESPACE/NAME/VOLUME.json             its record; also that of a hostDisk, whose file lies elsewhere
//	disks/NAMESPACE/NAME/firmware.nvram.fd       UEFI variables that are persistent
//	claims/NAMESPACE/CLAIM/disk.img              the image of a PersistentVolumeClaim
//	claims/NAMESPACE/CLAIM/claim.json            its record
//	claims/NAMESPACE/CLAIM/fs/data/              the files of a claim that is shared as a file system
//	vms/NAMESPACE/NAME/VOLUME.DIGEST.overlay.qcow2   what a guest writes over a container disk or an ephemeral claim
//	vms/NAMESPACE/NAME/VOLUME.iso                cloud-init, ConfigMaps, Secrets and the like as a disk
//	vms/NAMESPACE/NAME/VOLUME.fs/data/           the same as a shared file system
//	vms/NAMESPACE/NAME/VOLUME.acpi               a Secret that is an ACPI table
//	vms/NAMESPACE/NAME/VOLUME.metrics            a downwardMetrics disk
//	vms/NAMESPACE/NAME/nvram.fd, console.log, downward-metrics.sock
//
// What lies under disks/ and claims/ outlives the virtual machine; what lies under vms/ goes with it.
package layout

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// The folders of a state directory.
const (
	disksDir  = "disks"
	claimsDir = "claims"
	vmsDir    = "vms"
)

// Firmware is the volume name under which persistent UEFI variables are listed. No volume can have it: names of volumes are
// DNS labels.
const Firmware = "firmware.nvram"

// Layout names the files of one host. Names are the caller's to check: they come from manifests.
type Layout struct {
	// Dir is the agent's state directory, an absolute path.
	Dir string
}

// Disks is the folder of all disks that hold data, but for claims.
func (l Layout) Disks() string { return filepath.Join(l.Dir, disksDir) }

// Claims is the folder of all claims.
func (l Layout) Claims() string { return filepath.Join(l.Dir, claimsDir) }

// VMs is the folder of what goes with its machine.
func (l Layout) VMs() string { return filepath.Join(l.Dir, vmsDir) }

// Data is the folder of the disks of one machine that hold data.
func (l Layout) Data(vm schemas.Address) string {
	return filepath.Join(l.Disks(), vm.Namespace, vm.Name)
}

// VM is the folder of what goes with one machine.
func (l Layout) VM(vm schemas.Address) string { return filepath.Join(l.VMs(), vm.Namespace, vm.Name) }

// EmptyDisk is the image of an emptyDisk.
func (l Layout) EmptyDisk(vm schemas.Address, volume string) string {
	return filepath.Join(l.Data(vm), volume+".qcow2")
}

// Record is what is kept about an emptyDisk or a hostDisk.
func (l Layout) Record(vm schemas.Address, volume string) string {
	return filepath.Join(l.Data(vm), volume+".json")
}

// Overlay is what a guest writes over an image; name is the volume's and OverlayName's.
func (l Layout) Overlay(vm schemas.Address, name string) string {
	return filepath.Join(l.VM(vm), name+".overlay.qcow2")
}

// ISO is a disk that is made of files.
func (l Layout) ISO(vm schemas.Address, volume string) string {
	return filepath.Join(l.VM(vm), volume+".iso")
}

// Folder is a shared file system that is made of files. Nobody but root passes through the folder above it.
func (l Layout) Folder(vm schemas.Address, volume string) string {
	return filepath.Join(l.VM(vm), volume+".fs", "data")
}

// Table is a Secret that is an ACPI table.
func (l Layout) Table(vm schemas.Address, volume string) string {
	return filepath.Join(l.VM(vm), volume+".acpi")
}

// Metrics is a downwardMetrics disk.
func (l Layout) Metrics(vm schemas.Address, volume string) string {
	return filepath.Join(l.VM(vm), volume+".metrics")
}

// MetricsSocket is where QEMU listens for whoever answers a guest's questions on its downwardMetrics device.
func (l Layout) MetricsSocket(vm schemas.Address) string {
	return filepath.Join(l.VM(vm), "downward-metrics.sock")
}

// Claim is the folder of a claim.
func (l Layout) Claim(namespace, name string) string {
	return filepath.Join(l.Claims(), namespace, name)
}

// ClaimImage is a claim's disk, named as KubeVirt names it.
func (l Layout) ClaimImage(namespace, name string) string {
	return filepath.Join(l.Claim(namespace, name), "disk.img")
}

// ClaimRecord is what is kept about a claim.
func (l Layout) ClaimRecord(namespace, name string) string {
	return filepath.Join(l.Claim(namespace, name), "claim.json")
}

// ClaimFolder is a claim that is shared as a file system. What the guest puts there may have any owner and mode, so
// nobody but root passes through the folder above it.
func (l Layout) ClaimFolder(namespace, name string) string {
	return filepath.Join(l.Claim(namespace, name), "fs", "data")
}

// NVRAM is the file of a guest's UEFI variables; those that are persistent lie with the data.
func (l Layout) NVRAM(vm schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) string {
	if PersistentNVRAM(spec) {
		return filepath.Join(l.Data(vm), Firmware+".fd")
	}
	return filepath.Join(l.VM(vm), "nvram.fd")
}

// PersistentNVRAM reports whether a guest's UEFI variables outlive it.
func PersistentNVRAM(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	firmware := spec.Domain.Firmware
	return firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil &&
		firmware.Bootloader.EFI.Persistent != nil && *firmware.Bootloader.EFI.Persistent
}

// ConsoleLog keeps what a guest writes to its serial console.
func (l Layout) ConsoleLog(vm schemas.Address) string {
	return filepath.Join(l.VM(vm), "console.log")
}

// Host is what rendering a machine needs to know of the host's files.
func (l Layout) Host(vm schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec, domainType string) domainxml.Host {
	return domainxml.Host{
		DomainType: domainType,
		ConsoleLog: l.ConsoleLog(vm),
		NVRAM:      l.NVRAM(vm, spec),
		Dir:        l.VM(vm),
	}
}

// OverlayName is the name of an overlay: the volume's and what tells apart the images below it, so that an overlay never
// meets another image than the one it was made for.
func OverlayName(volume, digest string) string {
	if _, hexadecimal, ok := strings.Cut(digest, ":"); ok {
		digest = hexadecimal
	}
	return volume + "." + digest[:min(12, len(digest))]
}

// ClaimDigest stands for a claim, or the file that it names, in OverlayName.
func ClaimDigest(claim schemas.Claim) string {
	sum := sha256.Sum256([]byte(claim.Namespace + "/" + claim.Name + "\x00" + claim.Path))
	return hex.EncodeToString(sum[:])
}
