package hostdevices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

const (
	mediatedDir = "sys/bus/mdev/devices"
	parentDir   = "sys/class/mdev_bus"
)

func (h Host) mediatedExists(uuid string) bool {
	_, err := os.Lstat(h.path(mediatedDir, uuid))
	return err == nil
}

// typeNames returns the names under which the type of a mediated device goes: that of its vendor, as it is in
// KubeVirt's configuration, and the kernel's identifier.
func (h Host) typeNames(parts ...string) []string {
	var names []string
	if name, err := h.attribute(append(slices.Clone(parts), "name")...); err == nil && name != "" {
		names = append(names, name)
	}
	return append(names, parts[len(parts)-1])
}

// sameType compares names of types as KubeVirt does, to which a space and an underscore are one.
func sameType(wanted, names []string) bool {
	plain := func(name string) string { return strings.ReplaceAll(name, " ", "_") }
	return slices.ContainsFunc(wanted, func(want string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return plain(name) == plain(want) })
	})
}

// mediatedFits reports whether a device that the VM has is of a wanted type. One that was made for the VM and is gone, as
// after a reboot of the host, is made again by Prepare.
func (h Host) mediatedFits(uuid string, types []string, owner, name string) bool {
	if h.mediatedExists(uuid) {
		kind := h.link(mediatedDir, uuid, "mdev_type")
		return sameType(types, append(h.typeNames(mediatedDir, uuid, "mdev_type"), kind))
	}
	return uuid == mediatedUUID(owner, name) && h.roomFor(types) != ""
}

// findMediated returns a device that somebody made and nobody has, or one that Prepare can make.
func (c *choice) findMediated(want Want) (device domainxml.HostDevice, problem string) {
	reasons := map[string]string{}
	device = domainxml.HostDevice{Name: want.Name, Type: typeMediated, Address: mediatedUUID(c.owner, want.Name)}
	if c.host.mediatedExists(device.Address) && !c.taken(device) &&
		c.host.mediatedFits(device.Address, want.Selector.Mediated, c.owner, want.Name) {
		return device, "" // a step before this one made it
	}
	for _, uuid := range c.host.names(mediatedDir) {
		if !c.host.mediatedFits(uuid, want.Selector.Mediated, c.owner, want.Name) {
			continue
		}
		found := domainxml.HostDevice{Name: want.Name, Type: typeMediated, Address: uuid}
		if !c.taken(found) {
			return found, ""
		}
		reasons[uuid] = "is assigned to another VM"
	}
	if !c.host.mediatedExists(device.Address) && c.host.roomFor(want.Selector.Mediated) != "" {
		return device, ""
	}
	wanted := strings.Join(want.Selector.Mediated, " or ")
	switch {
	case len(reasons) > 0:
		return device, "no mediated device of type " + wanted + " is free and no more can be made: " + list(reasons)
	case !c.host.offers(want.Selector.Mediated):
		return device, "no device of the host offers mediated devices of type " + wanted + " (is the vendor's driver loaded?)"
	}
	return device, "no more mediated devices of type " + wanted + " can be made"
}

// roomFor returns the folder of a type, among those of all parents, that can make one more device; "" for none.
func (h Host) roomFor(types []string) string {
	for _, dir := range h.supported(types) {
		available, err := h.attribute(dir, "available_instances")
		if err == nil && available != "0" && available != "" {
			return dir
		}
	}
	return ""
}

func (h Host) offers(types []string) bool { return len(h.supported(types)) > 0 }

// supported returns the folders of the wanted types below all parents, in order.
func (h Host) supported(types []string) []string {
	var dirs []string
	for _, parent := range h.names(parentDir) {
		for _, kind := range h.names(parentDir, parent, "mdev_supported_types") {
			if sameType(types, h.typeNames(parentDir, parent, "mdev_supported_types", kind)) {
				dirs = append(dirs, strings.Join([]string{parentDir, parent, "mdev_supported_types", kind}, "/"))
			}
		}
	}
	return dirs
}

// createMediated makes a device of a type. The kernel makes it before the write returns.
func (h Host) createMediated(types []string, uuid string) error {
	dir := h.roomFor(types)
	if dir == "" {
		return fmt.Errorf("%w: no more mediated devices of type %s can be made", ErrUnavailable, strings.Join(types, " or "))
	}
	if err := h.write(uuid, dir, "create"); err != nil {
		return fmt.Errorf("%w: making a mediated device: %w", ErrUnavailable, err)
	}
	if !h.mediatedExists(uuid) {
		return fmt.Errorf("%w: the host took the order for mediated device %s and did not make it", ErrUnavailable, uuid)
	}
	return nil
}

func (h Host) removeMediated(uuid string) error {
	if err := h.write("1", mediatedDir, uuid, "remove"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing mediated device %s: %w", uuid, err)
	}
	return nil
}

// write writes to a file of sysfs, which is there or not: it is never made.
func (h Host) write(content string, parts ...string) error {
	file, err := os.OpenFile(h.path(parts...), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(content)
	return errors.Join(err, file.Close())
}
