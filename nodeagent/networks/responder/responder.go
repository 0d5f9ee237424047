// Package responder answers what a guest asks its network for: an address over DHCP and DHCPv6, a router over IPv6's
// router solicitations, the MAC addresses of gateways that answer for nobody. It is pure: a frame goes in and frames come
// out. What it reads was written by a guest, which may write anything; whatever it does not understand it does not answer.
package responder

import (
	"net"
	"net/netip"
	"slices"
)

// Config is what one guest is told over one wire.
type Config struct {
	// Guest is the guest's MAC address; frames of others get no answer. Own is ours on this wire.
	Guest, Own net.HardwareAddr
	MTU        int
	Hostname   string
	DNS        []netip.Addr
	Search     []string
	// IPv4 and IPv6 are nil where the guest has no such address.
	IPv4 *IPv4
	IPv6 *IPv6
	// Neighbours are the addresses for which the guest's questions are answered, ARP's and IPv6's.
	Neighbours map[netip.Addr]net.HardwareAddr
}

// IPv4 is what DHCP hands out.
type IPv4 struct {
	// Address is the guest's with the prefix of its network, Server ours.
	Address netip.Prefix
	Server  netip.Addr
	// Router is the default gateway for clients that read no routes; the zero Addr for none.
	Router netip.Addr
	// Routes are all there are, the default route included. Without any the option is left out.
	Routes []Route
	// BootFile, TFTPServer, NTPServers and Private are further options; Private has the numbers 224 to 254.
	BootFile, TFTPServer string
	NTPServers           []netip.Addr
	Private              map[uint8]string
}

// IPv6 is what DHCPv6 hands out, and what the router says of itself.
type IPv6 struct {
	Addresses []netip.Addr
	// Router is a link-local address; the zero Addr for a network without a router, which is not advertised.
	Router netip.Addr
	// Default says that the router leads everywhere; Routes where else it leads.
	Default bool
	Routes  []netip.Prefix
	// OnLink are the networks whose addresses are reached without the router.
	OnLink []netip.Prefix
}

// Route is one of DHCP's classless routes; the zero Gateway is for what is reached directly.
type Route struct {
	Destination netip.Prefix
	Gateway     netip.Addr
}

// maxFrame is the longest frame that is looked at: nothing that a guest asks for is longer.
const maxFrame = 1600

// Answer returns the frames that answer one from the guest; none for most.
func (c *Config) Answer(bytes []byte) [][]byte {
	in, ok := parse(bytes)
	if !ok || !slices.Equal(in.source, c.Guest) {
		return nil
	}
	switch {
	case in.kind == etherARP:
		return c.arp(&in)
	case in.protocol == protocolUDP && in.kind == etherIPv4 && in.to == portDHCP && in.from == portDHCPClient && c.IPv4 != nil:
		return c.dhcp4(&in)
	case in.protocol == protocolUDP && in.kind == etherIPv6 && in.to == portDHCP6 && c.IPv6 != nil:
		return c.dhcp6(&in)
	case in.protocol == protocolICMP6:
		return c.icmp6(&in)
	}
	return nil
}

// Announce returns what a guest is told without asking: its router, and who its neighbours are now.
func (c *Config) Announce() [][]byte {
	var out [][]byte
	if c.advertises() {
		out = append(out, c.advertisement(allNodes6(), multicastMAC(allNodes6())))
	}
	for _, address := range c.sortedNeighbours() {
		if address.Is6() {
			out = append(out, c.neighbourAdvertisement(address, allNodes6(), multicastMAC(allNodes6()), false))
		}
	}
	return out
}

func (c *Config) sortedNeighbours() []netip.Addr {
	var out []netip.Addr
	for address := range c.Neighbours {
		out = append(out, address)
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
