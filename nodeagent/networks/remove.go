package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Remove takes everything away that was made for the guest, and gives the Pod's interfaces back what they were. Only that the
// namespace forwards packets stays: nobody noted whether it did before.
func (p *Pod) Remove(ctx context.Context) error { return p.Ensure(ctx, Wanted{}) }

// prune takes away what was made for interfaces that are not wanted any more.
func (p *Pod) prune(ctx context.Context, wanted Wanted) error {
	devices, bridged, masqueraded := map[string]bool{}, map[string]bool{}, false
	for i := range wanted.Interfaces {
		in := &wanted.Interfaces[i]
		devices[in.Tap] = true
		if in.Masquerade != nil {
			masqueraded = true
			continue
		}
		devices[in.Bridge], bridged[in.Link.Name] = true, true
	}
	links, err := p.link.LinkList()
	if err != nil {
		return fmt.Errorf("listing the Pod's interfaces: %w", err)
	}
	for _, link := range links {
		if !isOurs(link) || devices[link.Attrs().Name] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.delete(link); err != nil {
			return err
		}
	}
	if !masqueraded {
		if err := p.removeRules(nftables.TableFamilyINet); err != nil {
			return err
		}
	}
	noted, err := p.load()
	if err != nil {
		return err
	}
	for _, was := range slices.Clone(noted.Links) {
		if bridged[was.Name] {
			continue
		}
		if err := p.restore(&was); err != nil {
			return fmt.Errorf("giving the Pod's interface %s back what it was: %w", was.Name, err)
		}
		noted.Links = slices.DeleteFunc(noted.Links, func(one Link) bool { return one.Name == was.Name })
		if err := p.step("forget %s", was.Name); err != nil {
			return err
		}
		if err := p.save(noted); err != nil {
			return err
		}
	}
	return nil
}

// restore makes an interface what it was. One that is gone cannot be, and need not.
func (p *Pod) restore(was *Link) error {
	link, err := p.find(was.Name)
	if err != nil || link == nil {
		return err
	}
	mac, err := net.ParseMAC(was.MAC)
	if err != nil {
		return err
	}
	if err := p.shape(link, was.MTU, mac); err != nil {
		return err
	}
	if was.has(false) {
		if err := p.sysctl(true, [2]string{"ipv6/conf/" + was.Name + "/disable_ipv6", "0"}); err != nil {
			return err
		}
	}
	if err := p.up(link); err != nil {
		return err
	}
	if err := p.setAddresses(link, was.Addresses); err != nil {
		return err
	}
	if err := p.restoreNeighbours(was, link); err != nil {
		return err
	}
	return p.restoreRoutes(was, link)
}

func (p *Pod) restoreNeighbours(was *Link, link netlink.Link) error {
	now, err := p.read(link)
	if err != nil {
		return err
	}
	for _, neighbour := range was.Neighbours {
		if !neighbour.Permanent || slices.Contains(now.Neighbours, neighbour) {
			continue
		}
		mac, err := net.ParseMAC(neighbour.MAC)
		if err != nil {
			return err
		}
		if err := p.step("restore neighbour %s", neighbour.Address); err != nil {
			return err
		}
		entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: neighbour.Address.AsSlice(), HardwareAddr: mac, State: unix.NUD_PERMANENT}
		if err := p.link.NeighSet(entry); err != nil {
			return fmt.Errorf("restoring the neighbour %s: %w", neighbour.Address, err)
		}
	}
	return nil
}

func (p *Pod) restoreRoutes(was *Link, link netlink.Link) error {
	now, err := p.read(link)
	if err != nil {
		return err
	}
	for _, direct := range []bool{true, false} { // gateways are reached over the routes that have none
		for _, route := range was.Routes {
			if route.Gateway.IsValid() == direct || slices.Contains(now.Routes, route) {
				continue
			}
			if err := p.step("restore route %s", route.Destination); err != nil {
				return err
			}
			if err := p.link.RouteAdd(kernelRoute(&route, link.Attrs().Index)); err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("restoring the route to %s: %w", route.Destination, err)
			}
		}
	}
	return nil
}

func kernelRoute(route *Route, index int) *netlink.Route {
	out := &netlink.Route{LinkIndex: index, Dst: ipNet(route.Destination), Priority: route.Metric, Table: unix.RT_TABLE_MAIN}
	if route.Gateway.IsValid() {
		out.Gw = route.Gateway.AsSlice()
		out.Flags = unix.RTNH_F_ONLINK
	} else if route.Destination.Addr().Is4() {
		out.Scope = netlink.SCOPE_LINK
	}
	return out
}
