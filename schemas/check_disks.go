package schemas

import (
	"fmt"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkDisks(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	disks := spec.Domain.Devices.Disks
	c.checkUnique("disks", len(disks), func(i int) string { return disks[i].Name }, labelProblem, "domain", "devices", "disks")
	configDrive := slices.ContainsFunc(spec.Volumes, func(v kubevirtv1.Volume) bool { return v.CloudInitConfigDrive != nil })
	for i := range disks {
		disk := &disks[i]
		in := func(parts ...any) []any { return c.in(append(at("domain", "devices", "disks", i), parts...)...) }
		volume := volumeNamed(spec, disk.Name)
		if volume == nil && disk.Name != "" && disk.CDRom == nil && !c.listMisread(c.in("volumes")) {
			fix := "add a volume of this name, or remove the disk"
			if near := closest(disk.Name, volumeNames(spec)); near != "" {
				fix = fmt.Sprintf("did you mean %q?", near)
			}
			c.fail(in("name"), "no volume is named "+quoteValue(disk.Name), fix)
		}
		c.checkDiskTarget(spec, disk, in)
		c.checkLUN(disk, volume, in)
		c.checkDiskVolume(disk, volume, in)
		c.checkSerial(func() []any { return in("serial") }, disk.Serial)
		c.checkDriver(disk, in)
		c.checkBlockSize(disk, in)
		if disk.Tag != "" && !configDrive {
			c.warn(in("tag"), "tags are handed over on a config drive, and the machine has none", "add a cloudInitConfigDrive volume, or remove the tag")
		}
	}
}

// checkDriver checks how the host reads and writes a disk.
func (c *checker) checkDriver(disk *kubevirtv1.Disk, in func(...any) []any) {
	oneOf(c, func() []any { return in("cache") }, disk.Cache, kubevirtv1.CacheNone, kubevirtv1.CacheWriteThrough, kubevirtv1.CacheWriteBack)
	oneOf(c, func() []any { return in("io") }, disk.IO, kubevirtv1.IONative, kubevirtv1.IOThreads)
	if disk.IO == kubevirtv1.IONative && (disk.Cache == kubevirtv1.CacheWriteThrough || disk.Cache == kubevirtv1.CacheWriteBack) {
		c.fail(in("io"), "native input and output goes past the page cache, which cache "+string(disk.Cache)+" uses", "use cache none, or io threads")
	}
	if isTrueOr(disk.Shareable, false) && (disk.Cache == kubevirtv1.CacheWriteThrough || disk.Cache == kubevirtv1.CacheWriteBack) {
		c.fail(in("cache"), "what one machine caches of a shared disk is old for the others", "use cache none")
	}
	if disk.ErrorPolicy != nil {
		oneOf(c, func() []any { return in("errorPolicy") }, *disk.ErrorPolicy, "stop", "ignore", "report", "enospace")
	}
}

func volumeNamed(spec *kubevirtv1.VirtualMachineInstanceSpec, name string) *kubevirtv1.Volume {
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == name {
			return &spec.Volumes[i]
		}
	}
	return nil
}

func volumeNames(spec *kubevirtv1.VirtualMachineInstanceSpec) []string {
	names := make([]string, len(spec.Volumes))
	for i := range spec.Volumes {
		names[i] = spec.Volumes[i].Name
	}
	return names
}

// diskTarget says how a disk is shown to the guest; kinds counts the ways that the manifest names.
func diskTarget(disk *kubevirtv1.Disk) (kind string, bus kubevirtv1.DiskBus, kinds int) {
	kind = "disk"
	if disk.Disk != nil {
		kind, bus, kinds = "disk", disk.Disk.Bus, kinds+1
	}
	if disk.LUN != nil {
		kind, bus, kinds = "lun", disk.LUN.Bus, kinds+1
	}
	if disk.CDRom != nil {
		kind, bus, kinds = "cdrom", disk.CDRom.Bus, kinds+1
	}
	return kind, bus, kinds
}

// onlyRead tells a claim that is only read, whatever its disk says.
func onlyRead(v *kubevirtv1.Volume) bool {
	return v != nil && v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
}

func (c *checker) checkDiskTarget(spec *kubevirtv1.VirtualMachineInstanceSpec, disk *kubevirtv1.Disk, in func(...any) []any) {
	kind, bus, kinds := diskTarget(disk)
	if kinds > 1 {
		c.fail(in(), "a disk is one of disk, lun and cdrom", "keep one")
		return
	}
	path := func() []any { return in(kind, "bus") }
	switch {
	case bus == "ide":
		c.fail(path(), "the machine type has no IDE bus", "use sata")
	case bus == "fdc":
		c.fail(path(), "the machine type has no floppy drive", "use a cdrom on sata")
	case kind == "cdrom" && bus == kubevirtv1.DiskBusVirtio:
		c.fail(path(), "there is no virtio CD-ROM", "use sata or scsi")
	case kind == "lun" && bus != "" && bus != kubevirtv1.DiskBusSCSI && bus != kubevirtv1.DiskBusVirtio:
		c.fail(path(), fmt.Sprintf("SCSI commands do not reach a disk on a %s bus", bus), "use scsi")
	case kind == "disk" && bus == kubevirtv1.DiskBusSATA && disk.Disk != nil && disk.Disk.ReadOnly:
		c.fail(in("disk", "readonly"), "a sata disk cannot be read-only", "use bus virtio or scsi, or a cdrom")
	case isForeign(spec.Architecture) && (bus == kubevirtv1.DiskBusSATA || bus == kubevirtv1.DiskBusUSB):
		c.fail(path(), fmt.Sprintf("there is no %s bus on %s", bus, spec.Architecture), "use virtio or scsi")
	case kind == "disk" && bus == kubevirtv1.DiskBusSATA && onlyRead(volumeNamed(spec, disk.Name)):
		c.fail(path(), fmt.Sprintf("the claim of the volume %s is only read, and a sata disk cannot be read-only", quoteValue(disk.Name)), "use bus virtio or scsi, or a cdrom")
	default:
		oneOf(c, path, bus, kubevirtv1.DiskBusVirtio, kubevirtv1.DiskBusSCSI, kubevirtv1.DiskBusSATA, kubevirtv1.DiskBusUSB)
	}
	if isTrueOr(disk.DedicatedIOThread, false) && bus != kubevirtv1.DiskBusVirtio {
		c.fail(in("dedicatedIOThread"), fmt.Sprintf("disks on a %s bus have no thread of their own", bus), "use bus virtio")
	}
	if disk.CDRom != nil {
		oneOf(c, func() []any { return in("cdrom", "tray") }, disk.CDRom.Tray, kubevirtv1.TrayStateOpen, kubevirtv1.TrayStateClosed)
	}
	if disk.Disk != nil && disk.Disk.PciAddress != "" && bus != kubevirtv1.DiskBusVirtio {
		c.fail(in("disk", "pciAddress"), "only a virtio disk has a PCI address", "use bus virtio, or remove pciAddress")
	}
}

// checkLUN checks a disk whose guest talks SCSI with a device of the host.
func (c *checker) checkLUN(disk *kubevirtv1.Disk, volume *kubevirtv1.Volume, in func(...any) []any) {
	if disk.LUN == nil {
		return
	}
	if disk.LUN.Reservation && disk.LUN.Bus != kubevirtv1.DiskBusSCSI {
		c.fail(in("lun", "reservation"), "persistent reservations are SCSI commands", "use bus scsi")
	}
	if disk.Serial != "" {
		c.fail(in("serial"), "a lun shows the serial number of its device", "remove it, or use disk")
	}
	if volume == nil || len(volumeSources(volume)) != 1 {
		return
	}
	switch {
	case volume.HostDisk != nil && volume.HostDisk.Type == kubevirtv1.HostDiskExistsOrCreate:
		c.fail(in("lun"), "a lun needs a block device, and a hostDisk that has to be made is a file", "use disk, or a hostDisk of type Disk with the device's path")
	case volume.PersistentVolumeClaim == nil && volume.DataVolume == nil && volume.HostDisk == nil:
		c.fail(in("lun"), "a lun needs a volume that is a block device", "use disk, or a hostDisk volume with the device's path")
	}
}

// checkDiskVolume checks whether a volume can be shown as this disk.
func (c *checker) checkDiskVolume(disk *kubevirtv1.Disk, volume *kubevirtv1.Volume, in func(...any) []any) {
	if volume == nil {
		return
	}
	if isTrueOr(disk.Shareable, false) && (volume.EmptyDisk != nil || volume.ContainerDisk != nil || volume.Ephemeral != nil) {
		c.fail(in("shareable"), "the image of this volume belongs to one machine: two that write to a qcow2 image destroy it", "remove it, or share a hostDisk or a claim")
	}
	if volume.DownwardMetrics != nil {
		switch {
		case disk.Disk == nil:
			c.fail(in(), "downward metrics are read from a disk", "write disk: {bus: virtio}")
		case disk.Disk.Bus != kubevirtv1.DiskBusVirtio:
			c.fail(in("disk", "bus"), "downward metrics are read from a virtio disk", "use virtio")
		}
	}
}

func (c *checker) checkBlockSize(disk *kubevirtv1.Disk, in func(...any) []any) {
	size := disk.BlockSize
	if size == nil || size.Custom == nil {
		return
	}
	if enabled(size.MatchVolume) {
		c.fail(in("blockSize"), "custom and matchVolume exclude each other", "keep one")
		return
	}
	custom, path := size.Custom, func(field string) []any { return in("blockSize", "custom", field) }
	for _, one := range []struct {
		name  string
		value uint
	}{{"logical", custom.Logical}, {"physical", custom.Physical}} {
		if one.value < 512 || one.value > 2<<20 || one.value&(one.value-1) != 0 {
			c.fail(path(one.name), fmt.Sprintf("%d is not a power of 2 from 512 to 2097152", one.value), "use 512 or 4096")
		}
	}
	if custom.Logical > custom.Physical {
		c.fail(path("logical"), "the logical block is larger than the physical one", "use the same size")
	}
	if _, bus, _ := diskTarget(disk); bus == kubevirtv1.DiskBusSATA && custom.Logical > 512 {
		c.fail(path("logical"), "QEMU's sata disks have logical blocks of 512 bytes", "use 512, or bus virtio or scsi")
	}
	if discard := custom.DiscardGranularity; discard != nil && custom.Logical > 0 && *discard%custom.Logical != 0 {
		c.fail(path("discardGranularity"), fmt.Sprintf("%d is not a multiple of the logical block", *discard), fmt.Sprintf("use a multiple of %d", custom.Logical))
	}
}
