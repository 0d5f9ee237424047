package responder

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// Numbers of Ethernet, IP, UDP and ICMPv6.
const (
	etherIPv4, etherARP, etherIPv6 = 0x0800, 0x0806, 0x86dd
	protocolUDP, protocolICMP6     = 17, 58
	portDHCP, portDHCPClient       = 67, 68
	portDHCP6, portDHCP6Client     = 547, 546

	etherLength, ip4Length, ip6Length, udpLength = 14, 20, 40, 8
	hopLimit                                     = 255
	// defaultMTU is Ethernet's; longer answers are given to nobody.
	defaultMTU = 1500
)

// frame is what was read of a frame from a guest.
type frame struct {
	source, destination net.HardwareAddr
	kind                uint16
	// Of IP: who sends it to whom, with which protocol; hops is IPv6's hop limit.
	sender, receiver netip.Addr
	protocol, hops   byte
	// Of UDP.
	from, to uint16
	// payload is what is in UDP, ICMPv6 or ARP.
	payload []byte
}

// parse reads a frame as far as it is one of those that are answered. Checksums are not looked at: a guest leaves them to the network card.
func parse(bytes []byte) (frame, bool) {
	if len(bytes) < etherLength || len(bytes) > maxFrame {
		return frame{}, false
	}
	out := frame{destination: bytes[:6], source: bytes[6:12], kind: binary.BigEndian.Uint16(bytes[12:])}
	body := bytes[etherLength:]
	switch out.kind {
	case etherARP:
		out.payload = body
		return out, true
	case etherIPv4:
		ok := out.ip4(body)
		return out, ok
	case etherIPv6:
		ok := out.ip6(body)
		return out, ok
	}
	return frame{}, false
}

func (f *frame) ip4(body []byte) bool {
	if len(body) < ip4Length || body[0]>>4 != 4 {
		return false
	}
	header, total := int(body[0]&15)*4, int(binary.BigEndian.Uint16(body[2:]))
	fragment := binary.BigEndian.Uint16(body[6:]) & 0x3fff // the offset, and whether there are more
	if header < ip4Length || total < header || total > len(body) || fragment != 0 || body[9] != protocolUDP {
		return false
	}
	f.protocol = body[9]
	f.sender, f.receiver = netip.AddrFrom4([4]byte(body[12:16])), netip.AddrFrom4([4]byte(body[16:20]))
	return f.udp(body[header:total])
}

func (f *frame) ip6(body []byte) bool {
	if len(body) < ip6Length || body[0]>>4 != 6 {
		return false
	}
	total := int(binary.BigEndian.Uint16(body[4:]))
	if total > len(body)-ip6Length {
		return false
	}
	f.protocol, f.hops = body[6], body[7]
	f.sender, f.receiver = netip.AddrFrom16([16]byte(body[8:24])), netip.AddrFrom16([16]byte(body[24:40]))
	body = body[ip6Length : ip6Length+total]
	switch f.protocol { // extension headers have no business in what is answered
	case protocolUDP:
		return f.udp(body)
	case protocolICMP6:
		f.payload = body
		return len(body) >= 8
	}
	return false
}

func (f *frame) udp(body []byte) bool {
	if len(body) < udpLength {
		return false
	}
	length := int(binary.BigEndian.Uint16(body[4:]))
	if length < udpLength || length > len(body) {
		return false
	}
	f.from, f.to = binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
	f.payload = body[udpLength:length]
	return true
}

func ethernet(to, from net.HardwareAddr, kind uint16, body []byte) []byte {
	out := make([]byte, 0, etherLength+len(body))
	out = append(append(out, to...), from...)
	return append(binary.BigEndian.AppendUint16(out, kind), body...)
}

// udp4 is a UDP packet of IPv4's from the server to a client.
func (c *Config) udp4(mac net.HardwareAddr, from, to netip.Addr, payload []byte) []byte {
	out := make([]byte, ip4Length+udpLength, ip4Length+udpLength+len(payload))
	out[0], out[8], out[9] = 0x45, 64, protocolUDP
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)+len(payload))) //nolint:gosec // it fits into a frame
	binary.BigEndian.PutUint16(out[6:], 0x4000)                        // not to be fragmented
	copy(out[12:], from.AsSlice())
	copy(out[16:], to.AsSlice())
	binary.BigEndian.PutUint16(out[10:], checksum(0, out[:ip4Length]))
	out = udp(out[:ip4Length], from, to, portDHCP, portDHCPClient, payload)
	return ethernet(mac, c.Own, etherIPv4, out)
}

// ip6 puts a header of IPv6 before a payload that begins after room for one.
func (c *Config) ip6(mac net.HardwareAddr, from, to netip.Addr, protocol byte, packet []byte) []byte {
	packet[0], packet[6], packet[7] = 0x60, protocol, hopLimit
	binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-ip6Length)) //nolint:gosec // what is answered fits into a frame
	copy(packet[8:], from.AsSlice())
	copy(packet[24:], to.AsSlice())
	return ethernet(mac, c.Own, etherIPv6, packet)
}

// icmp6Message is an ICMPv6 message; body begins with its type.
func (c *Config) icmp6Message(mac net.HardwareAddr, from, to netip.Addr, body []byte) []byte {
	binary.BigEndian.PutUint16(body[2:], checksum(pseudo(from, to, protocolICMP6, len(body)), body))
	return c.ip6(mac, from, to, protocolICMP6, append(make([]byte, ip6Length), body...))
}

// udp appends a UDP packet to a header of IP.
func udp(header []byte, from, to netip.Addr, source, destination uint16, payload []byte) []byte {
	start, length := len(header), udpLength+len(payload)
	out := binary.BigEndian.AppendUint16(header, source)
	out = binary.BigEndian.AppendUint16(out, destination)
	out = binary.BigEndian.AppendUint16(out, uint16(length)) //nolint:gosec // bounded by who calls
	out = append(append(out, 0, 0), payload...)
	sum := checksum(pseudo(from, to, protocolUDP, length), out[start:])
	if sum == 0 {
		sum = 0xffff // 0 says that there is none
	}
	binary.BigEndian.PutUint16(out[start+6:], sum)
	return out
}

// pseudo is the sum over what UDP and ICMPv6 count in of IP's header.
func pseudo(from, to netip.Addr, protocol byte, length int) uint32 {
	sum := uint32(protocol) + uint32(length) //nolint:gosec // a packet's length
	for _, address := range [][]byte{from.AsSlice(), to.AsSlice()} {
		for i := 0; i+1 < len(address); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(address[i:]))
		}
	}
	return sum
}

// checksum is the Internet's (RFC 1071).
func checksum(sum uint32, bytes []byte) uint16 {
	for ; len(bytes) >= 2; bytes = bytes[2:] {
		sum += uint32(binary.BigEndian.Uint16(bytes))
	}
	if len(bytes) > 0 {
		sum += uint32(bytes[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
