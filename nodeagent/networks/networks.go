// Package networks makes the network of a VM's guest inside its Pod's network namespace, from outside, with the privileges
// that the launcher in the Pod does not have: tap devices, bridges, NAT, and what a guest asks its network for (DHCP,
// router advertisements, the address of its gateway). It enters the namespace for single system calls only, and runs no program.
//
// An agent uses it in two phases. Before the domain is defined:
//
//	pod, err := networks.Open("/proc/PID/ns/net", stateDir) // stateDir: one folder per Pod; networks.json is kept there
//	defer pod.Close()
//	facts, err := pod.Read(ctx)                             // what the Pod was given by its CNI, however often Ensure ran
//	wanted, err := networks.Plan(networks.Machine{Address: ..., Spec: ..., DNS: networks.ParseResolvConf(...)}, facts)
//	err = pod.Ensure(ctx, wanted)                           // idempotent; finishes what a killed agent left
//	assignment.Taps = wanted.Taps()                         // for domainxml, and the record
//
// While the guest runs, and again after each start of the agent (Ensure first: it changes nothing that is right):
//
//	err = pod.Serve(ctx, wanted) // until ctx ends; no guest loses its network while nobody serves, only answers to new questions
//
// Remove undoes everything, for a Pod that goes on living without the guest. A Pod that ends takes its namespace with it.
package networks

import (
	"fmt"
	"net/netip"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// TapOwner is the user that may open tap devices, that of QEMU in the Pod.
const TapOwner = 107

// Machine is a VM whose network is planned.
type Machine struct {
	// Address is the one that the domain was made under (domainxml.Record.Made): MAC addresses derive from it.
	Address schemas.Address
	Spec    *kubevirtv1.VirtualMachineInstanceSpec
	// DNS is that of the Pod.
	DNS DNS
	// Links has the Pod's interface for networks, by their names in the manifest, as AttachedLinks reads them. Of one that
	// is missing here, Plan takes eth0 for the default network and net1, net2, ... for those of Multus, in their order.
	Links map[string]string
	// VHost says that the Pod has /dev/vhost-net.
	VHost bool
}

// DNS is how names are looked up.
type DNS struct {
	Servers []netip.Addr
	Search  []string
}

// Facts is what a Pod's namespace was given, before anything was made in it for a guest.
type Facts struct {
	Links []Link `json:"links"`
}

// Link is an interface of a Pod.
type Link struct {
	Name string `json:"name"`
	MAC  string `json:"mac"`
	MTU  int    `json:"mtu"`
	// Addresses are the global ones, in the kernel's order, with the length of their network's prefix.
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Routes are those of the main table over this interface, without those that follow from the addresses.
	Routes []Route `json:"routes,omitempty"`
	// Neighbours are the gateways of these routes whose MAC address is known.
	Neighbours []Neighbour `json:"neighbours,omitempty"`
}

// Route says where packets go.
type Route struct {
	Destination netip.Prefix `json:"destination"`
	// Gateway is the next hop; the zero Addr for what is reached directly.
	Gateway netip.Addr `json:"gateway,omitzero"`
	Metric  int        `json:"metric,omitempty"`
}

// Neighbour is a host on a Pod's network.
type Neighbour struct {
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`
	// Permanent says that it was written down by somebody, and not asked for.
	Permanent bool `json:"permanent,omitempty"`
}

// link returns an interface by its name.
func (f *Facts) link(name string) *Link {
	for i := range f.Links {
		if f.Links[i].Name == name {
			return &f.Links[i]
		}
	}
	return nil
}

// Wanted is the network of a VM: one entry for each interface of its manifest that is plugged in.
type Wanted struct {
	Interfaces []Interface
}

// Interface is one network card, and how it is connected.
type Interface struct {
	// Name is that in the manifest.
	Name string
	// Link is the Pod's interface, as the Pod was given it.
	Link Link
	// Tap is the device that QEMU opens; Bridge connects it with Link, "" for masquerade.
	Tap, Bridge string
	// MAC is the guest's address, MTU that of Link.
	MAC string
	MTU int
	// Queues is how many pairs of queues the device has, at least 1.
	Queues int
	VHost  bool
	// Masquerade says how the guest shares the Pod's addresses; nil for a bridge.
	Masquerade *Masquerade
	// Guest is what the guest is told; nil for a network that has no addresses for it.
	Guest *Guest
}

// Masquerade is the NAT between a guest and the addresses of its Pod.
type Masquerade struct {
	// IPv4 and IPv6 are the two ends of the wire between Pod and guest; the zero value where the Pod has no such address.
	IPv4, IPv6 Wire
	// Ports lead to the guest; empty stands for all there are, of every protocol.
	Ports []Ports
}

// Wire is what connects a Pod and a guest behind its NAT.
type Wire struct {
	Gateway netip.Prefix
	Guest   netip.Addr
}

func (w Wire) exists() bool { return w.Guest.IsValid() }

// Ports is a range of ports.
type Ports struct {
	// Protocol is TCP or UDP.
	Protocol    string
	First, Last uint16
}

// Guest is what a guest is told about its network.
type Guest struct {
	// IPv4 is its address with the prefix of its network; the zero Prefix for none.
	IPv4 netip.Prefix
	// Routes4 are the guest's, Router4 is the gateway of its default route where the network of IPv4 has it in it.
	Routes4 []Route
	Router4 netip.Addr
	// Server4 is the address by which the guest knows the DHCP server.
	Server4 netip.Addr
	// IPv6 are its addresses, each with the prefix of its network.
	IPv6 []netip.Prefix
	// Routes6 are the guest's. Router6 is the gateway that the advertisements come from; they name no other.
	Routes6 []Route
	Router6 netip.Addr
	// NextHop6 is the Pod's real gateway, whose MAC address Router6 is given in a bridged guest.
	NextHop6 netip.Addr

	MTU      int
	Hostname string
	DNS      DNS
	// Options are those of the manifest.
	Options *kubevirtv1.DHCPOptions
}

// Taps are what domainxml renders the interfaces with.
func (w Wanted) Taps() []domainxml.Tap {
	var out []domainxml.Tap
	for _, in := range w.Interfaces {
		out = append(out, domainxml.Tap{Name: in.Name, Device: in.Tap, MAC: in.MAC, MTU: in.MTU, Queues: in.Queues, VHost: in.VHost})
	}
	return out
}

// interfaceError says which interface something is wrong with.
func interfaceError(in *Interface, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("interface %s (%s): %w", in.Name, in.Link.Name, err)
}
