package hostdevices

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

const usbDir = "sys/bus/usb/devices"

// usbDevice is a USB device as sysfs shows it. Its number changes each time it is plugged in.
type usbDevice struct {
	vendor, product string // four hexadecimal digits
	address         string // "BUS:DEVICE" in decimal
}

// readUSB returns the devices, ordered by where they are plugged in. Interfaces and hubs' roots have no number or are left.
func (h Host) readUSB() []usbDevice {
	var devices []usbDevice
	for _, name := range h.names(usbDir) {
		if strings.Contains(name, ":") || strings.HasPrefix(name, "usb") {
			continue
		}
		read := func(file string) string {
			value, _ := h.attribute(usbDir, name, file) // a device that is being unplugged has none
			return value
		}
		bus, busErr := strconv.Atoi(read("busnum"))
		number, numberErr := strconv.Atoi(read("devnum"))
		if busErr != nil || numberErr != nil {
			continue
		}
		devices = append(devices, usbDevice{
			vendor: read("idVendor"), product: read("idProduct"), address: fmt.Sprintf("%d:%d", bus, number),
		})
	}
	return devices
}

func (d usbDevice) matches(selector kubevirtv1.USBSelector) bool {
	same := func(a, b string) bool {
		return strings.EqualFold(strings.TrimLeft(strings.TrimPrefix(a, "0x"), "0"), strings.TrimLeft(b, "0"))
	}
	return same(selector.Vendor, d.vendor) && same(selector.Product, d.product)
}

// findUSB returns one device for each selector of the group, or why one is missing.
func (c *choice) findUSB(want Want) (devices []domainxml.HostDevice, problem string) {
	present := c.host.readUSB()
	mine := map[string]bool{}
	for _, selector := range want.Selector.USB {
		name := selector.Vendor + ":" + selector.Product
		reasons := map[string]string{}
		found := false
		for _, device := range present {
			handed := domainxml.HostDevice{Name: want.Name, Type: typeUSB, Address: device.address}
			if !device.matches(selector) || mine[device.address] {
				continue
			}
			if c.taken(handed) {
				reasons[device.address] = "is assigned to another VM"
				continue
			}
			devices, found = append(devices, handed), true
			mine[device.address] = true
			break
		}
		if !found && len(reasons) > 0 {
			return nil, "no USB device " + name + " is free: " + list(reasons)
		}
		if !found {
			return nil, "no USB device " + name + " is plugged in"
		}
	}
	return devices, ""
}

// usbFits reports whether what the VM has is still where it was.
func (h Host) usbFits(had []domainxml.HostDevice, selectors []kubevirtv1.USBSelector) bool {
	if len(had) != len(selectors) {
		return false
	}
	present := h.readUSB()
	for i, selector := range selectors {
		if !slices.ContainsFunc(present, func(device usbDevice) bool {
			return device.address == had[i].Address && device.matches(selector)
		}) {
			return false
		}
	}
	return true
}
