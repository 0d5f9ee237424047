package plan

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// sizeWords writes a size in bytes as people do.
func sizeWords(bytes uint64) string {
	return resource.NewQuantity(int64(min(bytes, 1<<62)), resource.BinarySI).String() //nolint:gosec // bounded
}

func diskNamed(m *machine, name string) *kubevirtv1.Disk {
	for i := range m.spec.Domain.Devices.Disks {
		if disk := &m.spec.Domain.Devices.Disks[i]; disk.Name == name {
			return disk
		}
	}
	return nil
}

func interfaceNamed(m *machine, name string) *kubevirtv1.Interface {
	for i := range m.spec.Domain.Devices.Interfaces {
		if in := &m.spec.Domain.Devices.Interfaces[i]; in.Name == name {
			return in
		}
	}
	return nil
}

func volumeNamed(m *machine, name string) *kubevirtv1.Volume {
	for i := range m.spec.Volumes {
		if volume := &m.spec.Volumes[i]; volume.Name == name {
			return volume
		}
	}
	return nil
}

// once asks about a device that comes or goes, which several changes are about, once.
func (j *judge) once(list, name string, ask func() verdict) verdict {
	for i := range j.plugged {
		if known := &j.plugged[i]; known.name == name && known.list == list {
			return known.found
		}
	}
	found := ask()
	j.plugged = append(j.plugged, plugged{list, name, found})
	return found
}

// slot takes a PCI slot of the running guest.
func (j *judge) slot() verdict {
	if j.room == nil || j.slots >= j.room.FreePCISlots {
		return no("the guest has no free PCI slot")
	}
	j.slots++
	return verdict{}
}

// diskPlug judges the changes of disks: whole ones come and go.
func diskPlug(j *judge, change *Change) verdict {
	name, whole := elementOf(change.Path, pathDisks)
	if change.Path == pathDisks+".order" {
		return no("the order of disks decides about their device names")
	}
	if !whole || name == "" {
		return asTheRowSays
	}
	return j.disk(name)
}

// disk judges a disk that comes or goes.
func (j *judge) disk(name string) verdict {
	return j.once(pathDisks, name, func() verdict {
		before, after := diskNamed(j.before, name), diskNamed(j.after, name)
		switch {
		case before == nil && after != nil:
			return j.attach(after)
		case before != nil && after == nil:
			return j.detach(before)
		}
		return asTheRowSays
	})
}

func (j *judge) attach(disk *kubevirtv1.Disk) verdict {
	if found := j.pluggable(disk); found.fails {
		return found
	}
	volume := volumeNamed(j.after, disk.Name)
	switch {
	case volume == nil || !holdsImage(volume):
		return no("what is made for the guest to read at its boot is not plugged in")
	case disk.BootOrder != nil || disk.Disk.PciAddress != "" || disk.Tag != "" || disk.BlockSize != nil || on(disk.DedicatedIOThread):
		return no("its boot order, PCI address, tag, block size or I/O thread is laid out when the guest is started")
	}
	switch disk.Disk.Bus {
	case kubevirtv1.DiskBusSCSI:
		if j.before.spec.Domain.Devices.DisableHotplug && !usesBus(j.before.spec, kubevirtv1.DiskBusSCSI) {
			return no("the guest was started without a SCSI controller")
		}
	case kubevirtv1.DiskBusUSB:
		if !hasUSB(j.before.spec) {
			return no("the guest was started without USB")
		}
	default:
		if found := j.slot(); found.fails {
			return found
		}
	}
	return j.diskMoves()
}

// pluggable says why a disk cannot be plugged in or out of a running guest, whichever it is.
func (j *judge) pluggable(disk *kubevirtv1.Disk) verdict {
	if disk.Disk == nil {
		return no("only plain disks are plugged in and out, no CD-ROM and no LUN")
	}
	switch disk.Disk.Bus {
	case kubevirtv1.DiskBusVirtio, kubevirtv1.DiskBusSCSI, kubevirtv1.DiskBusUSB:
	default:
		return no("a disk on %s cannot be plugged; virtio and scsi can", disk.Disk.Bus)
	}
	if j.before.spec.Domain.IOThreadsPolicy != nil || j.after.spec.Domain.IOThreadsPolicy != nil ||
		slices.ContainsFunc(j.before.spec.Domain.Devices.Disks, ownThread) || slices.ContainsFunc(j.after.spec.Domain.Devices.Disks, ownThread) {
		return no("threads for I/O are laid out when the guest is started")
	}
	return verdict{}
}

func ownThread(disk kubevirtv1.Disk) bool { return on(disk.DedicatedIOThread) }

// deviceName is a disk with its place among those whose device names begin alike: vda, vdb, sda.
type deviceName struct {
	disk   string
	virtio bool
	place  int
}

// diskMoves is the verdict about a disk that can be plugged: what it does to the names of others is worth a remark.
func (j *judge) diskMoves() verdict {
	found := verdict{need: LiveDisk}
	if !slices.Equal(j.deviceNames(j.before, j.after), j.deviceNames(j.after, j.before)) {
		found.note = "at the next boot other disks have other device names, which follow the order in the manifest"
	}
	return found
}

// deviceNames returns what the disks are called that both sides have.
func (j *judge) deviceNames(of, other *machine) []deviceName {
	out := make([]deviceName, 0, len(of.spec.Domain.Devices.Disks))
	var places [2]int
	for i := range of.spec.Domain.Devices.Disks {
		disk := &of.spec.Domain.Devices.Disks[i]
		virtio := disk.Disk != nil && disk.Disk.Bus == kubevirtv1.DiskBusVirtio
		family := 0
		if virtio {
			family = 1
		}
		if diskNamed(other, disk.Name) != nil {
			out = append(out, deviceName{disk.Name, virtio, places[family]})
		}
		places[family]++
	}
	return out
}

func (j *judge) detach(disk *kubevirtv1.Disk) verdict {
	if found := j.pluggable(disk); found.fails {
		return found
	}
	return j.diskMoves()
}

func usesBus(spec *kubevirtv1.VirtualMachineInstanceSpec, bus kubevirtv1.DiskBus) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(disk kubevirtv1.Disk) bool {
		return disk.Disk != nil && disk.Disk.Bus == bus || disk.LUN != nil && disk.LUN.Bus == bus || disk.CDRom != nil && disk.CDRom.Bus == bus
	})
}

// hasUSB reports whether a guest has a USB controller: only one that something is plugged into from the start.
func hasUSB(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	return usesBus(spec, kubevirtv1.DiskBusUSB) || slices.ContainsFunc(spec.Domain.Devices.Inputs, func(input kubevirtv1.Input) bool {
		return input.Bus == kubevirtv1.InputBusUSB
	})
}

// holdsImage tells the volumes that are an image of a disk from those that are made for the guest to read.
func holdsImage(volume *kubevirtv1.Volume) bool {
	switch {
	case volume.ContainerDisk != nil, volume.EmptyDisk != nil, volume.HostDisk != nil, volume.PersistentVolumeClaim != nil,
		volume.DataVolume != nil, volume.Ephemeral != nil:
		return true
	}
	return false
}

// holdsFiles tells the volumes whose files a guest reads whenever it likes: they can be exchanged where they are a CD-ROM.
func holdsFiles(volume *kubevirtv1.Volume) bool {
	return volume.ConfigMap != nil || volume.Secret != nil || volume.ServiceAccount != nil || volume.DownwardAPI != nil
}

// volumePlug judges the changes of volumes: they come and go with their disk, or are the medium of a CD-ROM.
func volumePlug(j *judge, change *Change) verdict {
	name, whole := elementOf(change.Path, pathVolumes)
	if name == "" {
		return asTheRowSays
	}
	return j.volume(name, whole)
}

// volume judges a change of a volume or of its claim.
func (j *judge) volume(name string, whole bool) verdict {
	before, after := diskNamed(j.before, name), diskNamed(j.after, name)
	switch {
	case before != nil && after != nil && before.CDRom != nil && after.CDRom != nil:
		if volume := volumeNamed(j.after, name); volume != nil && !holdsImage(volume) && !holdsFiles(volume) {
			return no("what is made for the guest to read at its boot is not exchanged while it runs")
		}
		return verdict{need: LiveMedia}
	case j.loses(name, after):
		return verdict{fails: true, reason: "what the guest wrote to the disk goes with it", loses: true}
	case whole && (before == nil) != (after == nil):
		return j.disk(name)
	}
	return asTheRowSays
}

// loses reports whether a disk goes, or becomes another kind of disk, that nobody keeps for its machine: container disks and ephemeral volumes that
// the guest could write to.
func (j *judge) loses(name string, after *kubevirtv1.Disk) bool {
	was, is := volumeNamed(j.before, name), volumeNamed(j.after, name)
	disk := diskNamed(j.before, name)
	if was == nil || was.ContainerDisk == nil && was.Ephemeral == nil || disk == nil || disk.CDRom != nil {
		return false
	}
	if disk.Disk != nil && disk.Disk.ReadOnly || disk.LUN != nil && disk.LUN.ReadOnly {
		return false
	}
	if after == nil || is == nil {
		return true
	}
	kind, _ := domainxml.VolumeKind(*was)
	now, _ := domainxml.VolumeKind(*is)
	return kind != now
}

// mediaChange judges what is below a volume's source.
func mediaChange(j *judge, change *Change) verdict {
	name, _ := elementOf(change.Path, pathVolumes)
	return j.volume(name, false)
}

// mediumContent judges what a Secret or ConfigMap holds, by the name of the volume that is made of it.
func mediumContent(j *judge, change *Change) verdict {
	_, name, _ := strings.Cut(change.Path, ".") // names of volumes are plain words
	found := j.volume(name, false)
	if found.fails && found.reason == "" {
		found.reason = "the guest reads it when it boots"
	}
	return found
}

// claimPlug judges the claims of volumes.
func claimPlug(j *judge, change *Change) verdict {
	name, whole := elementOf(change.Path, pathClaims)
	if name == "" {
		return asTheRowSays
	}
	return j.volume(name, whole)
}

// diskGrows holds for a disk that gets larger.
func diskGrows(j *judge, change *Change) verdict {
	name, _ := elementOf(change.Path, pathVolumes)
	if name == "" {
		name, _ = elementOf(change.Path, pathClaims)
	}
	disk := diskNamed(j.before, name)
	before, after := quantity(change.Before), quantity(change.After)
	switch volume := volumeNamed(j.after, name); {
	case disk == nil || disk.CDRom != nil || diskNamed(j.after, name) == nil || volume == nil:
		return asTheRowSays
	case before == nil || after == nil || after.Cmp(*before) < 0:
		return asTheRowSays
	case volume.Ephemeral != nil:
		return no("an ephemeral disk gets its size when the guest is started")
	case j.before.claims[name].Path != "" && j.after.claims[name].Path == j.before.claims[name].Path:
		return verdict{nothing: true, reason: "the disk is the host's, and keeps its size"}
	case j.before.claims[name].Shared || j.after.claims[name].Shared:
		return no("other machines may have the claim open")
	}
	return verdict{need: LiveDiskGrow}
}

// interfacePlug judges the changes of interfaces: whole ones come and go.
func interfacePlug(j *judge, change *Change) verdict {
	name, whole := elementOf(change.Path, pathInterfaces)
	if change.Path == pathInterfaces+".order" {
		return no("the order of interfaces decides about their slots")
	}
	if !whole || name == "" {
		return asTheRowSays
	}
	return j.card(name)
}

// card judges an interface that comes or goes. One whose state is absent is not there.
func (j *judge) card(name string) verdict {
	return j.once(pathInterfaces, name, func() verdict {
		before, after := present(interfaceNamed(j.before, name)), present(interfaceNamed(j.after, name))
		switch {
		case before == nil && after == nil:
			return verdict{} // an absent one comes or goes: nothing is plugged
		case before != nil && after != nil:
			return asTheRowSays
		}
		in := before
		if in == nil {
			in = after
		}
		switch {
		case in.SRIOV != nil:
			return no("a device of the host is handed over when the guest is started")
		case in.PasstBinding != nil:
			return no("passt needs memory that is shared from the start on")
		case in.Model != "" && in.Model != kubevirtv1.VirtIO && in.Model != "e1000e":
			return no("an interface of model %s cannot be plugged; virtio and e1000e can", in.Model)
		case after != nil && (in.BootOrder != nil || in.PciAddress != "" || in.Tag != ""):
			return no("its boot order, PCI address or tag is laid out when the guest is started")
		}
		if after != nil {
			if found := j.slot(); found.fails {
				return found
			}
		}
		return verdict{need: LiveInterface}
	})
}

func present(in *kubevirtv1.Interface) *kubevirtv1.Interface {
	if in == nil || in.State == kubevirtv1.InterfaceStateAbsent {
		return nil
	}
	return in
}

// linkState judges the state of an interface.
func linkState(j *judge, change *Change) verdict {
	name, _ := elementOf(change.Path, pathInterfaces)
	before, after := interfaceNamed(j.before, name), interfaceNamed(j.after, name)
	if before == nil || after == nil {
		return asTheRowSays
	}
	if present(before) != nil && present(after) != nil {
		return verdict{need: LiveLink}
	}
	return j.card(name)
}

// networkPlug judges networks: they come and go with their interface.
func networkPlug(j *judge, change *Change) verdict {
	name, whole := elementOf(change.Path, pathNetworks)
	if !whole || name == "" {
		return asTheRowSays
	}
	before, after := interfaceNamed(j.before, name), interfaceNamed(j.after, name)
	if (before == nil) != (after == nil) {
		return j.card(name)
	}
	return asTheRowSays
}
