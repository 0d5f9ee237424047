package domainxml

import (
	"fmt"
	"slices"
	"strconv"
)

// This file is what gitvirt knows of how the XML of a running guest differs from the definition that it was started with,
// beyond what completion.go knows of definitions. TestRealRunningGuestsShowNoDrift holds it.

// CompareRunning tells how a running guest differs from what was rendered for it, as Compare does for a definition. What
// libvirt and QEMU work out when a guest starts (the processor's features, labels, sockets), and what the guest itself
// decides (the tray of its CD-ROM, its clock), is no difference.
func CompareRunning(rendered, live string) ([]Difference, error) {
	want, err := parseFast(rendered)
	if err != nil {
		return nil, fmt.Errorf("reading rendered XML: %w", err)
	}
	have, err := parseFast(live)
	if err != nil {
		return nil, fmt.Errorf("reading the running guest's XML: %w", err)
	}
	return compareRunning(want, have), nil
}

// InspectRunning does for the XML of a running guest what Inspect does for a definition. The machine is the one that the
// guest's own record tells of.
func (r *Reader) InspectRunning(m Machine, live string) (differences []Difference, unread []string, err error) {
	have, err := parseFast(live)
	if err != nil {
		return nil, []string{whole + err.Error()}, fmt.Errorf("reading the running guest's XML: %w", err)
	}
	unread = r.unread(have, live)
	want, err := m.tree()
	if err != nil {
		return nil, unread, err
	}
	return compareRunning(want, have), unread, nil
}

// compareRunning compares two trees, and changes them.
func compareRunning(want, have *node) []Difference {
	withoutResolved(want, have)
	samePlaces(want, have)
	sameMemory(want, have)
	sameDrives(want, have)
	return compare(want, have)
}

// withoutResolved takes out of a running guest what its start made of the definition, or the guest of its devices.
func withoutResolved(want, have *node) {
	have.children = slices.DeleteFunc(have.children, func(child *node) bool {
		return (child.name == "seclabel" || child.name == "resource") && want.child(child.name) == nil
	})
	if cpu := have.child("cpu"); cpu != nil {
		// QEMU has the last word on features. A model that is the host's is spelled out.
		hosts := want.child("cpu").get("mode") == "host-model" && cpu.get("mode") == "custom"
		isResolved := func(child *node) bool {
			return child.name == "feature" || hosts && (child.name == "model" || child.name == "vendor")
		}
		cpu.children = slices.DeleteFunc(cpu.children, isResolved)
		if hosts {
			cpu.set("mode", "host-model")
		}
		if wanted := want.child("cpu"); wanted != nil {
			wanted.without("feature")
			wanted.drop("check") // a start that has checked the processor says so
			cpu.drop("check")
		}
	}
	if vcpus := have.child("vcpus"); vcpus != nil {
		for _, vcpu := range vcpus.children {
			vcpu.drop("order")
		}
	}
	for _, clock := range []*node{want.child("clock"), have.child("clock")} {
		if clock != nil {
			if isNumber(clock.get("adjustment")) {
				clock.set("offset", "variable")
			}
			clock.drop("adjustment") // the guest sets its clock, and libvirt notes by how much
			clock.drop("basis")
		}
	}
	for _, domain := range []*node{want, have} {
		for _, device := range domain.devices() {
			withoutResolvedParts(device)
		}
	}
	withoutFoundPorts(want, have)
	served := map[string]bool{}
	for _, filesystem := range want.devicesOf("filesystem") {
		served[deviceKey(filesystem)] = filesystem.child("binary") != nil
	}
	for _, filesystem := range have.devicesOf("filesystem") {
		if !served[deviceKey(filesystem)] {
			filesystem.without("binary") // the virtiofsd that libvirt found
		}
	}
}

// withoutFoundPorts takes out the ports that libvirt found for screens whose definition leaves that to it. Screens have no names: the
// first is the first.
func withoutFoundPorts(want, have *node) {
	screens := have.devicesOf("graphics")
	for i, wanted := range want.devicesOf("graphics") {
		if i >= len(screens) {
			return
		}
		for _, port := range []string{"port", "tlsPort", "websocket"} {
			if value := wanted.get(port); value == "-1" || value == "" && wanted.get("autoport") == "yes" {
				wanted.drop(port)
				screens[i].drop(port)
			}
		}
	}
}

// withoutEmptySource takes out what a drive has in place of a source once its medium was ejected. Indexes are gone already.
func withoutEmptySource(disk *node) {
	if source := disk.child("source"); source != nil && len(source.attrs)+len(source.children) == 0 {
		disk.without("source")
	}
}

func withoutResolvedParts(device *node) {
	for _, part := range device.children {
		switch {
		case device.name == "disk" && part.name == "source":
			part.drop("index")
		case device.name == "disk" && part.name == "target":
			part.drop("tray")
		case device.name == "graphics" && part.name == "listen" && part.get("type") == "socket":
			part.drop("socket")
		case device.name == "vsock" && part.name == "cid" && part.get("auto") == "yes":
			part.drop("address")
		}
	}
	if device.name == "disk" {
		withoutEmptySource(device)
	}
}

// samePlaces gives the disks of a running guest the places that the rendering has for them: a disk that was plugged in goes
// where there is room, while a rendering counts through all disks.
func samePlaces(want, have *node) {
	places := map[string]*node{}
	for _, device := range want.devices() {
		if alias := device.child("alias").get("name"); device.name == "disk" && alias != "" {
			places[alias] = device
		}
	}
	for _, device := range have.devices() {
		wanted := places[device.child("alias").get("name")]
		target := device.child("target")
		if device.name != "disk" || wanted == nil || target == nil {
			continue
		}
		place := wanted.child("target").get("dev")
		if place == "" || place == target.get("dev") {
			continue
		}
		target.set("dev", place)
		isDrive := func(child *node) bool { return child.name == "address" && child.get("type") == "drive" }
		device.children = slices.DeleteFunc(device.children, isDrive)
		wanted.children = slices.DeleteFunc(wanted.children, isDrive)
	}
}

// sameDrives leaves out what a CD-ROM drive keeps when another medium is inserted.
func sameDrives(want, have *node) {
	drives := map[string]*node{}
	for _, device := range want.devicesOf("disk") {
		if device.get("device") == "cdrom" {
			drives[device.child("alias").get("name")] = device
		}
	}
	for _, device := range have.devicesOf("disk") {
		if wanted := drives[device.child("alias").get("name")]; wanted != nil && device.get("device") == "cdrom" {
			withoutMedium(wanted)
			withoutMedium(device)
		}
	}
}

// withoutMedium takes out how the medium of a CD-ROM drive is opened: that is the drive's own, as it was started.
func withoutMedium(drive *node) {
	for _, name := range []string{"cache", "io", "discard"} {
		if driver := drive.child("driver"); driver != nil {
			driver.drop(name)
		}
	}
}

// sameMemory compares how much memory a guest has now, with what was plugged in and without what its balloon took. What it was
// started with is of no matter while that is what it should have.
func sameMemory(want, have *node) {
	normalise(want)
	normalise(have)
	if len(want.devicesOf("memory")) == 0 { // nothing is rendered with memory that is plugged in later
		alignMemory(want, have)
	}
	for _, domain := range []*node{want, have} {
		wholeMiB(domain.child("memory"))
		wholeMiB(domain.child("currentMemory"))
		if numa := domain.child("cpu").child("numa"); numa != nil {
			for _, cell := range numa.children {
				cell.set("memory", roundMiB(cell.get("memory")))
			}
		}
	}
	memory, now, wanted := have.child("memory"), have.child("currentMemory"), want.child("memory")
	if memory == nil || now == nil || wanted == nil {
		return
	}
	left := uint64(0)
	for _, device := range have.devicesOf("memory") {
		// A definition counts all of a virtio-mem device, a running guest what it has taken of it.
		target := device.child("target")
		if size, current := sizeOf(target.child("size")), sizeOf(target.child("current")); device.get("model") == "virtio-mem" && size > current {
			left += size - current
		}
	}
	now.text = strconv.FormatUint(kibOf(now.text)+left, 10) + " KiB"
	if kibOf(memory.text) > kibOf(wanted.text) && kibOf(now.text) == kibOf(wanted.text) {
		setMemory(have, kibOf(wanted.text), kibOf(wanted.text))
	}
}

// sizeOf is a size in KiB, 0 without one.
func sizeOf(n *node) uint64 {
	if n == nil {
		return 0
	}
	return kibOf(n.text)
}

func (n *node) devicesOf(name string) []*node {
	var out []*node
	for _, device := range n.devices() {
		if device.name == name {
			out = append(out, device)
		}
	}
	return out
}

// wholeMiB rounds a size up as libvirt does when it starts a guest.
func wholeMiB(size *node) {
	if size != nil {
		size.text = roundMiB(size.text)
	}
}

func roundMiB(text string) string {
	if value := kibOf(text); value > 0 {
		return strconv.FormatUint((value+1023)/1024*1024, 10) + " KiB"
	}
	return text
}
