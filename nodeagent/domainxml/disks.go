package domainxml

import (
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// targets hands out device names per prefix: vda, vdb; sda, sdb, ... sdz, sdaa.
type targets struct{ vd, sd int }

// next returns a name and its place in the row.
func (t *targets) next(bus kubevirtv1.DiskBus) (name string, place int) {
	prefix, count := "sd", &t.sd
	if bus == kubevirtv1.DiskBusVirtio {
		prefix, count = "vd", &t.vd
	}
	place = *count
	*count++
	return targetName(prefix, place), place
}

// targetName is the name at a place in the row.
func targetName(prefix string, place int) string {
	var letters [8]byte
	at := len(letters)
	for n := place + 1; n > 0; n = (n - 1) / 26 {
		at--
		letters[at] = byte('a' + (n-1)%26)
	}
	return prefix + string(letters[at:])
}

// diskDevice is what a disk of the manifest is to the guest.
type diskDevice struct {
	device   string // disk, lun, cdrom
	bus      kubevirtv1.DiskBus
	readonly bool
	tray     string
}

func (r *renderer) deviceOf(in *kubevirtv1.Disk) diskDevice {
	out := diskDevice{device: "disk"}
	switch {
	case in.CDRom != nil:
		out = diskDevice{device: "cdrom", bus: in.CDRom.Bus, readonly: notFalse(in.CDRom.ReadOnly), tray: string(in.CDRom.Tray)}
	case in.LUN != nil:
		out = diskDevice{device: "lun", bus: in.LUN.Bus, readonly: in.LUN.ReadOnly}
	case in.Disk != nil:
		out.bus, out.readonly = in.Disk.Bus, in.Disk.ReadOnly
	}
	out.readonly = out.readonly || r.onlyRead(in.Name)
	if out.bus == "" {
		out.bus = r.arch.diskBus
		if out.device == "cdrom" && out.bus == kubevirtv1.DiskBusVirtio {
			out.bus = kubevirtv1.DiskBusSCSI // there is no virtio CD-ROM
		}
	}
	if out.device == "lun" && out.bus == kubevirtv1.DiskBusSATA {
		out.bus = kubevirtv1.DiskBusSCSI // KubeVirt's default, on which libvirt passes nothing through
	}
	return out
}

// onlyRead reports whether a volume is a claim that is only read. In KubeVirt the Pod mounts it read-only, so that what a guest
// writes fails; here nothing but the device can see to that.
func (r *renderer) onlyRead(name string) bool {
	for i := range r.spec.Volumes {
		if claim := r.spec.Volumes[i].PersistentVolumeClaim; claim != nil && r.spec.Volumes[i].Name == name {
			return claim.ReadOnly
		}
	}
	return false
}

func (r *renderer) usesBus(bus kubevirtv1.DiskBus) bool {
	for i := range r.spec.Domain.Devices.Disks {
		if r.deviceOf(&r.spec.Domain.Devices.Disks[i]).bus == bus {
			return true
		}
	}
	return false
}

func (r *renderer) disks() error {
	var names targets
	for i := range r.spec.Domain.Devices.Disks {
		in := &r.spec.Domain.Devices.Disks[i]
		if err := r.disk(in, &names); err != nil {
			return fmt.Errorf("disk %s: %w", in.Name, err)
		}
	}
	return nil
}

// hasVolume reports whether the manifest has a volume for a disk.
func (r *renderer) hasVolume(name string) bool {
	for i := range r.spec.Volumes {
		if r.spec.Volumes[i].Name == name {
			return true
		}
	}
	return false
}

func (r *renderer) disk(in *kubevirtv1.Disk, names *targets) error {
	device := r.deviceOf(in)
	volume := r.volume(in.Name)
	empty := device.device == "cdrom" && !r.hasVolume(in.Name)
	if empty {
		volume = &Volume{Format: "raw", Block: true}
	}
	if volume == nil {
		return fmt.Errorf("its volume was not prepared")
	}
	shareable := device.device == "disk" && isTrue(in.Shareable)
	if shareable && volume.Format != "raw" {
		return fmt.Errorf("shareable: two machines that write one %s image destroy it; only raw volumes, such as claims, can be shared", volume.Format)
	}
	// QEMU talks SCSI to a LUN, so it is a block device whatever is there.
	block := volume.Block || device.device == "lun"
	kind, model := "file", ""
	if block {
		kind = "block"
	}
	metrics := volume.Kind == "downwardMetrics"
	if metrics || device.device == "disk" && device.bus == kubevirtv1.DiskBusVirtio {
		model = r.virtio
	}
	alias := r.alias(in.Name)
	r.start("disk", "type", kind, "device", device.device, "model", model)
	r.driver(in, device, volume)
	if !empty {
		r.source(volume, block, in)
	}
	r.backing(volume)
	target, place := names.next(device.bus)
	r.leaf("target", "dev", target, "bus", string(device.bus), "tray", device.tray)
	if custom := in.BlockSize; custom != nil {
		r.blockIO(in, alias)
	}
	if device.readonly || metrics {
		r.leaf("readonly")
	}
	if shareable {
		r.leaf("shareable")
	}
	if in.Serial != "" && device.device != "lun" { // a LUN has its own
		r.text("serial", in.Serial)
	}
	if in.BootOrder != nil {
		r.leaf("boot", "order", decimal(*in.BootOrder))
	}
	r.leaf("alias", "name", alias)
	switch {
	case in.Disk != nil && in.Disk.PciAddress != "":
		if err := r.pciAddress(in.Disk.PciAddress, "pci"); err != nil {
			return err
		}
	case device.bus == kubevirtv1.DiskBusSCSI:
		// libvirt would make a controller for every seven names.
		r.leaf("address", "type", "drive", "controller", "0", "bus", "0", "unit", decimal(place))
	}
	r.end("disk")
	return nil
}

func (r *renderer) source(volume *Volume, block bool, in *kubevirtv1.Disk) {
	attribute := "file"
	if block {
		attribute = "dev"
	}
	if in.LUN != nil && in.LUN.Reservation {
		r.start("source", attribute, volume.Path)
		r.leaf("reservations", "managed", "yes")
		r.end("source")
		return
	}
	r.leaf("source", attribute, volume.Path)
}

// podDevices is where a Pod has block devices (launcher/protocol).
const podDevices = "/devices/"

// backing names the whole chain, or says that there is none, so that neither libvirt nor QEMU follows a file name that a guest
// could have written into an image.
func (r *renderer) backing(volume *Volume) {
	if volume.Backing == "" {
		if volume.Format == "qcow2" {
			r.leaf("backingStore")
		}
		return
	}
	kind, attribute := "file", "file"
	if strings.HasPrefix(volume.Backing, "/dev/") || strings.HasPrefix(volume.Backing, podDevices) {
		kind, attribute = "block", "dev"
	}
	r.start("backingStore", "type", kind)
	r.leaf("format", "type", volume.BackingFormat)
	r.leaf("source", attribute, volume.Backing)
	r.leaf("backingStore")
	r.end("backingStore")
}

func (r *renderer) driver(in *kubevirtv1.Disk, device diskDevice, volume *Volume) {
	metrics := volume.Kind == "downwardMetrics"
	cache, io, policy, discard := string(in.Cache), string(in.IO), string(kubevirtv1.DiskErrorPolicyStop), "unmap"
	switch {
	case cache != "" && !metrics || volume.Path == "":
	case volume.Cached && !isTrue(in.Shareable):
		cache = string(kubevirtv1.CacheWriteThrough)
	default:
		cache = string(kubevirtv1.CacheNone)
	}
	if io == "default" || metrics {
		io = ""
	}
	if in.IO == "" && volume.Block && cache == string(kubevirtv1.CacheNone) {
		io = string(kubevirtv1.IONative) // a block device never makes the submitting thread wait for a file system
	}
	if in.ErrorPolicy != nil {
		policy = string(*in.ErrorPolicy)
	}
	if metrics || device.device == "cdrom" && !discards(volume) {
		discard = ""
	}
	iothread, queues, iommu := "", "", ""
	if device.bus == kubevirtv1.DiskBusVirtio {
		if thread := r.threads.next(isTrue(in.DedicatedIOThread)); thread != 0 {
			iothread = decimal(thread)
		}
		if isTrue(r.spec.Domain.Devices.BlockMultiQueue) && !metrics {
			queues = decimal(r.topology.vcpus())
		}
		iommu = r.iommu()
	}
	r.leaf("driver", "name", "qemu", "type", volume.Format, "cache", cache, "error_policy", policy, "io", io, "discard", discard,
		"iothread", iothread, "queues", queues, "iommu", iommu)
}

// discards reports whether a CD-ROM's driver passes discards on: KubeVirt sets that by the kind of the volume.
func discards(volume *Volume) bool {
	switch volume.Kind {
	case "containerDisk", "emptyDisk", "ephemeral", "persistentVolumeClaim", "dataVolume":
		return true
	}
	return volume.Path == ""
}

// fileBlock is the block size of the file systems that images lie on.
const fileBlock = 4096

// blockSizes returns what a disk says about its blocks, in bytes; 0 and nil for nothing.
func (r *renderer) blockSizes(in *kubevirtv1.Disk) (logical, physical uint, granularity *uint) {
	if in.BlockSize == nil {
		return 0, 0, nil
	}
	if custom := in.BlockSize.Custom; custom != nil {
		return custom.Logical, custom.Physical, custom.DiscardGranularity
	}
	volume := r.volume(in.Name)
	if !enabled(in.BlockSize.MatchVolume) || volume == nil || volume.Path == "" {
		return 0, 0, nil
	}
	logical, physical = volume.LogicalBlock, volume.PhysicalBlock
	if logical == 0 && !volume.Block {
		logical, physical = fileBlock, fileBlock
	}
	return logical, physical, nil
}

func (r *renderer) blockIO(in *kubevirtv1.Disk, alias string) {
	logical, physical, granularity := r.blockSizes(in)
	attribute := func(n uint) string {
		if n == 0 {
			return ""
		}
		return decimal(n)
	}
	if logical != 0 || physical != 0 {
		r.leaf("blockio", "logical_block_size", attribute(logical), "physical_block_size", attribute(physical))
	}
	if granularity != nil { // libvirt has no attribute for it before version 10
		r.overrides = append(r.overrides, override{alias: alias, property: "discard_granularity", value: decimal(*granularity)})
	}
}
