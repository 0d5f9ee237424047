// Package hostdevices finds, in sysfs, the devices of a host that may be handed to a VM, and chooses among them: PCI
// devices by vendor and device, mediated devices by the name of their type, USB devices by vendor and product. The choice
// is deterministic, respects what other VMs have, and keeps what the VM itself has. It binds no driver and takes no device
// away from anybody: whoever runs the host says with vfio-pci which PCI devices are for guests.
package hostdevices

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// ErrUnavailable says that the host has no such device, or none that is free; it helps to change the host or another VM.
var ErrUnavailable = errors.New("no device of the host for it")

// The types of domainxml.HostDevice.
const (
	typePCI      = "pci"
	typeMediated = "mdev"
	typeUSB      = "usb"
)

// Want is a device that a VM wants: a GPU, a host device or an SR-IOV interface of its manifest.
type Want struct {
	// Name is its name in the manifest.
	Name string
	// Selector says what may be handed over for it.
	Selector schemas.HostDeviceSelector
}

// Host is a host whose devices are looked at in sysfs.
type Host struct {
	root string
}

// New returns the host whose file system begins at root: "/", or a folder that a test filled.
func New(root string) Host { return Host{root: root} }

// Choose returns a device, or for USB the devices, for each want of a VM. before is what the VM has: it is kept as long
// as it is still there and still fits. others are the devices that other VMs have. owner tells this VM from others: new
// mediated devices get UUIDs that are made from it, so that a step that is repeated finds what it made. Choose changes
// nothing on the host; Prepare makes what is only planned.
func (h Host) Choose(owner string, wants []Want, before, others []domainxml.HostDevice) ([]domainxml.HostDevice, error) {
	if len(wants) == 0 {
		return nil, nil
	}
	c := choice{host: h, owner: owner, before: before, others: map[string]bool{}, mine: map[string]bool{}}
	for _, device := range others {
		c.others[key(device)] = true
	}
	// What wants keep is out of reach of the others, whatever their order in the manifest is now.
	kept := make([][]domainxml.HostDevice, len(wants))
	for i, want := range wants {
		kept[i] = c.keep(want)
		c.take(kept[i])
	}
	var out []domainxml.HostDevice
	for i, want := range wants {
		devices := kept[i]
		if devices == nil {
			var err error
			if devices, err = c.find(want); err != nil {
				return nil, fmt.Errorf("%s (%s): %w", want.Name, want.Selector.Resource, err)
			}
			c.take(devices)
		}
		out = append(out, devices...)
	}
	return out, c.checkGroups(out)
}

// Prepare makes the mediated devices that Choose planned and that are not there yet: they do not outlive a reboot of the
// host. What is there is left alone.
func (h Host) Prepare(wants []Want, devices []domainxml.HostDevice) error {
	for _, want := range wants {
		for _, device := range devices {
			if device.Name != want.Name || device.Type != typeMediated || h.mediatedExists(device.Address) {
				continue
			}
			if err := h.createMediated(want.Selector.Mediated, device.Address); err != nil {
				return fmt.Errorf("%s (%s): %w", want.Name, want.Selector.Resource, err)
			}
		}
	}
	return nil
}

// Left lists the mediated devices that Prepare made for a VM and that are not among those that it has.
func (h Host) Left(owner string, has []domainxml.HostDevice) []string {
	var left []string
	for _, uuid := range h.names(mediatedDir) {
		if madeFor(owner, uuid) && !slices.ContainsFunc(has, func(device domainxml.HostDevice) bool { return device.Address == uuid }) {
			left = append(left, uuid)
		}
	}
	return left
}

// Release removes what is left of a VM. What somebody else made stays.
func (h Host) Release(owner string, has []domainxml.HostDevice) error {
	for _, uuid := range h.Left(owner, has) {
		if err := h.removeMediated(uuid); err != nil {
			return err
		}
	}
	return nil
}

// choice is one call of Choose.
type choice struct {
	host   Host
	owner  string
	before []domainxml.HostDevice
	// others and mine have the keys of the devices that other VMs have and that this one got.
	others, mine map[string]bool
}

func key(device domainxml.HostDevice) string { return device.Type + " " + device.Address }

func (c *choice) take(devices []domainxml.HostDevice) {
	for _, device := range devices {
		c.mine[key(device)] = true
	}
}

// taken reports whether somebody has a device, this VM included.
func (c *choice) taken(device domainxml.HostDevice) bool {
	return c.others[key(device)] || c.mine[key(device)]
}

// keep returns what the VM has for a want already, when all of it still fits; nil otherwise.
func (c *choice) keep(want Want) []domainxml.HostDevice {
	var had []domainxml.HostDevice
	for _, device := range c.before {
		if device.Name == want.Name {
			if c.taken(device) {
				return nil
			}
			had = append(had, device)
		}
	}
	if len(had) == 0 {
		return nil
	}
	fits := false
	switch had[0].Type {
	case typePCI:
		device, err := c.host.readPCI(had[0].Address)
		fits = err == nil && len(had) == 1 && device.matches(want.Selector.PCI) && device.problem() == ""
	case typeMediated:
		fits = len(had) == 1 && c.host.mediatedFits(had[0].Address, want.Selector.Mediated, c.owner, want.Name)
	case typeUSB:
		fits = c.host.usbFits(had, want.Selector.USB)
	}
	if !fits {
		return nil
	}
	return had
}

// find chooses new devices for a want.
func (c *choice) find(want Want) ([]domainxml.HostDevice, error) {
	selector := want.Selector
	var problems []string
	if len(selector.PCI) > 0 {
		device, problem := c.findPCI(want)
		if problem == "" {
			return []domainxml.HostDevice{device}, nil
		}
		problems = append(problems, problem)
	}
	if len(selector.Mediated) > 0 {
		device, problem := c.findMediated(want)
		if problem == "" {
			return []domainxml.HostDevice{device}, nil
		}
		problems = append(problems, problem)
	}
	if len(selector.USB) > 0 {
		devices, problem := c.findUSB(want)
		if problem == "" {
			return devices, nil
		}
		problems = append(problems, problem)
	}
	if len(problems) == 0 {
		problems = append(problems, "the Fleet's permittedHostDevices name nothing for this resource")
	}
	return nil, fmt.Errorf("%w: %s", ErrUnavailable, strings.Join(problems, "; "))
}

// mediatedUUID is the UUID of the mediated device that is made for a want of a VM. Its first half is the VM's alone, so that a
// device is known as made for a VM when nothing else remembers that. It is of version 8, whose bits mean what one likes.
func mediatedUUID(owner, name string) string {
	const space = "https://gitvirt.io/mdev/"
	first, second := sha256.Sum256([]byte(space+owner)), sha256.Sum256([]byte(space+owner+"/"+name))
	id := uuid.UUID(slices.Concat(first[:8], second[:8]))
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id.String()
}

// madeFor reports whether a UUID is one of mediatedUUID for a VM.
func madeFor(owner, uuid string) bool {
	const half = len("00000000-0000-8000-")
	return len(uuid) > half && uuid[:half] == mediatedUUID(owner, "")[:half]
}

// path is a path below the root.
func (h Host) path(parts ...string) string { return filepath.Join(h.root, filepath.Join(parts...)) }

// list counts things for an error: what is there and why none of it will do.
func list(reasons map[string]string) string {
	var lines []string
	for name, reason := range reasons {
		lines = append(lines, name+" "+reason)
	}
	slices.Sort(lines)
	const most = 4
	if len(lines) > most {
		lines = append(lines[:most], fmt.Sprintf("and %d more", len(lines)-most))
	}
	return strings.Join(lines, ", ")
}
