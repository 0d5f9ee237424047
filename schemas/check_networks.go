package schemas

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// networkProblem says why s is not the name of a network or an interface; "" when it is. KubeVirt takes more
// characters here than for volumes.
func networkProblem(s string) string {
	if len(s) > 253 {
		return fmt.Sprintf("the name is %d characters long, at most 253 are allowed", len(s))
	}
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' {
			return fmt.Sprintf("%s holds %q, which names must not", quoteValue(s), r)
		}
	}
	return ""
}

func (c *checker) checkNetworks(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	c.checkUnique("networks", len(spec.Networks), func(i int) string { return spec.Networks[i].Name }, networkProblem, "networks")
	pod, main := -1, -1
	for i := range spec.Networks {
		network := &spec.Networks[i]
		in := func(parts ...any) []any { return c.in(append(at("networks", i), parts...)...) }
		sources := 0
		if network.Pod != nil {
			sources++
			if pod >= 0 {
				c.fail(in("pod"), fmt.Sprintf("a second pod network; the first is %s", quoteValue(spec.Networks[pod].Name)), "keep one, and use multus for the others")
			} else {
				pod = i
			}
			c.checkRanges(spec, network, in)
		}
		if network.Multus != nil {
			sources++
			c.checkMultus(network.Multus, in)
			if network.Multus.Default && main >= 0 {
				c.fail(in("multus", "default"), fmt.Sprintf("a second default network; the first is %s", quoteValue(spec.Networks[main].Name)), "keep one")
			} else if network.Multus.Default {
				main = i
			}
		}
		if network.ResourceClaim != nil {
			sources++
		}
		switch {
		case sources > 1:
			c.fail(in(), "a network is one of pod and multus", "keep one")
		case sources == 0:
			c.fail(in(), "the network has no kind", "add pod: {} or multus")
		}
		if network.Name != "" && interfaceNamed(spec, network.Name) == nil && !c.listMisread(c.in("domain", "devices", "interfaces")) {
			c.fail(in("name"), "no interface is named "+quoteValue(network.Name), "add an interface of this name, or remove the network")
		}
	}
	if pod >= 0 && main >= 0 {
		c.fail(c.in("networks", main, "multus", "default"), fmt.Sprintf("the pod network %s is the default already", quoteValue(spec.Networks[pod].Name)), "remove one of the two")
	}
}

// checkMultus checks the name of a network: NAME, or NAMESPACE/NAME.
func (c *checker) checkMultus(multus *kubevirtv1.MultusNetwork, in func(...any) []any) {
	name := multus.NetworkName
	if name == "" {
		c.fail(in("multus", "networkName"), "no networkName", "name the network")
		return
	}
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		namespace, rest = DefaultNamespace, name
	}
	if nameProblem(namespace, 63, false) != "" || !isToken(rest) {
		c.fail(in("multus", "networkName"), quoteValue(name)+" is not the name of a network", "write it as name or namespace/name")
	}
}

// The longest prefixes of the ranges that user-mode networking takes from libvirt.
const (
	maxUserPrefix4 = 27
	maxUserPrefix6 = 120
)

// checkRanges checks the address ranges of a pod network, which are those of user-mode networking.
func (c *checker) checkRanges(spec *kubevirtv1.VirtualMachineInstanceSpec, network *kubevirtv1.Network, in func(...any) []any) {
	iface := interfaceNamed(spec, network.Name)
	for _, cidr := range []struct {
		name, value string
		most        int
	}{{"vmNetworkCIDR", network.Pod.VMNetworkCIDR, maxUserPrefix4}, {"vmIPv6NetworkCIDR", network.Pod.VMIPv6NetworkCIDR, maxUserPrefix6}} {
		if cidr.value == "" {
			continue
		}
		prefix, err := netip.ParsePrefix(cidr.value)
		switch {
		case err != nil || prefix.Addr().Is4() != (cidr.most == maxUserPrefix4):
			c.fail(in("pod", cidr.name), quoteValue(cidr.value)+" is not such a network", "write it as 10.0.2.0/24 or fd10:0:2::/120")
		case prefix.Bits() > cidr.most:
			c.fail(in("pod", cidr.name), fmt.Sprintf("a prefix of %d bits leaves no room for gateway, name server and guest", prefix.Bits()), fmt.Sprintf("use at most /%d", cidr.most))
		case iface != nil && (iface.Bridge != nil || iface.SRIOV != nil):
			c.warn(in("pod", cidr.name), "only masquerade has an address range of its own", "remove it, or use masquerade")
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
	c.checkUnique("interfaces", len(interfaces), func(i int) string { return interfaces[i].Name }, networkProblem, "domain", "devices", "interfaces")
	configDrive := slices.ContainsFunc(spec.Volumes, func(v kubevirtv1.Volume) bool { return v.CloudInitConfigDrive != nil })
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
		c.checkState(iface, network, in)
		c.checkMAC(iface.MacAddress, func() []any { return in("macAddress") })
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
		c.checkPortRanges(iface, in)
		c.checkForwards(iface, network, in)
		c.checkDHCP(iface.DHCPOptions, in)
		if iface.Tag != "" && !configDrive {
			c.warn(in("tag"), "tags are handed over on a config drive, and the machine has none", "add a cloudInitConfigDrive volume, or remove the tag")
		}
	}
}

func (c *checker) checkState(iface *kubevirtv1.Interface, network *kubevirtv1.Network, in func(...any) []any) {
	oneOf(c, func() []any { return in("state") }, iface.State, kubevirtv1.InterfaceStateLinkUp, kubevirtv1.InterfaceStateLinkDown, kubevirtv1.InterfaceStateAbsent)
	switch {
	case iface.State == kubevirtv1.InterfaceStateAbsent && iface.Bridge == nil:
		c.fail(in("state"), "only an interface with bridge can be absent", "remove the interface and its network")
	case iface.State == kubevirtv1.InterfaceStateAbsent && network != nil && (network.Pod != nil || network.Multus != nil && network.Multus.Default):
		c.fail(in("state"), "the interface of the default network cannot be absent", "remove the interface and its network")
	case iface.State != "" && iface.State != kubevirtv1.InterfaceStateAbsent && iface.SRIOV != nil:
		c.fail(in("state"), "the link of an sriov interface is the device's own", "remove it")
	}
}

func (c *checker) checkBinding(iface *kubevirtv1.Interface, network *kubevirtv1.Network, in func(...any) []any) {
	bindings, name := 0, ""
	pod, multus := network != nil && network.Pod != nil, network != nil && network.Multus != nil
	needsPod, needsMultus := false, false
	for _, binding := range []struct {
		name           string
		set            bool
		onPod, onOther bool
	}{
		{"bridge", iface.Bridge != nil, true, true},
		{"masquerade", iface.Masquerade != nil, true, false},
		{"sriov", iface.SRIOV != nil, false, true},
		{"passtBinding", iface.PasstBinding != nil, true, false},
		{"binding", iface.Binding != nil, true, true},
		{"slirp", iface.DeprecatedSlirp != nil, true, false},
		{"macvtap", iface.DeprecatedMacvtap != nil, false, true},
		{"passt", iface.DeprecatedPasst != nil, true, false},
	} {
		if binding.set {
			bindings++
			name, needsPod, needsMultus = binding.name, !binding.onOther, !binding.onPod
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
	case needsPod && network != nil && !pod:
		c.fail(in(name), name+" works on the pod network only", "use bridge")
	case needsMultus && network != nil && !multus && network.ResourceClaim == nil:
		c.fail(in(name), name+" connects to a network of the host, not to the pod network", "use multus with the name of the network")
	}
}

// checkMAC checks an explicit MAC address and holds it.
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
	for _, other := range c.holdings {
		if other.kind == holdsMAC && other.value == parsed.String() {
			c.fail(path(), fmt.Sprintf("two interfaces of this machine have the MAC address %s; the first is at line %d", parsed, other.position.Line), "change one")
			return
		}
	}
	c.hold(holdsMAC, parsed.String(), path(), false)
}
