package networks

import (
	"net"
	"net/netip"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/networks/responder"
)

// configuration is what the guest is told, given the MAC addresses of the Pod's gateways that are known.
func (in *Interface) configuration(own net.HardwareAddr, gateways map[netip.Addr]net.HardwareAddr) *responder.Config {
	guest := in.Guest
	mac, _ := net.ParseMAC(in.MAC) // Plan has parsed it
	out := &responder.Config{
		Guest: mac, Own: own, MTU: guest.MTU, Hostname: guest.Hostname, DNS: guest.DNS.Servers, Search: guest.DNS.Search,
		Neighbours: map[netip.Addr]net.HardwareAddr{},
	}
	if guest.IPv4.IsValid() {
		out.IPv4 = guest.ipv4()
		if in.Bridge != "" {
			out.Neighbours[guest.Server4] = own
		}
		for _, gateway := range guest.outside4() {
			if known, ok := gateways[gateway]; ok {
				out.Neighbours[gateway] = known
			}
		}
	}
	if len(guest.IPv6) == 0 {
		return out
	}
	out.IPv6 = guest.ipv6()
	if in.Bridge == "" {
		return out
	}
	known, ok := gateways[guest.NextHop6]
	if !ok {
		out.IPv6.Router = netip.Addr{} // no guest is sent to a router that nobody has seen
		return out
	}
	out.Neighbours[guest.Router6] = known
	return out
}

func (g *Guest) ipv4() *responder.IPv4 {
	out := &responder.IPv4{Address: g.IPv4, Server: g.Server4, Router: g.Router4}
	if !g.plain4() {
		out.Routes = g.classless4()
		for _, route := range g.Routes4 {
			if !out.Router.IsValid() && route.Destination.Bits() == 0 {
				out.Router = route.Gateway // for clients that read no routes and take a router outside their network
			}
		}
	}
	if g.Options == nil {
		return out
	}
	out.BootFile, out.TFTPServer = g.Options.BootFileName, g.Options.TFTPServerName
	for _, text := range g.Options.NTPServers {
		if server, err := netip.ParseAddr(text); err == nil && server.Is4() {
			out.NTPServers = append(out.NTPServers, server)
		}
	}
	for _, option := range g.Options.PrivateOptions {
		if option.Option >= 224 && option.Option <= 254 && len(option.Value) <= 255 {
			if out.Private == nil {
				out.Private = map[uint8]string{}
			}
			out.Private[uint8(option.Option)] = option.Value
		}
	}
	return out
}

// plain4 reports whether a router is all that has to be told. A client that reads routes does not read the router, so one default route
// over a gateway in the guest's own network is told to all clients alike.
func (g *Guest) plain4() bool {
	return len(g.Routes4) == 0 || len(g.Routes4) == 1 && g.Routes4[0].Destination.Bits() == 0 && g.Router4.IsValid() && g.Routes4[0].Gateway == g.Router4
}

// classless4 are the guest's routes in an order in which they can be set: a gateway outside the guest's network is reached directly first.
func (g *Guest) classless4() []responder.Route {
	var out []responder.Route
	for _, gateway := range g.outside4() {
		if !slices.ContainsFunc(g.Routes4, func(r Route) bool { return !r.Gateway.IsValid() && r.Destination.Contains(gateway) }) {
			out = append(out, responder.Route{Destination: single(gateway)})
		}
	}
	for _, direct := range []bool{true, false} {
		for _, route := range g.Routes4 {
			if route.Gateway.IsValid() != direct {
				out = append(out, responder.Route{Destination: route.Destination, Gateway: route.Gateway})
			}
		}
	}
	return out
}

func (g *Guest) ipv6() *responder.IPv6 {
	out := &responder.IPv6{Router: g.Router6}
	for _, address := range g.IPv6 {
		out.Addresses = append(out.Addresses, address.Addr())
		if !address.IsSingleIP() && !slices.Contains(out.OnLink, address.Masked()) {
			out.OnLink = append(out.OnLink, address.Masked())
		}
	}
	for _, route := range g.Routes6 {
		switch {
		case route.Destination.Bits() == 0:
			out.Default = true
		case route.Gateway.IsValid():
			out.Routes = append(out.Routes, route.Destination)
		default:
			out.OnLink = append(out.OnLink, route.Destination)
		}
	}
	return out
}
