package guestfiles

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// HasTags reports whether any device of a machine has a tag, which a config drive tells the guest with the device's address.
func HasTags(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	devices := &spec.Domain.Devices
	for i := range devices.Interfaces {
		if devices.Interfaces[i].Tag != "" {
			return true
		}
	}
	for i := range devices.Disks {
		if devices.Disks[i].Tag != "" {
			return true
		}
	}
	for i := range devices.HostDevices {
		if devices.HostDevices[i].Tag != "" {
			return true
		}
	}
	for i := range devices.GPUs {
		if devices.GPUs[i].Tag != "" {
			return true
		}
	}
	return false
}

// taggedDevices are the devices of the manifest with a tag, with the addresses that the domain's definition gives them.
func (m Machine) taggedDevices() []cloudinit.Device {
	spec := m.spec()
	if !HasTags(spec) {
		return nil
	}
	places := placesOf(m.Definition)
	var out []cloudinit.Device
	add := func(kind, name, tag, mac, serial, bus string) {
		if tag == "" {
			return
		}
		at, known := places[name]
		if !known {
			at.bus = bus
		}
		out = append(out, cloudinit.Device{Type: kind, Bus: at.bus, Address: at.address, MAC: mac, Serial: serial, Tags: []string{tag}})
	}
	macs := domainxml.IdentityOf(m.made(), spec).MACs
	for i := range spec.Domain.Devices.Interfaces {
		in := &spec.Domain.Devices.Interfaces[i]
		add("nic", in.Name, in.Tag, macs[i], "", "pci")
	}
	for i := range spec.Domain.Devices.Disks {
		disk := &spec.Domain.Devices.Disks[i]
		add("disk", disk.Name, disk.Tag, "", disk.Serial, diskBus(disk))
	}
	for _, device := range spec.Domain.Devices.HostDevices {
		add("hostdev", device.Name, device.Tag, "", "", "pci")
	}
	for _, device := range spec.Domain.Devices.GPUs {
		add("hostdev", device.Name, device.Tag, "", "", "pci")
	}
	return out
}

// diskBus is the bus of a disk as OpenStack names them: a virtio disk is a PCI device.
func diskBus(disk *kubevirtv1.Disk) string {
	bus := kubevirtv1.DiskBus("")
	switch {
	case disk.Disk != nil:
		bus = disk.Disk.Bus
	case disk.LUN != nil:
		bus = disk.LUN.Bus
	case disk.CDRom != nil:
		bus = disk.CDRom.Bus
	}
	switch bus {
	case kubevirtv1.DiskBusVirtio:
		return "pci"
	case "":
		return string(kubevirtv1.DiskBusSATA)
	}
	return string(bus)
}

// place is where a device of a domain is.
type place struct{ bus, address string }

// aliasPrefix marks the names that rendering gives devices.
const aliasPrefix = "ua-"

// placesOf reads the addresses of devices by their names; what cannot be read is not known.
func placesOf(definition string) map[string]place {
	type device struct {
		Alias struct {
			Name string `xml:"name,attr"`
		} `xml:"alias"`
		Address struct {
			Type       string `xml:"type,attr"`
			Domain     string `xml:"domain,attr"`
			Bus        string `xml:"bus,attr"`
			Slot       string `xml:"slot,attr"`
			Function   string `xml:"function,attr"`
			Controller string `xml:"controller,attr"`
			Target     string `xml:"target,attr"`
			Unit       string `xml:"unit,attr"`
			Port       string `xml:"port,attr"`
		} `xml:"address"`
		Target struct {
			Bus string `xml:"bus,attr"`
		} `xml:"target"`
	}
	var domain struct {
		Devices struct {
			Disks      []device `xml:"disk"`
			Interfaces []device `xml:"interface"`
			HostDevs   []device `xml:"hostdev"`
		} `xml:"devices"`
	}
	places := map[string]place{}
	if definition == "" || xml.Unmarshal([]byte(definition), &domain) != nil {
		return places
	}
	for _, group := range [][]device{domain.Devices.Disks, domain.Devices.Interfaces, domain.Devices.HostDevs} {
		for _, found := range group {
			name, ours := strings.CutPrefix(found.Alias.Name, aliasPrefix)
			if !ours {
				continue
			}
			at := found.Address
			switch at.Type {
			case "pci":
				places[name] = place{"pci", fmt.Sprintf("%04x:%02x:%02x.%x", number(at.Domain), number(at.Bus), number(at.Slot), number(at.Function))}
			case "drive":
				places[name] = place{found.Target.Bus, fmt.Sprintf("%d:%d:%d:%d", number(at.Controller), number(at.Bus), number(at.Target), number(at.Unit))}
			case "usb":
				places[name] = place{"usb", at.Bus + ":" + at.Port}
			}
		}
	}
	return places
}

// number reads libvirt's decimal and hexadecimal attributes; one that is missing is 0.
func number(text string) uint64 {
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return 0
	}
	return n
}
