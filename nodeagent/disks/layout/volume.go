package layout

import (
	"path/filepath"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// Use is what a machine does with a volume.
type Use int

// The uses of a volume.
const (
	// UseDisk: a disk of any kind, or nothing that needs another form.
	UseDisk Use = iota
	// UseFilesystem: a virtiofs share.
	UseFilesystem
	// UseTable: the content of an ACPI table.
	UseTable
)

// UseOf returns what a machine does with the volume of a name.
func UseOf(spec *kubevirtv1.VirtualMachineInstanceSpec, volume string) Use {
	for _, shared := range spec.Domain.Devices.Filesystems {
		if shared.Name == volume {
			return UseFilesystem
		}
	}
	firmware := spec.Domain.Firmware
	if firmware != nil && firmware.ACPI != nil && (firmware.ACPI.SlicNameRef == volume || firmware.ACPI.MsdmNameRef == volume) {
		return UseTable
	}
	return UseDisk
}

// The formats of images, as QEMU spells them.
const (
	raw   = "raw"
	qcow2 = "qcow2"
)

// Volume returns what is known of a volume without looking at the host: everything for most kinds. The overlay of a container
// disk lacks its image's digest in its name, a hostDisk counts as raw, and a claim with a path of its own as the file that the path names.
func (l Layout) Volume(vm schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume, claim schemas.Claim) domainxml.Volume {
	kind, _ := domainxml.VolumeKind(source)
	out := domainxml.Volume{Name: source.Name, Kind: kind, Format: raw}
	use := UseOf(spec, source.Name)
	switch {
	case source.ContainerDisk != nil:
		out.Path, out.Format = l.Overlay(vm, source.Name), qcow2
		out.Backing, out.BackingFormat = filepath.Join(l.Dir, "images", "of-"+source.Name), qcow2
	case source.EmptyDisk != nil:
		out.Path, out.Format, out.Capacity = l.EmptyDisk(vm, source.Name), qcow2, source.EmptyDisk.Capacity.Value()
	case source.HostDisk != nil:
		out.Path, out.Capacity = source.HostDisk.Path, source.HostDisk.Capacity.Value()
	case source.PersistentVolumeClaim != nil || source.DataVolume != nil:
		l.claimVolume(&out, claim, use)
	case source.Ephemeral != nil:
		out.Path, out.Format = l.Overlay(vm, OverlayName(source.Name, ClaimDigest(claim))), qcow2
		out.Backing, out.BackingFormat, out.Capacity = l.claimPath(claim), raw, claim.Capacity
	case source.DownwardMetrics != nil:
		out.Path = l.Metrics(vm, source.Name)
	case use == UseFilesystem:
		out.Path, out.Format = l.Folder(vm, source.Name), ""
	case use == UseTable:
		out.Path, out.Format = l.Table(vm, source.Name), ""
	default:
		out.Path = l.ISO(vm, source.Name)
	}
	return out
}

func (l Layout) claimVolume(out *domainxml.Volume, claim schemas.Claim, use Use) {
	if use == UseFilesystem {
		out.Path, out.Format = claim.Path, ""
		if claim.Path == "" {
			out.Path = l.ClaimFolder(claim.Namespace, claim.Name)
		}
		return
	}
	out.Path, out.Capacity = l.claimPath(claim), claim.Capacity
	// A claim of volumeMode Block without a device of its own is an image all the same: the guest sees no difference.
	out.Block = claim.Block && claim.Path != ""
}

func (l Layout) claimPath(claim schemas.Claim) string {
	if claim.Path != "" {
		return claim.Path
	}
	return l.ClaimImage(claim.Namespace, claim.Name)
}

// Volumes returns what is known of all volumes of a machine without looking at the host.
func (l Layout) Volumes(vm *schemas.VM) []domainxml.Volume {
	spec := vm.Spec()
	var out []domainxml.Volume
	for _, source := range spec.Volumes {
		out = append(out, l.Volume(vm.Address, spec, source, vm.Claims[source.Name]))
	}
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		boot := domainxml.Volume{Name: domainxml.KernelBootVolume, Kind: "kernelBoot"}
		if firmware.KernelBoot.Container.KernelPath != "" {
			boot.Path = filepath.Join(l.Dir, "images", "kernel")
		}
		if firmware.KernelBoot.Container.InitrdPath != "" {
			boot.Initrd = filepath.Join(l.Dir, "images", "initrd")
		}
		out = append(out, boot)
	}
	return out
}
