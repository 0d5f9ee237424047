package schemas

import (
	"fmt"
	"regexp"
	"slices"
	"sync"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

var (
	pciSelector = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}$`) })
	usbNumber   = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9A-Fa-f]{4}$`) })
)

// permittedDevices checks which devices a Fleet permits.
func (c *checker) permittedDevices(permitted *kubevirtv1.PermittedHostDevices) {
	if permitted == nil {
		return
	}
	types := map[string]string{}
	name := func(list string, i int, resource string) []any {
		path := at("spec", "permittedHostDevices", list, i)
		switch other := types[resource]; {
		case resource == "":
			c.fail(append(path, "resourceName"), "no resource name", "write one, such as nvidia.com/TU104GL_Tesla_T4")
		case other != "" && (other != list || list == "usb"):
			c.fail(append(path, "resourceName"), fmt.Sprintf("%s is named under %s already", quoteValue(resource), other), "use another name")
		default:
			types[resource] = list
		}
		return path
	}
	for i, device := range permitted.PciHostDevices {
		path := name("pciHostDevices", i, device.ResourceName)
		if !pciSelector().MatchString(device.PCIVendorSelector) {
			c.fail(append(path, "pciVendorSelector"), quoteValue(device.PCIVendorSelector)+" is not VENDOR:DEVICE in hexadecimal", "write it as 10DE:1EB8")
		}
	}
	for i, device := range permitted.MediatedDevices {
		path := name("mediatedDevices", i, device.ResourceName)
		if device.MDEVNameSelector == "" {
			c.fail(append(path, "mdevNameSelector"), "no name of a type", "write it as GRID T4-1Q")
		}
	}
	for i, device := range permitted.USB {
		path := name("usb", i, device.ResourceName)
		if len(device.Selectors) == 0 {
			c.fail(append(path, "selectors"), "no device", "write vendor and product")
		}
		for j, selector := range device.Selectors {
			if !usbNumber().MatchString(selector.Vendor) {
				c.fail(append(path, "selectors", j, "vendor"), quoteValue(selector.Vendor)+" is not four hexadecimal digits", `write it as "46f4"`)
			}
			if !usbNumber().MatchString(selector.Product) {
				c.fail(append(path, "selectors", j, "product"), quoteValue(selector.Product)+" is not four hexadecimal digits", `write it as "0001"`)
			}
		}
	}
}

// device returns what the Fleet permits for a resource.
func (f *Fleet) device(resource string) (selector HostDeviceSelector, ok bool) {
	selector.Resource = resource
	permitted := f.Spec.PermittedHostDevices
	if permitted == nil {
		return selector, false
	}
	for _, device := range permitted.PciHostDevices {
		if device.ResourceName == resource {
			selector.PCI, ok = append(selector.PCI, device.PCIVendorSelector), true
		}
	}
	for _, device := range permitted.MediatedDevices {
		if device.ResourceName == resource {
			selector.Mediated, ok = append(selector.Mediated, device.MDEVNameSelector), true
		}
	}
	for _, device := range permitted.USB {
		if device.ResourceName == resource {
			selector.USB, ok = append(selector.USB, device.Selectors...), true
		}
	}
	return selector, ok
}

// resources lists the names of resources that the Fleet permits.
func (f *Fleet) resources() []string {
	permitted := f.Spec.PermittedHostDevices
	if permitted == nil {
		return nil
	}
	var names []string
	for _, device := range permitted.PciHostDevices {
		names = append(names, device.ResourceName)
	}
	for _, device := range permitted.MediatedDevices {
		names = append(names, device.ResourceName)
	}
	for _, device := range permitted.USB {
		names = append(names, device.ResourceName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
