package domainxml

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// pluggedMemory is the alias of the memory that a running guest was given: one virtio-mem device, whose requested size goes
// up and down. KubeVirt calls it so as well.
const pluggedMemory = "ua-virtio-mem"

// memoryBlock is the size of the pieces, in KiB: the huge pages of x86.
const memoryBlock = 2048

// guestMemory is how much memory a running guest has, in KiB.
type guestMemory struct {
	// boot is what it was started with, most what it may grow to (0 for no more).
	boot, most uint64
	// device is the virtio-mem device, nil without one; requested is what was asked for, given what the guest has put to use.
	device                 *node
	size, requested, given uint64
	// balloon is what of boot the guest has left; boot without a balloon.
	balloon    uint64
	hasBalloon bool
	// untold says that what was plugged in may not be counted yet: libvirt does so at an event of the balloon's.
	untold bool
}

// memoryOfGuest reads a running domain that is normalised.
func memoryOfGuest(domain *node) guestMemory {
	text := func(n *node) uint64 {
		if n == nil {
			return 0
		}
		return kibOf(n.text)
	}
	out := guestMemory{most: text(domain.child("maxMemory"))}
	for _, element := range domain.devices() {
		target := element.child("target")
		switch {
		case element.name == "memballoon":
			out.hasBalloon = element.get("model") != "none"
		case element.name == "memory" && element.child("alias").get("name") == pluggedMemory:
			out.device, out.size, out.requested = element, text(target.child("size")), text(target.child("requested"))
			out.given = out.requested
			if current := target.child("current"); current != nil {
				out.given = text(current)
			}
		}
	}
	out.boot = text(domain.child("memory")) - min(out.size, text(domain.child("memory")))
	// libvirt counts what the guest has of virtio-mem to the balloon's memory.
	now := text(domain.child("currentMemory"))
	out.balloon = min(now-min(out.given, now), out.boot)
	out.untold = out.given > 0 && now == out.boot
	return out
}

// alignMemory writes a running guest's memory as that of a guest that was started with all of it: one that was started with
// 256 MiB and got 128 MiB runs what a rendering with 384 MiB says.
func alignMemory(want, have *node) {
	memory := memoryOfGuest(have)
	if devices := have.child("devices"); devices != nil {
		devices.children = slices.DeleteFunc(devices.children, func(child *node) bool { return child == memory.device })
	}
	now := memory.balloon + memory.requested
	if element := want.child("memory"); memory.untold && element != nil && inMiB(kibOf(element.text)) == memory.boot+memory.requested {
		now = memory.boot + memory.requested
	}
	setMemory(have, memory.boot+memory.requested, now)
}

// setMemory writes how much memory a guest was started with and how much of it it has, in KiB.
func setMemory(domain *node, total, now uint64) {
	memory, current, numa := domain.child("memory"), domain.child("currentMemory"), domain.child("cpu").child("numa")
	if memory == nil || current == nil {
		return
	}
	if numa != nil && len(numa.children) > 0 { // plugged memory belongs to the first cell
		others := uint64(0)
		for _, cell := range numa.children[1:] {
			others += kibOf(cell.get("memory"))
		}
		numa.children[0].set("memory", strconv.FormatUint(total-min(others, total), 10)+" KiB")
	}
	memory.text, current.text = strconv.FormatUint(total, 10)+" KiB", strconv.FormatUint(now, 10)+" KiB"
}

// inMiB rounds KiB up to what guests are started with: whole MiB.
func inMiB(kib uint64) uint64 { return (kib + 1023) / 1024 * 1024 }

// memory gives the guest memory or takes some back.
func (c *liveChange) memory() {
	element := c.want.child("memory")
	if element == nil {
		return
	}
	raw := c.raw.clone()
	normalise(raw)
	have := memoryOfGuest(raw)
	want := inMiB(kibOf(element.text))
	plugged, left := have.divide(want)
	var operations []Operation
	if plugged != have.requested {
		operations = append(operations, c.plugMemory(have, plugged))
	}
	switch {
	case left == have.balloon, left == have.boot && have.untold:
	case have.hasBalloon:
		operations = append(operations, Operation{Kind: OperationMemory, Text: fmt.Sprintf("setting the balloon to %d MiB", left>>10), KiB: left})
	default:
		c.refuse("the guest has no balloon (autoattachMemBalloon: false), so that it can give memory back only at a restart")
	}
	if plugged > have.requested {
		slices.Reverse(operations) // what the balloon has comes back before more is plugged in
	}
	c.size = append(c.size, operations...)
	now := kibOf(element.text)
	setMemory(c.have, now, now)
	if theirs, ours := c.want.child("cpu").child("numa"), c.have.child("cpu").child("numa"); theirs != nil && ours != nil && len(theirs.children) == len(ours.children) {
		for i, cell := range theirs.children {
			ours.children[i].set("memory", cell.get("memory"))
		}
	}
}

// divide says how much memory is to be plugged in and how much the balloon is to leave of the rest, in KiB, so that the guest
// has as much as is wanted. What was plugged in stays while the balloon can take as much: a guest gives pages to its balloon
// at any time, and a whole block only when nothing in it is in use.
func (m *guestMemory) divide(want uint64) (plugged, left uint64) {
	switch {
	case want == inMiB(m.boot) && m.requested == 0:
		return 0, m.boot
	case want >= m.boot+m.requested:
		return want - m.boot, m.boot
	case m.hasBalloon && want >= m.requested+m.boot/8:
		return m.requested, want - m.requested
	case want > m.boot:
		return want - m.boot, m.boot
	}
	return 0, want
}

// plugMemory asks for another size of the memory that is plugged in, in KiB.
func (c *liveChange) plugMemory(have guestMemory, plugged uint64) Operation {
	if reason := c.cannotPlugMemory(have, plugged); reason != "" {
		c.refuse("%s", reason)
		return Operation{}
	}
	text := fmt.Sprintf("setting the plugged-in memory to %d MiB, beside the %d MiB that the guest was started with", plugged>>10, have.boot>>10)
	if have.device == nil {
		c.takeSlot("more memory")
		room := (have.most - have.boot) / memoryBlock * memoryBlock
		return Operation{Kind: OperationAttach, Text: text, Device: virtioMem(room, plugged)}
	}
	at := slices.IndexFunc(c.present, func(present device) bool {
		return present.raw.name == "memory" && present.raw.child("alias").get("name") == pluggedMemory
	})
	element := c.present[at].raw.clone()
	if requested := element.child("target").child("requested"); requested != nil {
		requested.set("unit", "KiB")
		requested.text = strconv.FormatUint(plugged, 10)
	}
	return Operation{Kind: OperationUpdate, Text: text, Device: element.document()}
}

// cannotPlugMemory says why a guest cannot have so much memory beside what it was started with.
func (c *liveChange) cannotPlugMemory(have guestMemory, plugged uint64) string {
	arch := c.raw.child("os").child("type").get("arch")
	switch {
	case plugged > have.requested && have.most == 0:
		return fmt.Sprintf("the guest was started with %d MiB of memory and without memory.maxGuest to grow to", have.boot>>10)
	case plugged > have.requested && have.boot+plugged > have.most, have.device != nil && plugged > have.size:
		return fmt.Sprintf("the guest was started to have at most %d MiB of memory (memory.maxGuest)", have.most>>10)
	case plugged%memoryBlock != 0:
		return fmt.Sprintf("memory is plugged in pieces of %d MiB; the guest was started with %d MiB", memoryBlock>>10, have.boot>>10)
	case have.device != nil:
	case arch != "x86_64":
		return "memory can be plugged into running guests of amd64 only"
	case c.raw.child("memoryBacking").child("hugepages") != nil:
		return "memory on huge pages can only be added at a restart"
	}
	return ""
}

// virtioMem is the memory device of a guest, sizes in KiB.
func virtioMem(size, requested uint64) string {
	return fmt.Sprintf(`<memory model="virtio-mem"><target><size unit="KiB">%d</size><node>0</node><block unit="KiB">%d</block>`+
		`<requested unit="KiB">%d</requested></target><alias name="%s"/></memory>`, size, memoryBlock, requested, pluggedMemory)
}

// vcpus gives the guest vCPUs.
func (c *liveChange) vcpus() {
	wanted, have := c.want.child("vcpu"), c.have.child("vcpu")
	want, ok := number64(wanted.get("current"))
	now, known := number64(have.get("current"))
	if !ok || !known || want == now {
		return
	}
	most, _ := number64(have.text)
	switch {
	case want < now:
		c.refuse("the guest has %d vCPUs; vCPUs are taken away only at a restart", now)
	case want > most:
		c.refuse("the guest was started for at most %d vCPUs; cpu.maxSockets makes room for more at a restart", most)
	default:
		c.size = append(c.size, Operation{Kind: OperationVCPUs, Text: fmt.Sprintf("plugging in vCPUs (%d of %d)", want, most), VCPUs: uint(want)})
	}
	have.set("current", wanted.get("current"))
	if want > most {
		have.text = wanted.text
	}
}

// Headroom is what a running guest can be changed to without a restart.
type Headroom struct {
	MaxVCPUs uint
	// MaxMemory is up to how much memory can be plugged in, in bytes; 0 for none.
	MaxMemory uint64
	// Balloon is up to how much the balloon can give back, in bytes; 0 without a balloon.
	Balloon   uint64
	FreeSlots int
}

// HeadroomOf reads the XML of a running guest.
func HeadroomOf(live string) (Headroom, error) {
	domain, err := parseFast(live)
	if err != nil {
		return Headroom{}, fmt.Errorf("reading the running guest's XML: %w", err)
	}
	out := Headroom{FreeSlots: freeSlots(domain)}
	normalise(domain)
	memory := memoryOfGuest(domain)
	if vcpu := domain.child("vcpu"); vcpu != nil {
		if most, ok := number64(vcpu.text); ok {
			out.MaxVCPUs = uint(most)
		}
	}
	out.MaxMemory = memory.most << 10
	if memory.hasBalloon {
		out.Balloon = (memory.boot + memory.requested) << 10
	}
	return out, nil
}

// manySlots is what a machine has whose devices need no PCI slot.
const manySlots = 255

// freeSlots counts the PCI slots of a running domain into which something can be plugged.
func freeSlots(domain *node) int {
	ports, used, unplaced := map[uint64]bool{}, map[uint64]bool{}, 0
	slots := map[uint64]bool{}
	system := domain.child("os").child("type")
	for _, element := range domain.devices() {
		address := element.child("address")
		if element.name == "controller" && element.get("model") == rootPort {
			if index, ok := number64(element.get("index")); ok {
				ports[index] = true
			}
			continue
		}
		if address.get("type") == "pci" {
			bus, _ := number64(address.get("bus"))
			slot, _ := number64(address.get("slot"))
			if used[bus] = true; bus == 0 {
				slots[slot] = true
			}
		} else if onPCI(element) {
			unplaced++
		}
	}
	switch machine := machineFamily(system.get("machine")); {
	case len(ports) > 0 || strings.Contains(machine, "q35"):
	case system.get("arch") == "s390x":
		return manySlots
	default:
		return max(0, 31-len(slots)-unplaced)
	}
	free := -unplaced
	for port := range ports {
		if !used[port] {
			free++
		}
	}
	return max(0, free)
}

// onPCI reports whether a device takes a PCI slot of its own.
func onPCI(element *node) bool {
	switch element.name {
	case "disk":
		return element.child("target").get("bus") == "virtio"
	case "interface", "rng", "filesystem", "vsock":
		return true
	case "memory":
		return strings.HasPrefix(element.get("model"), "virtio-")
	case "memballoon":
		return element.get("model") != "none"
	case "hostdev":
		return element.get("type") == "pci"
	case "controller":
		kind := element.get("type")
		return kind == "scsi" || kind == "virtio-serial" || (kind == "usb" && element.get("model") != "none")
	}
	return false
}

// MemoryOnItsWay says what a running guest has still to do about the memory that was plugged in; empty for nothing.
func MemoryOnItsWay(live string) string {
	domain, err := parseFast(live)
	if err != nil {
		return ""
	}
	normalise(domain)
	switch memory := memoryOfGuest(domain); {
	case memory.given < memory.requested:
		return "the guest does not use the memory that was plugged in: it still boots, or has no driver for virtio-mem"
	case memory.given > memory.requested:
		return "the guest does not give back the memory that was plugged in: it needs it, or has no driver for virtio-mem"
	}
	return ""
}

// Sources returns the files and devices that the disks of a domain are made of, those below others included.
func Sources(document string) []string {
	domain, err := parseFast(document)
	if err != nil {
		return nil
	}
	var out []string
	for _, element := range domain.devices() {
		if element.name != "disk" {
			continue
		}
		element.eachChild(func(part *node) {
			for _, name := range []string{"file", "dev"} {
				if path := part.get(name); part.name == "source" && path != "" {
					out = append(out, path)
				}
			}
		})
	}
	return out
}
