package domainxml

import (
	"encoding/xml"
	"slices"
)

// keeper puts what differs between two renderings into a definition.
type keeper struct {
	targets []string
	have    *node
	// scsi says that a SCSI disk was added.
	scsi bool
}

// element brings one element of the definition from what base says to what want says.
func (k *keeper) element(have, base, want *node, devices bool) {
	if want.text != base.text {
		have.text = want.text
		for _, attribute := range want.attrs { // a number means nothing without its unit
			have.put(attribute.Name, attribute.Value)
		}
	}
	for _, attribute := range want.attrs {
		if was, ok := base.attribute(attribute.Name); !ok || was != attribute.Value {
			have.put(attribute.Name, attribute.Value)
		}
	}
	for _, attribute := range base.attrs {
		if _, ok := want.attribute(attribute.Name); !ok {
			have.remove(attribute.Name)
		}
	}
	if devices {
		k.devices(have, base, want)
		return
	}
	for _, tree := range []*node{have, base, want} {
		tree.labelChildren(false)
	}
	had := byLabel(have)
	was := byLabel(base)
	wanted := byLabel(want)
	for _, child := range want.children {
		before, partner := was[child.label], had[child.label]
		switch {
		case before != nil && same(before, child):
		case before == nil && partner != nil:
			k.element(partner, &node{name: child.name}, child, false)
		case partner == nil:
			have.children = append(have.children, child)
		default:
			k.element(partner, before, child, have == k.have && child.name == "devices")
		}
	}
	for _, child := range base.children {
		if partner := had[child.label]; partner != nil && wanted[child.label] == nil {
			have.removeChild(partner)
		}
	}
}

// devices does the same for the devices, which are told apart by the names that they have in the manifest.
func (k *keeper) devices(have, base, want *node) {
	partners := k.partners(have, base)
	was := make(map[string]*node, len(base.children))
	base.labelChildren(true)
	want.labelChildren(true)
	for _, device := range base.children {
		was[deviceName(device)] = device
	}
	wanted := make(map[string]bool, len(want.children))
	for _, device := range want.children {
		wanted[deviceName(device)] = true
	}
	// What goes makes room for what comes.
	for _, device := range base.children {
		if partner := partners[device]; partner != nil && !wanted[deviceName(device)] {
			have.removeChild(partner)
		}
	}
	for _, device := range want.children {
		before := was[deviceName(device)]
		partner := partners[before]
		switch {
		case before != nil && same(withTarget(before, ""), withTarget(device, "")):
		case device.name == "controller":
			if !have.hasController(device.get("type")) {
				have.children = append(have.children, device)
			}
		case before == nil || partner == nil:
			k.add(have, device)
		default:
			k.change(have, partner, before, device)
		}
	}
}

// partners finds for each device of base the one of the definition that it describes. Devices that a definition has at most one of are
// described by any of their kind.
func (k *keeper) partners(have, base *node) map[*node]*node {
	have.labelChildren(true)
	base.labelChildren(true)
	had := byLabel(have)
	out := make(map[*node]*node, len(base.children))
	disks := 0
	for _, device := range base.children {
		label := device.label
		if device.name == "disk" {
			if disks < len(k.targets) {
				label = "disk[" + k.targets[disks] + "]"
			}
			disks++
		}
		if partner := had[label]; partner != nil {
			out[device] = partner
		}
	}
	return out
}

// single are the devices that a definition has at most one of.
var single = map[string]bool{"watchdog": true, "tpm": true, "memballoon": true, "vsock": true, "emulator": true}

// add gives the definition a device that the manifest has added.
func (k *keeper) add(have, device *node) {
	if single[device.name] {
		have.children = slices.DeleteFunc(have.children, func(other *node) bool { return other.name == device.name })
	}
	if device.name == "disk" {
		target := device.child("target")
		device = withTarget(device, freeTarget(have, prefixOf(target.get("dev"))))
		if target.get("bus") == "scsi" {
			k.scsi = true
			device.removeChild(device.child("address")) // libvirt knows what is free
		}
	}
	have.children = append(have.children, device)
}

// change changes a device of the definition.
func (k *keeper) change(have, partner, before, device *node) {
	if device.name == "disk" {
		was, now := before.child("target"), device.child("target")
		dev := partner.child("target").get("dev")
		if prefixOf(was.get("dev")) != prefixOf(now.get("dev")) {
			dev = freeTarget(have, prefixOf(now.get("dev")))
		}
		if was.get("bus") != now.get("bus") {
			partner.removeChild(partner.child("address")) // it is one of the other bus
			k.scsi = k.scsi || now.get("bus") == "scsi"
		}
		// The name in the definition stays, whatever the place in the manifest.
		before, device = withTarget(before, ""), withTarget(device, "")
		k.element(partner, before, device, false)
		partner.child("target").put(xml.Name{Local: "dev"}, dev)
		return
	}
	k.element(partner, before, device, false)
}

// complete adds what libvirt wants together with what was changed.
func (k *keeper) complete(want *node) {
	have := k.have
	devices := have.child("devices")
	if devices != nil && k.scsi && !devices.hasController("scsi") {
		for _, device := range want.child("devices").children {
			if device.name == "controller" && device.get("type") == "scsi" {
				devices.children = append(devices.children, device)
			}
		}
	}
	if system := have.child("os"); system != nil && devices != nil {
		ordered := slices.ContainsFunc(devices.children, func(device *node) bool { return device.child("boot") != nil })
		if ordered { // libvirt takes either of the two
			system.children = slices.DeleteFunc(system.children, func(child *node) bool { return child.name == "boot" })
		}
		if have.child("sysinfo").get("type") == "smbios" && system.child("smbios") == nil {
			system.children = append(system.children, &node{name: "smbios", attrs: []xml.Attr{{Name: xml.Name{Local: "mode"}, Value: "sysinfo"}}})
		}
	}
}

func byLabel(n *node) map[string]*node {
	out := make(map[string]*node, len(n.children))
	for _, child := range n.children {
		out[child.label] = child
	}
	return out
}

// deviceName tells the devices of a rendering apart: by their alias, which is made of the name in the manifest.
func deviceName(device *node) string {
	if alias := device.child("alias").get("name"); alias != "" {
		return device.name + " " + alias
	}
	return device.label
}

// withTarget returns a disk with another name of its target; other devices stay as they are.
func withTarget(device *node, dev string) *node {
	if device.name != "disk" {
		return device
	}
	out := *device
	out.children = slices.Clone(device.children)
	for i, child := range out.children {
		switch {
		case child.name == "target":
			target := *child
			target.attrs = slices.Clone(child.attrs)
			target.put(xml.Name{Local: "dev"}, dev)
			out.children[i] = &target
		case child.name == "address" && dev == "" && child.get("type") == "drive":
			// The place in the row of a SCSI disk follows from its place in the manifest.
			out.children[i] = &node{name: "address", attrs: []xml.Attr{{Name: xml.Name{Local: "type"}, Value: "drive"}}}
		}
	}
	return &out
}

// prefixOf is "vd" of "vdb".
func prefixOf(target string) string { return target[:min(2, len(target))] }

// freeTarget returns the first name with a prefix that no disk of the definition has.
func freeTarget(have *node, prefix string) string {
	taken := map[string]bool{}
	for _, device := range have.children {
		if device.name == "disk" {
			taken[device.child("target").get("dev")] = true
		}
	}
	for place := 0; ; place++ {
		if name := targetName(prefix, place); !taken[name] {
			return name
		}
	}
}

func (n *node) hasController(kind string) bool {
	return slices.ContainsFunc(n.children, func(device *node) bool { return device.name == "controller" && device.get("type") == kind })
}
