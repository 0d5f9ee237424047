package networks

import (
	"cmp"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gatewayMAC is that of the Pod's end of the wire to a guest behind NAT. It is the same in every Pod, so that a guest that is
// moved or resumed finds its gateway where it was (KubeVirt's).
func gatewayMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 0, 0, 0, 0, 0} }

// ensureMasquerade makes the network of a guest behind NAT: a tap device with the gateway's addresses and no bridge. The rules come before
// anything that could be reached.
func (p *Pod) ensureMasquerade(in *Interface) error {
	if err := p.ensureRules(masqueradeRules(in)); err != nil {
		return err
	}
	tap, err := p.ensureTap(in, gatewayMAC())
	if err != nil {
		return err
	}
	nat, name := in.Masquerade, in.Tap
	disable6 := "1"
	if nat.IPv6.exists() {
		disable6 = "0"
	}
	settings := [][2]string{
		// No address that the kernel makes up: the one that guests know the router by is written below.
		{"ipv6/conf/" + name + "/addr_gen_mode", "1"},
		{"ipv6/conf/" + name + "/accept_ra", "0"},
		{"ipv6/conf/" + name + "/disable_ipv6", disable6},
	}
	if err := p.sysctl(true, settings...); err != nil {
		return err
	}
	if nat.IPv4.exists() {
		// Answers to what the Pod asks at 127.0.0.1 and the rules lead to the guest, such as kubectl port-forward.
		if err := p.sysctl(false, [2]string{"ipv4/conf/" + name + "/route_localnet", "1"}); err != nil {
			return err
		}
	}
	if err := p.ensureAddresses(tap, nat); err != nil {
		return err
	}
	if err := p.up(tap); err != nil {
		return err
	}
	return p.forward(in)
}

func (p *Pod) ensureAddresses(tap netlink.Link, nat *Masquerade) error {
	var wanted []netip.Prefix
	if nat.IPv4.exists() {
		wanted = append(wanted, nat.IPv4.Gateway)
	}
	if nat.IPv6.exists() {
		wanted = append(wanted, nat.IPv6.Gateway, netip.PrefixFrom(router6(), 64))
	}
	return p.setAddresses(tap, wanted)
}

// forward lets the namespace forward packets.
func (p *Pod) forward(in *Interface) error {
	if in.Masquerade.IPv4.exists() {
		if err := p.sysctl(false, [2]string{"ipv4/ip_forward", "1"}); err != nil {
			return err
		}
	}
	if !in.Masquerade.IPv6.exists() {
		return nil
	}
	// A router does not listen to advertisements, and forgets the routes that it had from them, unless it is told otherwise. Where the
	// CNI has switched them off they stay off: anybody on the network could send one.
	name := "ipv6/conf/" + in.Link.Name + "/accept_ra"
	_, listens, err := p.readSysctl(name)
	if err != nil {
		return err
	}
	if listens == "1" {
		if err := p.sysctl(false, [2]string{name, "2"}); err != nil {
			return err
		}
	}
	return p.sysctl(false, [2]string{"ipv6/conf/all/forwarding", "1"})
}

// masqueradeRules are those of the NAT, and those that hold a guest to its wire.
func masqueradeRules(in *Interface) *ruleset {
	r := newRuleset(nftables.TableFamilyINet)
	tap, link := in.Tap, in.Link.Name
	wires := []Wire{}
	for _, wire := range []Wire{in.Masquerade.IPv4, in.Masquerade.IPv6} {
		if wire.exists() {
			wires = append(wires, wire)
		}
	}
	r.guard(in)

	input := r.chain("input", "", nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter)
	r.rule(input, from(tap), ofKnownConnection(), accept())
	r.rule(input, from(tap), protocol(unix.IPPROTO_ICMP), accept())
	r.rule(input, from(tap), protocol(unix.IPPROTO_ICMPV6), accept())
	r.rule(input, from(tap), drop()) // what listens in the Pod is not the guest's; DHCP is answered before packets come here

	forward := r.chain("forward", "", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	r.rule(forward, from(tap), notTo(link), drop())
	r.rule(forward, notFrom(link), to(tap), drop())

	prerouting := r.chain("prerouting", "", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	output := r.chain("output", "", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	ports := r.inbound(in.Masquerade.Ports)
	for _, wire := range wires {
		is4 := wire.Guest.Is4()
		for _, of := range in.Link.Addresses {
			if of.Addr().Is4() != is4 {
				continue
			}
			for _, port := range ports {
				r.rule(prerouting, from(link), family(is4), address(false, expr.CmpOpEq, single(of.Addr())), port, natTo(expr.NATTypeDestNAT, wire.Guest))
				r.rule(output, family(is4), address(false, expr.CmpOpEq, single(of.Addr())), port, natTo(expr.NATTypeDestNAT, wire.Guest))
			}
		}
		if is4 {
			for _, port := range ports {
				r.rule(output, family(true), address(false, expr.CmpOpEq, single(loopback4())), port, natTo(expr.NATTypeDestNAT, wire.Guest))
			}
		}
	}
	postrouting := r.chain("postrouting", "", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, wire := range wires {
		is4 := wire.Guest.Is4()
		if is4 {
			r.rule(postrouting, to(tap), family(true), address(true, expr.CmpOpEq, loopbacks4()), natTo(expr.NATTypeSourceNAT, wire.Gateway.Addr()))
		}
		r.rule(postrouting, to(link), family(is4), address(true, expr.CmpOpEq, single(wire.Guest)), masquerade())
	}
	return r
}

func loopback4() netip.Addr    { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }
func loopbacks4() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8) }

// guard drops what a guest may not send, before anything else looks at it: other senders' packets, which would leave the Pod as they are, and
// those to the Pod's own loopback addresses, which route_localnet would let in.
func (r *ruleset) guard(in *Interface) {
	guard := r.chain("guard", "", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	tap := in.Tap
	if wire := in.Masquerade.IPv4; wire.exists() {
		r.rule(guard, from(tap), family(true), address(true, expr.CmpOpNeq, single(wire.Guest)), drop())
		r.rule(guard, from(tap), family(true), address(false, expr.CmpOpEq, loopbacks4()), drop())
	} else {
		r.rule(guard, from(tap), family(true), drop())
	}
	if wire := in.Masquerade.IPv6; wire.exists() {
		r.rule(guard, from(tap), family(false), address(true, expr.CmpOpNeq, single(wire.Guest)),
			address(true, expr.CmpOpNeq, netip.MustParsePrefix("fe80::/10")), address(true, expr.CmpOpNeq, single(netip.IPv6Unspecified())), drop())
	} else {
		r.rule(guard, from(tap), family(false), drop())
	}
}

// inbound returns what matches the packets that lead to the guest, one entry for each rule.
func (r *ruleset) inbound(ports []Ports) [][]expr.Any {
	if len(ports) == 0 {
		return [][]expr.Any{nil}
	}
	var out [][]expr.Any
	for _, of := range []struct {
		name   string
		number byte
	}{{"TCP", unix.IPPROTO_TCP}, {"UDP", unix.IPPROTO_UDP}} {
		if ranges := merged(ports, of.name); len(ranges) > 0 {
			out = append(out, append(protocol(of.number), portIn(r.ports(of.name, ranges))...))
		}
	}
	return out
}

// merged returns the ranges of a protocol's ports, in order and without overlaps: a set of nftables has no others.
func merged(ports []Ports, protocol string) []Ports {
	var out []Ports
	for _, one := range slices.SortedFunc(slices.Values(ports), func(a, b Ports) int { return cmp.Compare(a.First, b.First) }) {
		switch last := len(out) - 1; {
		case one.Protocol != protocol:
		case last >= 0 && uint32(one.First) <= uint32(out[last].Last)+1:
			out[last].Last = max(out[last].Last, one.Last)
		default:
			out = append(out, one)
		}
	}
	return out
}
