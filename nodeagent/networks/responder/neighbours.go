package responder

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Types of ICMPv6.
const (
	routerSolicitation, routerAdvertisement       = 133, 134
	neighbourSolicitation, neighbourAdvertisement = 135, 136
)

// routerLifetime is the longest that fits (RFC 8319), in seconds: a guest keeps its default route as long as nobody is there to advertise it again.
const routerLifetime = 65535

func allNodes6() netip.Addr { return netip.AddrFrom16([16]byte{0xff, 2, 15: 1}) }

// multicastMAC is where packets to a multicast address go.
func multicastMAC(address netip.Addr) net.HardwareAddr {
	bytes := address.As16()
	return net.HardwareAddr{0x33, 0x33, bytes[12], bytes[13], bytes[14], bytes[15]}
}

// arp answers who has the address of a neighbour.
func (c *Config) arp(in *frame) [][]byte {
	const length = 28
	body := in.payload
	if len(body) < length || [8]byte(body[:8]) != [8]byte{0, 1, 8, 0, 6, 4, 0, 1} { // Ethernet, IPv4, a request
		return nil
	}
	sender, asked := netip.AddrFrom4([4]byte(body[14:18])), netip.AddrFrom4([4]byte(body[24:28]))
	mac, known := c.Neighbours[asked]
	if !known || asked == sender || [6]byte(body[8:14]) != [6]byte(c.Guest) {
		return nil
	}
	answer := []byte{0, 1, 8, 0, 6, 4, 0, 2}
	answer = append(append(answer, mac...), asked.AsSlice()...)
	answer = append(append(answer, c.Guest...), sender.AsSlice()...)
	return [][]byte{ethernet(c.Guest, c.Own, etherARP, answer)}
}

// icmp6 answers solicitations of a router, and of neighbours. A hop limit of 255 says that they come from this very wire.
func (c *Config) icmp6(in *frame) [][]byte {
	if in.hops != hopLimit || in.payload[1] != 0 {
		return nil
	}
	switch in.payload[0] {
	case routerSolicitation:
		if !c.advertises() {
			return nil
		}
		if in.sender.IsLinkLocalUnicast() {
			return [][]byte{c.advertisement(in.sender, c.Guest)}
		}
		return [][]byte{c.advertisement(allNodes6(), multicastMAC(allNodes6()))}
	case neighbourSolicitation:
		if len(in.payload) < 24 {
			return nil
		}
		asked := netip.AddrFrom16([16]byte(in.payload[8:24]))
		if _, known := c.Neighbours[asked]; !known {
			return nil
		}
		if in.sender.IsUnspecified() { // it asks whether the address is free
			return [][]byte{c.neighbourAdvertisement(asked, allNodes6(), multicastMAC(allNodes6()), false)}
		}
		return [][]byte{c.neighbourAdvertisement(asked, in.sender, c.Guest, true)}
	}
	return nil
}

func (c *Config) neighbourAdvertisement(of, to netip.Addr, mac net.HardwareAddr, solicited bool) []byte {
	flags := byte(0xa0) // a router; and what was known of it is overridden
	if solicited {
		flags |= 0x40
	}
	body := append([]byte{neighbourAdvertisement, 0, 0, 0, flags, 0, 0, 0}, of.AsSlice()...)
	body = append(append(body, 2, 1), c.Neighbours[of]...) // its link-layer address
	return c.icmp6Message(mac, of, to, body)
}

func (c *Config) advertises() bool { return c.IPv6 != nil && c.IPv6.Router.IsValid() }

// advertisement tells the guest its router, that it asks DHCPv6 for its addresses, and what is on the wire (RFC 4861, 4191, 8106).
func (c *Config) advertisement(to netip.Addr, mac net.HardwareAddr) []byte {
	of := c.IPv6
	lifetime := uint16(0)
	if of.Default {
		lifetime = routerLifetime
	}
	const managed, other = 0x80, 0x40 // addresses, and the rest, are had from DHCPv6
	body := []byte{routerAdvertisement, 0, 0, 0, 64, managed | other}
	body = binary.BigEndian.AppendUint16(body, lifetime)
	body = append(body, 0, 0, 0, 0, 0, 0, 0, 0) // nothing about times
	own := c.Own
	if of, known := c.Neighbours[of.Router]; known {
		own = of
	}
	body = append(append(body, 1, 1), own...)
	if c.MTU > 0 {
		body = binary.BigEndian.AppendUint32(append(body, 5, 1, 0, 0), uint32(c.MTU)) //nolint:gosec // an interface's
	}
	for _, prefix := range of.OnLink {
		const onLink = 0x80                                                                                                // and no addresses that the guest makes up itself
		body = append(body, 3, 4, byte(prefix.Bits()), onLink, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0) //nolint:gosec // at most 128
		body = append(body, prefix.Masked().Addr().AsSlice()...)
	}
	for _, prefix := range of.Routes {
		body = append(body, 24, 3, byte(prefix.Bits()), 0, 0xff, 0xff, 0xff, 0xff) //nolint:gosec // at most 128
		body = append(body, prefix.Masked().Addr().AsSlice()...)
	}
	if servers := ips(c.DNS, netip.Addr.Is6); len(servers) > 0 {
		servers = servers[:min(len(servers), 3)]                                      // a resolver reads no more
		body = append(body, 25, byte(1+2*len(servers)), 0, 0, 0xff, 0xff, 0xff, 0xff) //nolint:gosec // bounded above
		for _, server := range servers {
			body = append(body, server...)
		}
	}
	return c.icmp6Message(mac, of.Router, to, body)
}

// Solicits reports whether a frame of the guest's asks for somebody's MAC address.
func Solicits(bytes []byte) bool {
	in, ok := parse(bytes)
	return ok && (in.kind == etherARP || in.protocol == protocolICMP6 && in.payload[0] == neighbourSolicitation)
}

// Tells reads a frame of anybody's that tells an address and the MAC address that belongs to it.
func Tells(bytes []byte) (netip.Addr, net.HardwareAddr, bool) {
	in, ok := parse(bytes)
	if !ok {
		return netip.Addr{}, nil, false
	}
	body := in.payload
	if in.kind == etherARP {
		if len(body) < 28 || [6]byte(body[:6]) != [6]byte{0, 1, 8, 0, 6, 4} {
			return netip.Addr{}, nil, false
		}
		return unicast(netip.AddrFrom4([4]byte(body[14:18])), body[8:14])
	}
	if in.protocol != protocolICMP6 || in.hops != hopLimit || body[0] != neighbourAdvertisement || len(body) < 24 {
		return netip.Addr{}, nil, false
	}
	for options := body[24:]; len(options) >= 8; {
		length := int(options[1]) * 8
		if length == 0 || length > len(options) {
			break
		}
		if options[0] == 2 {
			return unicast(netip.AddrFrom16([16]byte(body[8:24])), options[2:8])
		}
		options = options[length:]
	}
	return netip.Addr{}, nil, false
}

// unicast copies a MAC address that may be one host's.
func unicast(address netip.Addr, mac []byte) (netip.Addr, net.HardwareAddr, bool) {
	if mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return netip.Addr{}, nil, false
	}
	return address, append(net.HardwareAddr(nil), mac...), true
}

// AskIPv4 is the question for the MAC address of asked, by a host that has the address sender.
func AskIPv4(own net.HardwareAddr, sender, asked netip.Addr) []byte {
	body := append([]byte{0, 1, 8, 0, 6, 4, 0, 1}, own...)
	body = append(append(body, sender.AsSlice()...), 0, 0, 0, 0, 0, 0)
	return ethernet(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, own, etherARP, append(body, asked.AsSlice()...))
}

// AskIPv6 is the question for the MAC address of asked, by a host that has no address: whether it is free. Who has it answers to all.
func AskIPv6(own net.HardwareAddr, asked netip.Addr) []byte {
	last := asked.As16()
	group := netip.AddrFrom16([16]byte{0xff, 2, 11: 1, 12: 0xff, last[13], last[14], last[15]})
	c := Config{Own: own}
	return c.icmp6Message(multicastMAC(group), netip.IPv6Unspecified(), group, append([]byte{neighbourSolicitation, 0, 0, 0, 0, 0, 0, 0}, asked.AsSlice()...))
}
