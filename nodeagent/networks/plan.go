package networks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

const (
	// podLink is the interface that Kubernetes gives every Pod.
	podLink = "eth0"
	// The ranges of KubeVirt's, for a guest behind NAT whose manifest names none.
	defaultRange4, defaultRange6 = "10.0.2.0/24", "fd10:0:2::/120"
)

// router6 is the address by which guests know their IPv6 router: an advertisement comes from a link-local address. In a bridged guest it
// stands for the Pod's gateway, see Guest.NextHop6.
func router6() netip.Addr { return netip.MustParseAddr("fe80::1") }

// server4 is the address by which bridged guests know the DHCP server, where the Pod has none of its own any more.
func server4() netip.Addr { return netip.MustParseAddr("169.254.75.10") }

// Plan says what network a VM has in a Pod. It reads and changes nothing. An error is the manifest's (a binding that
// cannot be had) or the Pod's (an interface that is not there).
func Plan(machine Machine, pod Facts) (Wanted, error) {
	var wanted Wanted
	spec, taken := machine.Spec, map[string]string{}
	for i := range spec.Domain.Devices.Interfaces {
		in := &spec.Domain.Devices.Interfaces[i]
		if in.SRIOV != nil || in.State == kubevirtv1.InterfaceStateAbsent {
			continue
		}
		planned, err := machine.plan(in, pod)
		if err != nil {
			return Wanted{}, fmt.Errorf("interface %s: %w", in.Name, err)
		}
		if other, twice := taken[planned.Link.Name]; twice {
			return Wanted{}, fmt.Errorf("interface %s: the Pod's interface %s is that of %s already", in.Name, planned.Link.Name, other)
		}
		taken[planned.Link.Name] = in.Name
		wanted.Interfaces = append(wanted.Interfaces, *planned)
	}
	return wanted, nil
}

func (m *Machine) plan(in *kubevirtv1.Interface, pod Facts) (*Interface, error) {
	name, main, err := m.linkOf(in.Name)
	if err != nil {
		return nil, err
	}
	link := pod.link(name)
	if link == nil {
		return nil, fmt.Errorf("the Pod has no interface %s: is the network attached to it?", name)
	}
	out := &Interface{Name: in.Name, Link: *link, Tap: tapName(in.Name, main), MTU: link.MTU, MAC: manifestMAC(in), Queues: 1}
	if in.Model == "" || in.Model == kubevirtv1.VirtIO {
		out.Queues, out.VHost = domainxml.Queues(m.Spec), m.VHost // other cards have one queue, and no help from the kernel
	}
	switch {
	case in.Masquerade != nil && !main:
		return nil, errors.New("masquerade is for the pod network; use bridge")
	case in.Masquerade != nil:
		out.MAC = cmp.Or(out.MAC, schemas.MACAddress(m.Address, in.Name))
		err = m.masquerade(out, in)
	case in.Bridge != nil:
		out.MAC, out.Bridge = cmp.Or(out.MAC, link.MAC), bridgeName(in.Name, main)
		m.bridge(out, in, main)
	default:
		err = errors.New("a Pod has bindings of two kinds, masquerade and bridge")
	}
	if err != nil {
		return nil, err
	}
	if _, err := net.ParseMAC(out.MAC); err != nil {
		return nil, fmt.Errorf("reading its MAC address: %w", err)
	}
	return out, nil
}

// linkOf returns the Pod's interface for a network, and whether it is the Pod's default one.
func (m *Machine) linkOf(network string) (link string, main bool, err error) {
	further := 0
	for i := range m.Spec.Networks {
		of := &m.Spec.Networks[i]
		main = of.Pod != nil || of.Multus != nil && of.Multus.Default
		if !main {
			further++
		}
		if of.Name != network {
			continue
		}
		if main {
			return cmp.Or(m.Links[network], podLink), true, nil
		}
		return cmp.Or(m.Links[network], "net"+strconv.Itoa(further)), false, nil
	}
	return "", false, errors.New("it has no network")
}

// hashed is a name's part that makes it unlike others: interfaces of the kernel have 15 characters. It is KubeVirt's.
func hashed(network string) string {
	sum := sha256.Sum256([]byte(network))
	return hex.EncodeToString(sum[:])[:11]
}

// The names of what is made in a Pod. Whatever has such a name is ours: nobody else makes taps and bridges there.
const (
	tapPrefix    = "tap"
	bridgePrefix = "gvbr"
)

// tapName names devices by the manifest's names, so that a network that goes takes no other's device along.
func tapName(network string, main bool) string {
	if main {
		return tapPrefix + "0"
	}
	return tapPrefix + hashed(network)
}

func bridgeName(network string, main bool) string {
	if main {
		return bridgePrefix + "0"
	}
	return bridgePrefix + hashed(network)
}

func manifestMAC(in *kubevirtv1.Interface) string {
	return strings.ToLower(strings.ReplaceAll(in.MacAddress, "-", ":"))
}

// masquerade gives the guest addresses of a network that is the Pod's own, in each family that the Pod has.
func (m *Machine) masquerade(out *Interface, in *kubevirtv1.Interface) error {
	range4, range6 := defaultRange4, defaultRange6
	for i := range m.Spec.Networks {
		if of := &m.Spec.Networks[i]; of.Name == in.Name && of.Pod != nil {
			range4, range6 = cmp.Or(of.Pod.VMNetworkCIDR, range4), cmp.Or(of.Pod.VMIPv6NetworkCIDR, range6)
		}
	}
	nat, guest := &Masquerade{}, m.guest(out, in)
	for _, family := range []struct {
		is4  bool
		text string
		wire *Wire
	}{{true, range4, &nat.IPv4}, {false, range6, &nat.IPv6}} {
		if !out.Link.has(family.is4) {
			continue
		}
		prefix, err := netip.ParsePrefix(family.text)
		if err != nil || prefix.Addr().Is4() != family.is4 {
			return fmt.Errorf("network %q: want an address and a prefix, such as 10.0.2.0/24 or fd10:0:2::/120", family.text)
		}
		gateway := prefix.Masked().Addr().Next()
		*family.wire = Wire{Gateway: netip.PrefixFrom(gateway, prefix.Bits()), Guest: gateway.Next()}
		if !prefix.Contains(gateway.Next()) || family.is4 && prefix.Bits() > 30 {
			return fmt.Errorf("network %q is too small for a gateway and a guest: want /30 or /126 at most", family.text)
		}
	}
	if wire := nat.IPv4; wire.exists() {
		guest.IPv4 = netip.PrefixFrom(wire.Guest, wire.Gateway.Bits())
		guest.Router4, guest.Server4 = wire.Gateway.Addr(), wire.Gateway.Addr()
		guest.Routes4 = []Route{{Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Gateway: guest.Router4}}
	}
	if wire := nat.IPv6; wire.exists() {
		guest.IPv6 = []netip.Prefix{netip.PrefixFrom(wire.Guest, wire.Gateway.Bits())}
		guest.Router6 = router6()
		guest.Routes6 = []Route{{Destination: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Gateway: guest.Router6}}
	}
	nat.Ports = portsOf(in)
	out.Masquerade = nat
	if len(guest.IPv6) > 0 || guest.IPv4.IsValid() {
		out.Guest = guest
	}
	return nil
}

func (l *Link) has(is4 bool) bool {
	for _, address := range l.Addresses {
		if address.Addr().Is4() == is4 {
			return true
		}
	}
	return false
}

func portsOf(in *kubevirtv1.Interface) []Ports {
	var out []Ports
	for _, port := range in.Ports {
		out = append(out, Ports{Protocol: cmp.Or(strings.ToUpper(port.Protocol), "TCP"), First: uint16(port.Port), Last: uint16(port.Port)}) //nolint:gosec // the manifest's checks allow 1 to 65535
	}
	for _, ports := range in.PortRanges {
		out = append(out, Ports{Protocol: cmp.Or(strings.ToUpper(ports.Protocol), "TCP"), First: uint16(ports.Start), Last: uint16(ports.End)}) //nolint:gosec // as above
	}
	return out
}

// guest is what a guest is told in any case.
func (m *Machine) guest(out *Interface, in *kubevirtv1.Interface) *Guest {
	return &Guest{MTU: out.MTU, Hostname: cmp.Or(m.Spec.Hostname, m.Address.Name), DNS: m.DNS, Options: in.DHCPOptions}
}

// bridge gives the guest the addresses and routes of the Pod's interface, if that has any.
func (m *Machine) bridge(out *Interface, in *kubevirtv1.Interface, main bool) {
	if len(out.Link.Addresses) == 0 {
		return
	}
	guest := m.guest(out, in)
	if !main {
		guest.DNS = DNS{} // that of the Pod is reached over its default network
	}
	for _, address := range out.Link.Addresses {
		switch {
		case address.Addr().Is6():
			guest.IPv6 = append(guest.IPv6, address)
		case !guest.IPv4.IsValid():
			guest.IPv4, guest.Server4 = address, server4() // DHCP has words for one
		}
	}
	for _, route := range out.Link.Routes {
		is4, whole := route.Destination.Addr().Is4(), route.Destination.Bits() == 0
		switch {
		case is4 && guest.IPv4.IsValid():
			guest.Routes4 = append(guest.Routes4, route)
			if whole && guest.IPv4.Masked().Contains(route.Gateway) && !guest.Router4.IsValid() {
				guest.Router4 = route.Gateway
			}
		case !is4 && len(guest.IPv6) > 0:
			guest.Routes6 = append(guest.Routes6, route)
			if route.Gateway.IsValid() && (whole || !guest.NextHop6.IsValid()) {
				guest.NextHop6 = route.Gateway
			}
		}
	}
	if guest.NextHop6.IsValid() {
		guest.Router6 = router6()
		if guest.NextHop6.IsLinkLocalUnicast() {
			guest.Router6 = guest.NextHop6.WithZone("")
		}
	}
	out.Guest = guest
}

// outside4 are the gateways of the guest's routes that are not in its own network, so that nobody may be there who answers for them.
func (g *Guest) outside4() []netip.Addr {
	var out []netip.Addr
	for _, route := range g.Routes4 {
		if route.Gateway.IsValid() && !g.IPv4.Masked().Contains(route.Gateway) && !containsAddr(out, route.Gateway) {
			out = append(out, route.Gateway)
		}
	}
	return out
}

func containsAddr(all []netip.Addr, one netip.Addr) bool {
	for _, other := range all {
		if other == one {
			return true
		}
	}
	return false
}

// ParseResolvConf reads a Pod's /etc/resolv.conf. What it cannot read it leaves out: the file is the kubelet's.
func ParseResolvConf(text string) DNS {
	var out DNS
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if server, err := netip.ParseAddr(fields[1]); err == nil && !server.IsLoopback() {
				out.Servers = append(out.Servers, server.WithZone(""))
			}
		case "search":
			out.Search = fields[1:]
		case "domain":
			out.Search = fields[1:2]
		}
	}
	return out
}

// AttachedLinks reads from the annotation k8s.v1.cni.cncf.io/network-status of a Pod which of its interfaces is which network of the VM.
// An empty annotation says nothing, and Plan goes by the order of the networks.
func AttachedLinks(spec *kubevirtv1.VirtualMachineInstanceSpec, namespace, status string) (map[string]string, error) {
	if status == "" {
		return nil, nil
	}
	var attached []struct {
		Name      string `json:"name"`
		Interface string `json:"interface"`
		Default   bool   `json:"default"`
	}
	if err := json.Unmarshal([]byte(status), &attached); err != nil {
		return nil, fmt.Errorf("reading the Pod's annotation k8s.v1.cni.cncf.io/network-status: %w", err)
	}
	out, used := map[string]string{}, map[int]bool{}
	for i := range spec.Networks {
		of := &spec.Networks[i]
		for at, one := range attached {
			name := ""
			if of.Multus != nil {
				if name = of.Multus.NetworkName; !strings.Contains(name, "/") {
					name = namespace + "/" + name
				}
			}
			fits := one.Default && (of.Pod != nil || of.Multus != nil && of.Multus.Default) || !one.Default && name != "" && one.Name == name
			if fits && !used[at] && one.Interface != "" {
				used[at], out[of.Name] = true, one.Interface
				break
			}
		}
	}
	return out, nil
}
