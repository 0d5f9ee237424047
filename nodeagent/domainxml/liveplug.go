package domainxml

import (
	"slices"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// detachments takes the disks and network cards away that nobody wants any more.
func (c *liveChange) detachments() {
	kept := map[*node]bool{}
	for _, partner := range c.partner {
		kept[partner.norm] = true
	}
	for _, present := range slices.Clone(c.present) {
		if kept[present.norm] || (present.norm.name != "disk" && present.norm.name != "interface") {
			continue
		}
		name := present.raw.name + " " + c.nameOf(present.raw)
		if bus := present.raw.child("target").get("bus"); present.raw.name == "disk" && !pluggable(bus) {
			c.refuse("%s is on the bus %s, from which nothing can be taken while the guest runs", name, bus)
		} else {
			c.detach = append(c.detach, Operation{Kind: OperationDetach, Text: "taking away " + name, Device: present.raw.document()})
		}
		if onPCI(present.raw) {
			c.freeSlots++
		}
		c.drop(present)
	}
}

// drop takes a device out of what is compared.
func (c *liveChange) drop(gone device) {
	devices := c.have.child("devices")
	devices.children = slices.DeleteFunc(devices.children, func(child *node) bool { return child == gone.norm })
	c.present = slices.DeleteFunc(c.present, func(present device) bool { return present == gone })
}

// nameOf is what a device of the guest is called in its manifest, or else in the domain.
func (c *liveChange) nameOf(element *node) string {
	if name, ok := strings.CutPrefix(element.child("alias").get("name"), "ua-"); ok {
		return name
	}
	if element.name == "disk" {
		return element.child("target").get("dev")
	}
	return element.child("mac").get("address")
}

// pluggable reports whether disks of a bus come and go while a guest runs.
func pluggable(bus string) bool {
	switch kubevirtv1.DiskBus(bus) {
	case kubevirtv1.DiskBusVirtio, kubevirtv1.DiskBusSCSI, kubevirtv1.DiskBusUSB:
		return true
	}
	return false
}

// updates changes what the guest has and keeps: media of CD-ROM drives, sizes of disks, links of network cards.
func (c *liveChange) updates() {
	at := 0
	for _, wanted := range c.wanted {
		partner, found := c.partner[wanted.norm]
		switch {
		case wanted.norm.name == "interface" && found:
			c.link(wanted, partner)
		case wanted.norm.name == "disk":
			name := c.nameOf(wanted.raw)
			if c.machine.Kept == nil { // else the domain has disks that the manifest does not say
				name = c.machine.Spec.Domain.Devices.Disks[at].Name // they are rendered in this order
			}
			at++
			if !found {
				continue
			}
			if wanted.norm.get("device") == "cdrom" && partner.norm.get("device") == "cdrom" {
				c.medium(name, wanted, partner)
			} else {
				c.grow(name, partner)
			}
		}
	}
}

// link plugs the cable of a network card in or out.
func (c *liveChange) link(wanted, present device) {
	want, have := linkOf(wanted.norm), linkOf(present.norm)
	if want == have {
		return
	}
	card := present.raw.clone()
	card.without("link")
	card.children = append(card.children, &node{name: "link"})
	card.child("link").set("state", want)
	c.update = append(c.update, Operation{
		Kind: OperationUpdate, Text: "setting the link of interface " + c.nameOf(present.raw) + " " + want, Device: card.document(),
	})
	present.norm.replace("link", wanted.norm)
}

func linkOf(card *node) string {
	if card.child("link").get("state") == "down" {
		return "down"
	}
	return "up"
}

// medium changes what is in a CD-ROM drive.
func (c *liveChange) medium(name string, wanted, present device) {
	format := func(disk *node) string {
		if kind := disk.child("driver").get("type"); kind != "" && sourceOf(disk) != "" {
			return kind
		}
		return "raw"
	}
	if sourceOf(wanted.norm) == sourceOf(present.norm) && format(wanted.norm) == format(present.norm) {
		c.remake(name, present)
		return
	}
	drive := present.raw.clone()
	drive.set("type", wanted.raw.get("type"))
	drive.replace("source", wanted.raw)
	drive.replace("backingStore", wanted.raw)
	text := "inserting the medium of " + name
	if sourceOf(wanted.raw) == "" {
		text = "ejecting the medium of " + name
	}
	for _, driver := range []*node{drive.child("driver"), present.norm.child("driver")} {
		if driver != nil {
			driver.set("type", wanted.raw.child("driver").get("type"))
		}
	}
	if target := drive.child("target"); target != nil {
		target.drop("tray")
	}
	c.update = append(c.update, Operation{Kind: OperationUpdate, Text: text, Device: drive.document()})
	present.norm.set("type", wanted.norm.get("type"))
	present.norm.replace("source", wanted.norm)
	present.norm.replace("backingStore", wanted.norm)
}

// remake has the guest read a medium anew that was made anew under the same name: QEMU has the old file open, and libvirt takes
// an update to the same name for none. Of what is not exchanged while guests run, nobody noted what is on it.
func (c *liveChange) remake(name string, present device) {
	now, before := volumeOf(c.machine.Volumes, name), volumeOf(c.was.Volumes, name)
	switch {
	case now == nil || before == nil || now.Path != before.Path:
		return
	case now.Kind == before.Kind && (now.Content == before.Content || before.Content == ""):
		return
	}
	drive := present.raw.clone()
	if target := drive.child("target"); target != nil {
		target.drop("tray")
	}
	empty := drive.clone()
	empty.without("source")
	empty.without("backingStore")
	c.update = append(c.update, Operation{
		Kind: OperationReinsert, Text: "exchanging the medium of " + name, Device: drive.document(), Empty: empty.document(),
	})
}

// grow lets a disk become as large as it is wanted.
func (c *liveChange) grow(name string, present device) {
	now, before := volumeOf(c.machine.Volumes, name), volumeOf(c.was.Volumes, name)
	if now == nil || before == nil || now.Capacity == before.Capacity || now.Capacity == 0 || before.Capacity == 0 || now.Path != before.Path {
		return
	}
	if now.Capacity < before.Capacity {
		c.refuse("disk %s has %d bytes and cannot shrink to %d", name, before.Capacity, now.Capacity)
		return
	}
	c.update = append(c.update, Operation{
		Kind: OperationResize, Text: "growing disk " + name, Target: present.raw.child("target").get("dev"), Bytes: uint64(now.Capacity), //nolint:gosec // positive
	})
}

func volumeOf(volumes []Volume, name string) *Volume {
	at := slices.IndexFunc(volumes, func(volume Volume) bool { return volume.Name == name })
	if at < 0 {
		return nil
	}
	return &volumes[at]
}

// attachments plugs in the disks and network cards that the guest does not have.
func (c *liveChange) attachments() {
	for _, wanted := range c.wanted {
		if _, found := c.partner[wanted.norm]; found || (wanted.norm.name != "disk" && wanted.norm.name != "interface") {
			continue
		}
		name := wanted.raw.name + " " + c.nameOf(wanted.raw)
		if reason := c.cannotPlug(wanted.raw); reason != "" {
			c.refuse("%s %s", name, reason)
		} else if !onPCI(wanted.raw) || c.takeSlot(name) {
			c.attach = append(c.attach, Operation{Kind: OperationAttach, Text: "plugging in " + name, Device: c.placed(wanted.raw).document()})
		}
		devices := c.have.child("devices")
		devices.children = append(devices.children, wanted.norm)
	}
}

// cannotPlug says why a device cannot be plugged into a running guest.
func (c *liveChange) cannotPlug(element *node) string {
	if element.name == "interface" {
		switch model := element.child("model").get("type"); {
		case strings.HasPrefix(model, "virtio"), model == "e1000e", model == "igb":
			return ""
		default:
			return "has the model " + model + ", which can only be plugged in at a restart; virtio and e1000e can be while the guest runs"
		}
	}
	bus := element.child("target").get("bus")
	controller := func(kind string) bool {
		return slices.ContainsFunc(c.present, func(present device) bool {
			return present.raw.name == "controller" && present.raw.get("type") == kind && present.raw.get("model") != "none"
		})
	}
	switch {
	case !pluggable(bus):
		return "is on the bus " + bus + ", into which nothing can be plugged while the guest runs; virtio, scsi and usb take disks then"
	case bus == "scsi" && !controller("scsi"):
		return "is on the bus scsi, and the guest was started without a SCSI controller"
	case bus == "usb" && !controller("usb"):
		return "is on the bus usb, and the guest was started without a USB controller"
	}
	return ""
}

// takeSlot takes one of the guest's free PCI slots.
func (c *liveChange) takeSlot(name string) bool {
	if c.freeSlots <= 0 {
		c.refuse("no PCI slot is free for %s; a restart gives the guest new ones", name)
		return false
	}
	c.freeSlots--
	return true
}

// placed gives a disk a name, and on SCSI a unit, that nothing in the guest has: those of its place in the manifest may be
// taken by what came before it.
func (c *liveChange) placed(element *node) *node {
	if element.name != "disk" {
		return element
	}
	out := element.clone()
	target, address := out.child("target"), out.child("address")
	names, units := map[string]bool{}, map[string]bool{}
	for _, present := range c.present {
		if present.raw.name != "disk" {
			continue
		}
		names[present.raw.child("target").get("dev")] = true
		if place := present.raw.child("address"); present.raw.child("target").get("bus") == "scsi" {
			units[place.get("unit")] = true
		}
	}
	scsi := target.get("bus") == "scsi" && address != nil
	free := func(name, unit string) bool { return !names[name] && !(scsi && units[unit]) }
	if free(target.get("dev"), address.get("unit")) {
		c.present = append(c.present, device{raw: out, norm: out})
		return out
	}
	for n := 0; ; n++ {
		name := targetName(target.get("dev")[:2], n)
		if unit := strconv.Itoa(n); free(name, unit) {
			target.set("dev", name)
			if scsi {
				address.set("unit", unit)
			}
			c.present = append(c.present, device{raw: out, norm: out})
			return out
		}
	}
}
