package responder

import (
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// forever is DHCPv6's infinity, in its whole seconds.
const forever = 0xffffffff * time.Second

// dhcp6 answers a DHCPv6 client: all of the guest's addresses, in the first association that it asks for.
func (c *Config) dhcp6(in *frame) [][]byte {
	if in.from != portDHCP6Client || !in.sender.IsLinkLocalUnicast() {
		return nil
	}
	request, err := dhcpv6.MessageFromBytes(in.payload)
	if err != nil {
		return nil
	}
	own := &dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: c.Own}
	if server := request.Options.ServerID(); server != nil && !server.Equal(own) {
		return nil
	}
	if request.Options.ClientID() == nil && request.MessageType != dhcpv6.MessageTypeInformationRequest {
		return nil
	}
	modifiers := append(c.options6(), dhcpv6.WithServerID(own))
	var reply *dhcpv6.Message
	switch request.MessageType {
	case dhcpv6.MessageTypeSolicit:
		if request.GetOneOption(dhcpv6.OptionRapidCommit) != nil {
			reply, err = dhcpv6.NewReplyFromMessage(request, append(modifiers, c.addresses6(request), dhcpv6.WithRapidCommit)...)
		} else {
			reply, err = dhcpv6.NewAdvertiseFromSolicit(request, append(modifiers, c.addresses6(request))...)
		}
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		reply, err = dhcpv6.NewReplyFromMessage(request, append(modifiers, c.addresses6(request))...)
	case dhcpv6.MessageTypeConfirm:
		reply, err = dhcpv6.NewReplyFromMessage(request, append(modifiers, c.confirm6(request))...)
	case dhcpv6.MessageTypeInformationRequest, dhcpv6.MessageTypeRelease, dhcpv6.MessageTypeDecline:
		reply, err = dhcpv6.NewReplyFromMessage(request, modifiers...)
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	payload := reply.ToBytes()
	if len(payload) > c.room(ip6Length) {
		reply.Options.Del(dhcpv6.OptionDomainSearchList) // the one that can be long
		payload = reply.ToBytes()
	}
	if len(payload) > c.room(ip6Length) {
		return nil
	}
	from := c.linkLocal()
	return [][]byte{c.ip6(c.Guest, from, in.sender, protocolUDP, udp(make([]byte, ip6Length), from, in.sender, portDHCP6, portDHCP6Client, payload))}
}

func (c *Config) options6() []dhcpv6.Modifier {
	var out []dhcpv6.Modifier
	if servers := ips(c.DNS, netip.Addr.Is6); len(servers) > 0 {
		out = append(out, dhcpv6.WithDNS(servers...))
	}
	if search := labels(c.Search); len(search) > 0 {
		out = append(out, dhcpv6.WithDomainSearchList(search...))
	}
	return out
}

// addresses6 puts the addresses into the first association of a request; others are told that there is none for them.
func (c *Config) addresses6(request *dhcpv6.Message) dhcpv6.Modifier {
	return func(reply dhcpv6.DHCPv6) {
		for i, asked := range request.Options.IANA() {
			given := &dhcpv6.OptIANA{IaId: asked.IaId, T1: forever, T2: forever}
			if i > 0 {
				given.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail})
				reply.AddOption(given)
				continue
			}
			for _, address := range c.IPv6.Addresses {
				given.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: ip(address), PreferredLifetime: forever, ValidLifetime: forever})
			}
			for _, old := range asked.Options.Addresses() {
				if address, ok := netip.AddrFromSlice(old.IPv6Addr); ok && !slices.Contains(c.IPv6.Addresses, address) {
					given.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: old.IPv6Addr}) // lifetimes of 0 take it away
				}
			}
			reply.AddOption(given)
		}
	}
}

// confirm6 says whether the addresses that a client remembers are right here.
func (c *Config) confirm6(request *dhcpv6.Message) dhcpv6.Modifier {
	status := iana.StatusSuccess
	for _, asked := range request.Options.IANA() {
		for _, old := range asked.Options.Addresses() {
			if address, ok := netip.AddrFromSlice(old.IPv6Addr); !ok || !slices.Contains(c.IPv6.Addresses, address) {
				status = iana.StatusNotOnLink
			}
		}
	}
	return dhcpv6.WithOption(&dhcpv6.OptStatusCode{StatusCode: status})
}

// linkLocal is our address on the wire: the router's, or one that is made of the MAC address.
func (c *Config) linkLocal() netip.Addr {
	if c.IPv6.Router.IsValid() {
		return c.IPv6.Router
	}
	own := c.Own
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: own[0] ^ 2, own[1], own[2], 0xff, 0xfe, own[3], own[4], own[5]})
}
