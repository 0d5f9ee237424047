package schemas

import (
	"cmp"
	"crypto/sha256"
	"net/netip"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// MaxForwardedPorts is how many ports of one machine a host forwards: each is a socket of its QEMU.
const MaxForwardedPorts = 256

// ForwardedPort is a port of a guest behind user-mode networking that its manifest opens to the host.
type ForwardedPort struct {
	// Protocol is TCP or UDP.
	Protocol string
	Port     uint16
}

// LoopbackAddress is the address at which a host reaches an interface behind user-mode networking, always the same for the
// same namespace, name and interface. It is one of 127.1.0.1 to 127.254.255.254: 127.0.0.0/16 is used by many programs, and
// some take .0 and .255 for no addresses of hosts.
func LoopbackAddress(a Address, interfaceName string) netip.Addr {
	sum := sha256.Sum256([]byte("loopback\x00" + a.Namespace + "/" + a.Name + "\x00" + interfaceName))
	return netip.AddrFrom4([4]byte{127, 1 + sum[0]%254, sum[1], 1 + sum[2]%254})
}

// UserModeInterface returns the interface that a host puts behind user-mode networking, or nil. There is at most one: it is
// on the pod network.
func UserModeInterface(spec *kubevirtv1.VirtualMachineInstanceSpec) *kubevirtv1.Interface {
	for i := range spec.Domain.Devices.Interfaces {
		in := &spec.Domain.Devices.Interfaces[i]
		if in.Bridge != nil || in.SRIOV != nil || in.State == kubevirtv1.InterfaceStateAbsent {
			continue
		}
		if network := networkNamed(spec, in.Name); network != nil && network.Pod != nil {
			return in
		}
	}
	return nil
}

// ForwardedPorts returns the ports that an interface opens, ordered and each once, or reports that there are more than
// MaxForwardedPorts.
func ForwardedPorts(in *kubevirtv1.Interface) (ports []ForwardedPort, tooMany bool) {
	if in == nil {
		return nil, false
	}
	wanted := map[ForwardedPort]struct{}{}
	add := func(protocol string, from, to int32) {
		if protocol == "" {
			protocol = "TCP"
		}
		for port := max(from, 1); port <= min(to, 65535) && len(wanted) <= MaxForwardedPorts; port++ {
			wanted[ForwardedPort{protocol, uint16(port)}] = struct{}{} //nolint:gosec // within the bounds of the loop
		}
	}
	for _, port := range in.Ports {
		add(port.Protocol, port.Port, port.Port)
	}
	for _, ports := range in.PortRanges {
		add(ports.Protocol, ports.Start, ports.End)
	}
	if len(wanted) > MaxForwardedPorts {
		return nil, true
	}
	for port := range wanted {
		ports = append(ports, port)
	}
	slices.SortFunc(ports, func(a, b ForwardedPort) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return ports, false
}
