package domainxml

import (
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"
	"libvirt.org/go/libvirtxml"
)

// ioThread is the number of the one IO thread that disks with dedicatedIOThread share.
const ioThread = 1

// needsIOThread reports whether any disk asks for an IO thread.
func (r *renderer) needsIOThread() bool {
	for i := range r.spec.Domain.Devices.Disks {
		if dedicated := r.spec.Domain.Devices.Disks[i].DedicatedIOThread; dedicated != nil && *dedicated {
			return true
		}
	}
	return false
}

// virtioModel is the model of every virtio device: KubeVirt gives modern guests the non-transitional one.
func (r *renderer) virtioModel() string {
	if old := r.spec.Domain.Devices.UseVirtioTransitional; old != nil && *old {
		return "virtio-transitional"
	}
	return "virtio-non-transitional"
}

// targets hands out device names per prefix: vda, vdb; sda, sdb, ... sdz, sdaa.
type targets map[string]int

func (t targets) next(bus string) string {
	prefix := "sd"
	if bus == "virtio" {
		prefix = "vd"
	}
	n := t[prefix]
	t[prefix]++
	name := ""
	for n++; n > 0; n = (n - 1) / 26 {
		name = string(rune('a'+(n-1)%26)) + name
	}
	return prefix + name
}

func (r *renderer) disks() ([]libvirtxml.DomainDisk, error) {
	names := targets{}
	var out []libvirtxml.DomainDisk
	for i := range r.spec.Domain.Devices.Disks {
		disk, err := r.disk(&r.spec.Domain.Devices.Disks[i], names)
		if err != nil {
			return nil, err
		}
		out = append(out, *disk)
	}
	return out, nil
}

func (r *renderer) disk(in *kubevirtv1.Disk, names targets) (*libvirtxml.DomainDisk, error) {
	volume, ok := r.volumes[in.Name]
	if !ok {
		return nil, fmt.Errorf("rendering %s: disk %s: its volume was not prepared", r.address, in.Name)
	}
	out := &libvirtxml.DomainDisk{
		Serial: in.Serial,
		Alias:  &libvirtxml.DomainAlias{Name: "ua-" + in.Name},
		Source: &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: volume.Path}},
		Driver: r.driver(in, volume),
	}
	var bus kubevirtv1.DiskBus
	switch {
	case in.CDRom != nil:
		out.Device, bus, out.ReadOnly = "cdrom", in.CDRom.Bus, &libvirtxml.DomainDiskReadOnly{}
	case in.LUN != nil:
		out.Device, bus = "lun", in.LUN.Bus
		if in.LUN.ReadOnly {
			out.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
		}
	default:
		out.Device = "disk"
		if in.Disk != nil {
			bus = in.Disk.Bus
			if in.Disk.ReadOnly {
				out.ReadOnly = &libvirtxml.DomainDiskReadOnly{}
			}
		}
	}
	if bus == "" {
		// KubeVirt's default is sata, the one bus that every guest drives.
		bus = kubevirtv1.DiskBusSATA
	}
	if bus == kubevirtv1.DiskBusVirtio {
		out.Model = r.virtioModel()
	}
	out.Target = &libvirtxml.DomainDiskTarget{Dev: names.next(string(bus)), Bus: string(bus)}
	if in.Disk != nil && in.Disk.PciAddress != "" {
		address, err := pciAddress(in.Disk.PciAddress)
		if err != nil {
			return nil, fmt.Errorf("rendering %s: disk %s: %w", r.address, in.Name, err)
		}
		out.Address = address
	}
	if in.CDRom != nil && in.CDRom.Tray == kubevirtv1.TrayStateOpen {
		out.Target.Tray = string(in.CDRom.Tray) // libvirt leaves the default, closed, out
	}
	if in.BootOrder != nil {
		out.Boot = &libvirtxml.DomainDeviceBoot{Order: *in.BootOrder}
	}
	if in.Shareable != nil && *in.Shareable {
		out.Shareable = &libvirtxml.DomainDiskShareable{}
	}
	if in.BlockSize != nil && in.BlockSize.Custom != nil {
		out.BlockIO = &libvirtxml.DomainDiskBlockIO{
			LogicalBlockSize: in.BlockSize.Custom.Logical, PhysicalBlockSize: in.BlockSize.Custom.Physical,
		}
	}
	if volume.Backing != "" {
		out.BackingStore = backing(volume)
	}
	return out, nil
}

// backing names the whole chain, so that QEMU follows no file name a guest could have written into an image.
func backing(volume Volume) *libvirtxml.DomainDiskBackingStore {
	return &libvirtxml.DomainDiskBackingStore{
		Format:       &libvirtxml.DomainDiskFormat{Type: volume.BackingFormat},
		Source:       &libvirtxml.DomainDiskSource{File: &libvirtxml.DomainDiskSourceFile{File: volume.Backing}},
		BackingStore: &libvirtxml.DomainDiskBackingStore{},
	}
}

func (r *renderer) driver(in *kubevirtv1.Disk, volume Volume) *libvirtxml.DomainDiskDriver {
	out := &libvirtxml.DomainDiskDriver{
		Name: "qemu", Type: volume.Format, Cache: string(in.Cache), IO: string(in.IO), ErrorPolicy: "stop", Discard: "unmap",
	}
	if in.IO == "default" {
		out.IO = ""
	}
	if out.Cache == "" {
		out.Cache = string(kubevirtv1.CacheNone)
		if volume.Cached {
			out.Cache = string(kubevirtv1.CacheWriteThrough)
		}
	}
	if in.ErrorPolicy != nil {
		out.ErrorPolicy = string(*in.ErrorPolicy)
	}
	if in.DedicatedIOThread != nil && *in.DedicatedIOThread {
		thread := uint(ioThread)
		out.IOThread = &thread
	}
	if multi := r.spec.Domain.Devices.BlockMultiQueue; multi != nil && *multi && in.Disk != nil && in.Disk.Bus == kubevirtv1.DiskBusVirtio {
		queues := r.vcpus()
		out.Queues = &queues
	}
	return out
}
