package networks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Read returns what the Pod was given: of an interface that was changed for a guest, what it was before.
func (p *Pod) Read(ctx context.Context) (Facts, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := errors.Join(ctx.Err(), p.usable()); err != nil {
		return Facts{}, err
	}
	noted, err := p.load()
	if err != nil {
		return Facts{}, err
	}
	links, err := p.link.LinkList()
	if err != nil {
		return Facts{}, fmt.Errorf("listing the Pod's interfaces: %w", err)
	}
	var out Facts
	for _, one := range links {
		attributes := one.Attrs()
		if attributes.Flags&net.FlagLoopback != 0 || isOurs(one) {
			continue
		}
		if was := noted.link(attributes.Name); was != nil {
			out.Links = append(out.Links, *was)
			continue
		}
		if bridge := masterOf(one, links); bridge != "" {
			return Facts{}, fmt.Errorf("interface %s of the Pod is in the bridge %s, and %s, where its addresses would stand, is gone: start the VM in a new Pod", attributes.Name, bridge, stateFile)
		}
		link, err := p.read(one)
		if err != nil {
			return Facts{}, fmt.Errorf("reading the Pod's interface %s: %w", attributes.Name, err)
		}
		out.Links = append(out.Links, *link)
	}
	slices.SortFunc(out.Links, func(a, b Link) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// isOurs reports whether a device was made for a guest.
func isOurs(link netlink.Link) bool {
	switch link.(type) {
	case *netlink.Tuntap:
		return strings.HasPrefix(link.Attrs().Name, tapPrefix)
	case *netlink.Bridge:
		return strings.HasPrefix(link.Attrs().Name, bridgePrefix)
	}
	return false
}

// masterOf returns the bridge of ours that an interface is in, "" for none.
func masterOf(link netlink.Link, all []netlink.Link) string {
	for _, other := range all {
		if other.Attrs().Index == link.Attrs().MasterIndex && isOurs(other) {
			return other.Attrs().Name
		}
	}
	return ""
}

// read returns what an interface is now.
func (p *Pod) read(link netlink.Link) (*Link, error) {
	attributes := link.Attrs()
	out := &Link{Name: attributes.Name, MAC: attributes.HardwareAddr.String(), MTU: attributes.MTU}
	addresses, err := p.link.AddrList(link, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("listing addresses: %w", err)
	}
	for _, address := range addresses {
		if prefix := prefixOf(address); prefix.IsValid() && !prefix.Addr().IsLinkLocalUnicast() {
			out.Addresses = append(out.Addresses, prefix)
		}
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := p.link.RouteListFiltered(family, &netlink.Route{LinkIndex: attributes.Index, Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("listing routes: %w", err)
		}
		for i := range routes {
			if route, ok := routeOf(&routes[i], family); ok {
				out.Routes = append(out.Routes, route)
			}
		}
	}
	out.Neighbours, err = p.neighbours(out, attributes.Index)
	return out, err
}

func prefixOf(address netlink.Addr) netip.Prefix {
	ip, ok := netip.AddrFromSlice(address.IP)
	if !ok {
		return netip.Prefix{}
	}
	bits, _ := address.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits)
}

// routeOf reads a route; those that the kernel made from an address are none, nor are those of multicast.
func routeOf(route *netlink.Route, family int) (Route, bool) {
	if route.Protocol == unix.RTPROT_KERNEL || route.Type != unix.RTN_UNICAST {
		return Route{}, false
	}
	out := Route{Metric: route.Priority, Destination: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	if family == unix.AF_INET6 {
		out.Destination = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if route.Dst != nil {
		ip, ok := netip.AddrFromSlice(route.Dst.IP)
		if !ok {
			return Route{}, false
		}
		bits, _ := route.Dst.Mask.Size()
		if ip = ip.Unmap(); family == unix.AF_INET6 && ip.Is4() {
			ip = netip.AddrFrom16(ip.As16())
		}
		out.Destination = netip.PrefixFrom(ip, bits)
	}
	if gateway, ok := netip.AddrFromSlice(route.Gw); ok {
		out.Gateway = gateway.Unmap()
	}
	return out, !out.Destination.Addr().IsMulticast() && !out.Destination.Addr().IsLinkLocalUnicast() || out.Destination.Addr().Is4()
}

// neighbours returns which gateways of a link's routes the kernel knows by their MAC addresses.
func (p *Pod) neighbours(link *Link, index int) ([]Neighbour, error) {
	known, err := p.link.NeighList(index, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("listing neighbours: %w", err)
	}
	var out []Neighbour
	for _, neighbour := range known {
		address, ok := netip.AddrFromSlice(neighbour.IP)
		if address = address.Unmap(); !ok || len(neighbour.HardwareAddr) != 6 || neighbour.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) != 0 {
			continue
		}
		if containsAddr(link.gateways(), address) {
			out = append(out, Neighbour{Address: address, MAC: neighbour.HardwareAddr.String(), Permanent: neighbour.State&unix.NUD_PERMANENT != 0})
		}
	}
	slices.SortFunc(out, func(a, b Neighbour) int { return a.Address.Compare(b.Address) })
	return out, nil
}

// gateways are the next hops of a link's routes.
func (l *Link) gateways() []netip.Addr {
	var out []netip.Addr
	for _, route := range l.Routes {
		if route.Gateway.IsValid() && !containsAddr(out, route.Gateway) {
			out = append(out, route.Gateway)
		}
	}
	return out
}
