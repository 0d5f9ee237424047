package responder

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// infinite is a lease that never ends (RFC 2131): the guest's address is its own as long as its Pod lives.
const infinite = 0xffffffff * time.Second

// dhcp4 answers a DHCP client. It knows one address: a client that wants another is told that it cannot have it.
func (c *Config) dhcp4(in *frame) [][]byte {
	request, err := dhcpv4.FromBytes(in.payload)
	if err != nil || request.OpCode != dhcpv4.OpcodeBootRequest || !slices.Equal(request.ClientHWAddr, c.Guest) || !request.GatewayIPAddr.IsUnspecified() && request.GatewayIPAddr != nil {
		return nil
	}
	var kind dhcpv4.MessageType
	switch request.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		kind = dhcpv4.MessageTypeOffer
	case dhcpv4.MessageTypeRequest:
		if server := request.ServerIdentifier(); server != nil && !sameAddr(server, c.IPv4.Server) {
			return nil // it has chosen another server's offer
		}
		wanted := request.RequestedIPAddress()
		if wanted == nil {
			wanted = request.ClientIPAddr
		}
		if kind = dhcpv4.MessageTypeAck; !sameAddr(wanted, c.IPv4.Address.Addr()) {
			kind = dhcpv4.MessageTypeNak
		}
	case dhcpv4.MessageTypeInform:
		kind = dhcpv4.MessageTypeAck
	default:
		return nil
	}
	reply, err := c.reply4(request, kind)
	if err != nil {
		return nil
	}
	payload := reply.ToBytes()
	if len(payload) > c.room(ip4Length) {
		reply.Options.Del(dhcpv4.OptionDNSDomainSearchList) // the one that can be long; its first domain is told apart from it
		payload = reply.ToBytes()
	}
	if len(payload) > c.room(ip4Length) {
		return nil
	}
	mac, to := c.destination4(request, kind)
	return [][]byte{c.udp4(mac, c.IPv4.Server, to, payload)}
}

// room is how much fits into a UDP packet after a header of IP.
func (c *Config) room(header int) int {
	if c.MTU <= 0 {
		return defaultMTU - header - udpLength
	}
	return min(c.MTU, defaultMTU) - header - udpLength
}

func (c *Config) reply4(request *dhcpv4.DHCPv4, kind dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	modifiers := []dhcpv4.Modifier{dhcpv4.WithMessageType(kind), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(ip(c.IPv4.Server)))}
	if kind != dhcpv4.MessageTypeNak {
		if request.MessageType() != dhcpv4.MessageTypeInform {
			modifiers = append(modifiers, dhcpv4.WithYourIP(ip(c.IPv4.Address.Addr())), dhcpv4.WithOption(dhcpv4.OptIPAddressLeaseTime(infinite)))
		}
		modifiers = append(modifiers, c.options4()...)
	}
	reply, err := dhcpv4.NewReplyFromRequest(request, modifiers...)
	if err != nil {
		return nil, err
	}
	reply.ServerIPAddr = ip(c.IPv4.Server)
	if c.IPv4.BootFile != "" && kind != dhcpv4.MessageTypeNak {
		reply.BootFileName = c.IPv4.BootFile
	}
	return reply, nil
}

// options4 are what a client is told of its network. They are few, so that they are told whether it asked or not: udhcpc
// and Windows ask for less than they read.
func (c *Config) options4() []dhcpv4.Modifier {
	of := c.IPv4
	out := []dhcpv4.Modifier{dhcpv4.WithOption(dhcpv4.OptSubnetMask(net.CIDRMask(of.Address.Bits(), 32)))}
	add := func(option dhcpv4.Option) { out = append(out, dhcpv4.WithOption(option)) }
	if of.Router.IsValid() {
		add(dhcpv4.OptRouter(ip(of.Router)))
	}
	if len(of.Routes) > 0 {
		add(dhcpv4.OptClasslessStaticRoute(routes4(of.Routes)...))
	}
	if servers := ips(c.DNS, netip.Addr.Is4); len(servers) > 0 {
		add(dhcpv4.OptDNS(servers...))
	}
	if search := labels(c.Search); len(search) > 0 {
		add(dhcpv4.OptDomainName(search[0]))
		add(dhcpv4.OptDomainSearch(&rfc1035label.Labels{Labels: search}))
	}
	if c.MTU > 0 && c.MTU <= 0xffff {
		add(dhcpv4.OptGeneric(dhcpv4.OptionInterfaceMTU, binary.BigEndian.AppendUint16(nil, uint16(c.MTU))))
	}
	if c.Hostname != "" {
		add(dhcpv4.OptHostName(c.Hostname))
	}
	if of.BootFile != "" {
		add(dhcpv4.OptBootFileName(of.BootFile))
	}
	if of.TFTPServer != "" {
		add(dhcpv4.OptTFTPServerName(of.TFTPServer))
	}
	if servers := ips(of.NTPServers, netip.Addr.Is4); len(servers) > 0 {
		add(dhcpv4.OptNTPServers(servers...))
	}
	for number, value := range of.Private {
		add(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(number), []byte(value)))
	}
	return out
}

func routes4(routes []Route) []*dhcpv4.Route {
	var out []*dhcpv4.Route
	for _, route := range routes {
		gateway := net.IPv4zero // reached directly (RFC 3442)
		if route.Gateway.IsValid() {
			gateway = ip(route.Gateway)
		}
		out = append(out, &dhcpv4.Route{
			Dest:   &net.IPNet{IP: ip(route.Destination.Masked().Addr()), Mask: net.CIDRMask(route.Destination.Bits(), 32)},
			Router: gateway,
		})
	}
	return out
}

// destination4 is where a reply goes (RFC 2131, 4.1). A client that has no address yet is reached by its MAC address.
func (c *Config) destination4(request *dhcpv4.DHCPv4, kind dhcpv4.MessageType) (net.HardwareAddr, netip.Addr) {
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	client, ok := netip.AddrFromSlice(request.ClientIPAddr.To4())
	switch {
	case kind == dhcpv4.MessageTypeNak:
	case ok && !client.IsUnspecified():
		return c.Guest, client
	case !request.IsBroadcast():
		return c.Guest, c.IPv4.Address.Addr()
	}
	return broadcast, netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

func ip(address netip.Addr) net.IP { return address.AsSlice() }

func ips(all []netip.Addr, wanted func(netip.Addr) bool) []net.IP {
	var out []net.IP
	for _, one := range all {
		if wanted(one) {
			out = append(out, ip(one))
		}
	}
	return out
}

func sameAddr(one net.IP, other netip.Addr) bool {
	address, ok := netip.AddrFromSlice(one)
	return ok && address.Unmap() == other
}

// labels are the domains that DNS's form has room for.
func labels(search []string) []string {
	var out []string
	for _, domain := range search {
		domain = strings.TrimSuffix(domain, ".")
		if len(domain) == 0 || len(domain) > 253 || slices.ContainsFunc(strings.Split(domain, "."), func(label string) bool { return label == "" || len(label) > 63 }) {
			continue
		}
		out = append(out, domain)
	}
	return out
}
