package hostdevices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

const pciDir = "sys/bus/pci/devices"

// pciDevice is a PCI device as sysfs shows it.
type pciDevice struct {
	address string
	id      string // "10de:1eb8"
	class   string // "0x030200"
	driver  string // empty when none is bound
	group   string // the number of its IOMMU group; empty without an IOMMU
}

func (h Host) readPCI(address string) (pciDevice, error) {
	device := pciDevice{address: address}
	vendor, err := h.attribute(pciDir, address, "vendor")
	if err != nil {
		return device, err
	}
	product, err := h.attribute(pciDir, address, "device")
	if err != nil {
		return device, err
	}
	device.id = strings.TrimPrefix(vendor, "0x") + ":" + strings.TrimPrefix(product, "0x")
	device.class, _ = h.attribute(pciDir, address, "class") // what has none is no bridge
	device.driver = h.link(pciDir, address, "driver")
	device.group = h.link(pciDir, address, "iommu_group")
	return device, nil
}

// attribute reads a file of sysfs.
func (h Host) attribute(parts ...string) (string, error) {
	content, err := os.ReadFile(h.path(parts...))
	return strings.TrimSpace(string(content)), err
}

// link returns the last part of where a link of sysfs leads, or "".
func (h Host) link(parts ...string) string {
	target, err := os.Readlink(h.path(parts...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// names returns the names in a folder, in order; a folder that is not there has none.
func (h Host) names(parts ...string) []string {
	entries, err := os.ReadDir(h.path(parts...))
	if err != nil {
		return nil
	}
	names := make([]string, len(entries))
	for i, entry := range entries {
		names[i] = entry.Name()
	}
	return names
}

func (d pciDevice) matches(ids []string) bool {
	return slices.ContainsFunc(ids, func(id string) bool { return strings.EqualFold(id, d.id) })
}

// bridge reports whether it is a PCI bridge, which stays with the host.
func (d pciDevice) bridge() bool { return strings.HasPrefix(d.class, "0x0604") }

// forGuests reports whether a driver is one of those that hand devices over: vfio-pci, or a variant of it.
func forGuests(driver string) bool {
	return strings.Contains(strings.ReplaceAll(driver, "_", "-"), "vfio-pci")
}

// problem says why the device cannot be handed over as it is, or "". One that nobody uses libvirt binds itself.
func (d pciDevice) problem() string {
	switch {
	case d.group == "":
		return "is in no IOMMU group (enable VT-d or AMD-Vi in the firmware and boot with intel_iommu=on)"
	case d.driver != "" && !forGuests(d.driver):
		return fmt.Sprintf("belongs to the host's driver %s (hand it over: driverctl set-override %s vfio-pci)", d.driver, d.address)
	}
	return ""
}

// findPCI returns the first device that fits and is free, or why there is none.
func (c *choice) findPCI(want Want) (device domainxml.HostDevice, problem string) {
	reasons := map[string]string{}
	for _, address := range c.host.names(pciDir) {
		found, err := c.host.readPCI(address)
		if err != nil || !found.matches(want.Selector.PCI) {
			continue
		}
		device = domainxml.HostDevice{Name: want.Name, Type: typePCI, Address: address}
		problem := found.problem()
		if problem == "" {
			problem = c.groupProblem(found)
		}
		switch {
		case c.mine[key(device)]:
			reasons[address] = "is assigned to this VM already"
		case c.others[key(device)]:
			reasons[address] = "is assigned to another VM"
		case problem != "":
			reasons[address] = problem
		default:
			return device, ""
		}
	}
	if len(reasons) == 0 {
		return device, "there is no PCI device " + strings.Join(want.Selector.PCI, " or ")
	}
	return device, "none is free: " + list(reasons)
}

// groupProblem says who else is in the IOMMU group of a device and keeps it from being handed over, or "".
func (c *choice) groupProblem(device pciDevice) string {
	for _, address := range c.host.names("sys/kernel/iommu_groups", device.group, "devices") {
		if address == device.address {
			continue
		}
		other, err := c.host.readPCI(address)
		if err != nil || other.bridge() {
			continue
		}
		if other.driver != "" && !forGuests(other.driver) {
			return fmt.Sprintf("shares IOMMU group %s with %s, which belongs to the host's driver %s", device.group, address, other.driver)
		}
		if c.others[typePCI+" "+address] {
			return fmt.Sprintf("shares IOMMU group %s with %s, which is assigned to another VM", device.group, address)
		}
	}
	return ""
}

// checkGroups looks at the groups of what was kept: their other members may have changed hands meanwhile.
func (c *choice) checkGroups(devices []domainxml.HostDevice) error {
	for _, device := range devices {
		if device.Type != typePCI {
			continue
		}
		found, err := c.host.readPCI(device.Address)
		if err != nil {
			return fmt.Errorf("%s: reading PCI device %s: %w", device.Name, device.Address, err)
		}
		if problem := c.groupProblem(found); problem != "" {
			return fmt.Errorf("%s: %w: %s %s", device.Name, ErrUnavailable, device.Address, problem)
		}
	}
	return nil
}
