package schemas

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

func (c *checker) checkNetworks(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	c.checkUnique("networks", len(spec.Networks), func(i int) string { return spec.Networks[i].Name }, "networks")
	pod := -1
	for i := range spec.Networks {
		network := &spec.Networks[i]
		sources := 0
		if network.Pod != nil {
			sources++
			if pod >= 0 {
				c.fail(c.in("networks", i, "pod"), fmt.Sprintf("a second pod network; the first is %s", quoteValue(spec.Networks[pod].Name)), "keep one, and use multus for the others")
			} else {
				pod = i
			}
		}
		if network.Multus != nil {
			sources++
			if name := network.Multus.NetworkName; name == "" {
				c.fail(c.in("networks", i, "multus", "networkName"), "no networkName", "name the network")
			} else if strings.Count(name, "/") > 1 || strings.ContainsAny(name, " \t\r\n") {
				c.fail(c.in("networks", i, "multus", "networkName"), quoteValue(name)+" is not the name of a network", "write it as name or namespace/name")
			}
		}
		if network.ResourceClaim != nil {
			sources++
		}
		switch {
		case sources > 1:
			c.fail(c.in("networks", i), "a network is one of pod and multus", "keep one")
		case sources == 0:
			c.fail(c.in("networks", i), "the network has no kind", "add pod: {} or multus")
		}
		if network.Name != "" && interfaceNamed(spec, network.Name) == nil && !c.listMisread(c.in("domain", "devices", "interfaces")) {
			c.fail(c.in("networks", i, "name"), "no interface is named "+quoteValue(network.Name), "add an interface of this name, or remove the network")
		}
	}
}

func interfaceNamed(spec *kubevirtv1.VirtualMachineInstanceSpec, name string) *kubevirtv1.Interface {
	for i := range spec.Domain.Devices.Interfaces {
		if spec.Domain.Devices.Interfaces[i].Name == name {
			return &spec.Domain.Devices.Interfaces[i]
		}
	}
	return nil
}

func networkNamed(spec *kubevirtv1.VirtualMachineInstanceSpec, name string) *kubevirtv1.Network {
	for i := range spec.Networks {
		if spec.Networks[i].Name == name {
			return &spec.Networks[i]
		}
	}
	return nil
}

func (c *checker) checkInterfaces(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	interfaces := spec.Domain.Devices.Interfaces
	c.checkUnique("interfaces", len(interfaces), func(i int) string { return interfaces[i].Name }, "domain", "devices", "interfaces")
	for i := range interfaces {
		iface := &interfaces[i]
		in := func(parts ...any) []any { return c.in(append(at("domain", "devices", "interfaces", i), parts...)...) }
		network := networkNamed(spec, iface.Name)
		if network == nil && iface.Name != "" && !c.listMisread(c.in("networks")) {
			names := make([]string, len(spec.Networks))
			for n := range spec.Networks {
				names[n] = spec.Networks[n].Name
			}
			fix := "add a network of this name, such as pod: {}"
			if near := closest(iface.Name, names); near != "" {
				fix = fmt.Sprintf("did you mean %q?", near)
			}
			c.fail(in("name"), "no network is named "+quoteValue(iface.Name), fix)
		}
		c.checkBinding(iface, network, in)
		oneOf(c, func() []any { return in("model") }, iface.Model, "virtio", "e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139")
		oneOf(c, func() []any { return in("state") }, iface.State, "up", "down", "absent")
		if iface.State == kubevirtv1.InterfaceStateAbsent && iface.Bridge == nil {
			c.fail(in("state"), "only an interface with bridge can be absent", "remove the interface and its network")
		}
		c.checkMAC(iface.MacAddress, func() []any { return in("macAddress") })
		if iface.PciAddress != "" {
			c.checkPCIAddress(in("pciAddress"), iface.PciAddress)
		}
		if iface.ACPIIndex != 0 {
			if iface.ACPIIndex < 1 || iface.ACPIIndex > 16*1024-1 {
				c.fail(in("acpiIndex"), fmt.Sprintf("%d is not between 1 and 16383", iface.ACPIIndex), "use a number from 1 on")
			}
			for j := range i {
				if interfaces[j].ACPIIndex == iface.ACPIIndex {
					c.fail(in("acpiIndex"), fmt.Sprintf("the interface %s has the index %d already", quoteValue(interfaces[j].Name), iface.ACPIIndex), "use another number")
				}
			}
		}
		c.checkPorts(iface, in)
	}
}

func (c *checker) checkBinding(iface *kubevirtv1.Interface, network *kubevirtv1.Network, in func(...any) []any) {
	bindings := 0
	for _, set := range []bool{
		iface.Bridge != nil, iface.Masquerade != nil, iface.SRIOV != nil, iface.PasstBinding != nil, iface.Binding != nil,
		iface.DeprecatedSlirp != nil, iface.DeprecatedMacvtap != nil, iface.DeprecatedPasst != nil,
	} {
		if set {
			bindings++
		}
	}
	switch {
	case bindings == 0:
		for _, name := range []string{"bridge", "masquerade", "sriov", "passtBinding", "binding", "slirp", "macvtap", "passt"} {
			if lookup(locate(c.root, in()), name) != nil {
				c.fail(in(name), "the binding is empty", fmt.Sprintf("write %s: {}", name))
				return
			}
		}
		c.fail(in(), "no binding: nobody can tell how the interface is connected", "add masquerade: {} or bridge: {}")
	case bindings > 1:
		c.fail(in(), "an interface has exactly one binding", "keep masquerade or bridge")
	case iface.Masquerade != nil && network != nil && network.Pod == nil:
		c.fail(in("masquerade"), "masquerade works on the pod network only", "use bridge")
	}
}

// checkMAC checks an explicit MAC address and claims it.
func (c *checker) checkMAC(mac string, path func() []any) {
	if mac == "" {
		return
	}
	parsed, err := net.ParseMAC(mac)
	switch {
	case err != nil || len(parsed) != 6:
		c.fail(path(), quoteValue(mac)+" is not a MAC address", "write it as 02:00:5e:10:00:01, or leave it out")
		return
	case parsed[0]&1 != 0:
		c.fail(path(), quoteValue(mac)+" is a group address", "use an even first byte, such as 02")
		return
	case parsed.String() == "00:00:00:00:00:00":
		c.fail(path(), "the MAC address is all zeros", "leave it out, gitvirt derives one")
		return
	}
	for _, other := range c.claims {
		if other.kind == claimMAC && other.value == parsed.String() {
			c.fail(path(), fmt.Sprintf("two interfaces of this machine have the MAC address %s; the first is at line %d", parsed, other.position.Line), "change one")
			return
		}
	}
	c.claim(claimMAC, parsed.String(), path(), false)
}

func (c *checker) checkPorts(iface *kubevirtv1.Interface, in func(...any) []any) {
	named := map[string]bool{}
	for p, port := range iface.Ports {
		if port.Port < 1 || port.Port > 65535 {
			c.fail(in("ports", p, "port"), fmt.Sprintf("%d is not a port", port.Port), "use a number from 1 to 65535")
		}
		oneOf(c, func() []any { return in("ports", p, "protocol") }, port.Protocol, "TCP", "UDP")
		if port.Name == "" {
			continue
		}
		if problem := nameProblem(port.Name, 15, false); problem != "" {
			c.fail(in("ports", p, "name"), problem, "use up to 15 lower case letters, digits and dashes")
		}
		if named[port.Name] {
			c.fail(in("ports", p, "name"), "two ports are named "+quoteValue(port.Name), "rename one")
		}
		named[port.Name] = true
	}
}

// checkPCIAddress wants domain:bus:slot.function in hexadecimal, such as 0000:81:01.0.
func (c *checker) checkPCIAddress(path []any, address string) {
	parts := strings.FieldsFunc(address, func(r rune) bool { return r == ':' || r == '.' })
	ok := len(parts) == 4 && len(address) == len("0000:81:01.0") && address[4] == ':' && address[7] == ':' && address[10] == '.'
	for i, bits := range []int{16, 8, 5, 3} {
		if ok {
			_, err := strconv.ParseUint(parts[i], 16, bits)
			ok = err == nil
		}
	}
	if !ok {
		c.fail(path, quoteValue(address)+" is not a PCI address", "write it as 0000:81:01.0")
	}
}

// checkBootOrder wants numbers from 1 on, each only once among disks and interfaces.
func (c *checker) checkBootOrder(devices *kubevirtv1.Devices) {
	type place struct {
		order uint
		name  string
	}
	var taken []place
	check := func(list string, i int, name string, order *uint) {
		if order == nil {
			return
		}
		path := c.in("domain", "devices", list, i, "bootOrder")
		if *order < 1 {
			c.fail(path, "must be at least 1", "begin with 1")
			return
		}
		for _, other := range taken {
			if other.order == *order {
				c.fail(path, fmt.Sprintf("%s has the boot order %d already", quoteValue(other.name), *order), "use another number")
				return
			}
		}
		taken = append(taken, place{*order, name})
	}
	for i := range devices.Disks {
		check("disks", i, devices.Disks[i].Name, devices.Disks[i].BootOrder)
	}
	for i := range devices.Interfaces {
		check("interfaces", i, devices.Interfaces[i].Name, devices.Interfaces[i].BootOrder)
	}
}
