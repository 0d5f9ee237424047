package networks

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/nodeagent/networks/responder"
)

// portMAC is what the Pod's interface gets as the port of a bridge: its own address is the guest's now, and a bridge keeps frames to
// its ports' addresses for itself.
func portMAC(original string) net.HardwareAddr {
	sum := sha256.Sum256([]byte("gitvirt port " + original))
	return net.HardwareAddr(append([]byte{0x02}, sum[:5]...))
}

// prepareBridge notes what the Pod's interface was, and makes the bridge and the tap device, not connected yet.
func (p *Pod) prepareBridge(ctx context.Context, in *Interface) error {
	if err := p.note(ctx, in); err != nil {
		return err
	}
	mac := portMAC(in.Link.MAC)
	bridge, err := p.find(in.Bridge)
	if err != nil {
		return err
	}
	if bridge == nil {
		if err := p.step("make bridge %s", in.Bridge); err != nil {
			return err
		}
		snooping := false // of two ports each gets everything; a bridge that listens to guests' groups may lose IPv6's
		attributes := netlink.LinkAttrs{Name: in.Bridge, MTU: in.MTU, HardwareAddr: mac, TxQLen: -1}
		if err := p.link.LinkAdd(&netlink.Bridge{LinkAttrs: attributes, MulticastSnooping: &snooping}); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("making bridge %s: %w", in.Bridge, err)
		}
		if bridge, err = p.find(in.Bridge); err != nil {
			return err
		}
		if bridge == nil {
			return fmt.Errorf("making bridge %s: it went away", in.Bridge)
		}
	}
	if err := p.shape(bridge, in.MTU, mac); err != nil {
		return err
	}
	if _, err := p.ensureTap(in, nil); err != nil {
		return err
	}
	return p.sysctl(true,
		// The Pod itself is not on this network any more: no addresses of its own, no answers, no filters.
		[2]string{"ipv6/conf/" + in.Bridge + "/disable_ipv6", "1"},
		[2]string{"ipv6/conf/" + in.Tap + "/disable_ipv6", "1"},
		[2]string{"ipv4/conf/" + in.Bridge + "/arp_ignore", "1"},
		[2]string{"bridge/bridge-nf-call-iptables", "0"},
		[2]string{"bridge/bridge-nf-call-ip6tables", "0"},
		[2]string{"bridge/bridge-nf-call-arptables", "0"},
	)
}

// connectBridge takes the addresses from the Pod's interface, and makes it and the tap device ports of the bridge.
func (p *Pod) connectBridge(in *Interface) error {
	bridge, err := p.find(in.Bridge)
	if err != nil {
		return err
	}
	if bridge == nil {
		return fmt.Errorf("bridge %s went away", in.Bridge)
	}
	if err := p.sysctl(true, [2]string{"ipv6/conf/" + in.Link.Name + "/disable_ipv6", "1"}); err != nil {
		return err
	}
	for _, name := range []string{in.Link.Name, in.Tap} {
		port, err := p.find(name)
		if err != nil {
			return err
		}
		if port == nil {
			return fmt.Errorf("device %s went away", name)
		}
		if err := p.setAddresses(port, nil); err != nil {
			return err
		}
		if name == in.Link.Name {
			if err := p.shape(port, in.MTU, portMAC(in.Link.MAC)); err != nil {
				return err
			}
		}
		if port.Attrs().MasterIndex != bridge.Attrs().Index {
			if err := p.step("put %s into %s", name, in.Bridge); err != nil {
				return err
			}
			if err := p.link.LinkSetMaster(port, bridge); err != nil {
				return fmt.Errorf("putting device %s into bridge %s: %w", name, in.Bridge, err)
			}
		}
		if name == in.Link.Name {
			if err := p.forgetful(port); err != nil {
				return err
			}
		}
		if err := p.up(port); err != nil {
			return err
		}
	}
	return p.up(bridge)
}

// forgetful has the bridge learn nothing from the Pod's side: with two ports there is nothing to learn, and what a guest sent under
// other addresses than its card's, and hears again, would be looked for on the wrong side.
func (p *Pod) forgetful(port netlink.Link) error {
	now, err := p.link.LinkGetProtinfo(port)
	if err != nil {
		return fmt.Errorf("reading what device %s is to its bridge: %w", port.Attrs().Name, err)
	}
	if !now.Learning {
		return nil
	}
	if err := p.step("set learning of %s off", port.Attrs().Name); err != nil {
		return err
	}
	if err := p.link.LinkSetLearning(port, false); err != nil {
		return fmt.Errorf("having the bridge learn nothing from device %s: %w", port.Attrs().Name, err)
	}
	return nil
}

// note writes down what an interface is before it is changed.
func (p *Pod) note(ctx context.Context, in *Interface) error {
	noted, err := p.load()
	if err != nil {
		return err
	}
	if noted.link(in.Link.Name) != nil {
		return nil
	}
	was := in.Link
	if in.Guest != nil {
		if was.Neighbours, err = p.resolve(ctx, &was, in.Guest.answered()); err != nil {
			return err
		}
	}
	if err := p.step("note %s", was.Name); err != nil {
		return err
	}
	noted.Links = append(noted.Links, was)
	return p.save(noted)
}

// answered are the gateways whose MAC addresses the guest is told by us.
func (g *Guest) answered() []netip.Addr {
	out := g.outside4()
	if g.NextHop6.IsValid() {
		out = append(out, g.NextHop6)
	}
	return out
}

// How long a gateway has to say its MAC address, how often it is asked, and how often that is looked at. One that has not said it by then
// is asked again while the guest runs.
const (
	resolvePatience = 2 * time.Second
	resolveAgain    = 200 * time.Millisecond
	resolveInterval = 20 * time.Millisecond
)

// resolve returns the gateways that are known by their MAC addresses, after asking for those in wanted. The kernel is told to ask, as a
// packet to them would; and they are asked past it, for it says nothing over IPv6 in the first seconds of an interface.
func (p *Pod) resolve(ctx context.Context, of *Link, wanted []netip.Addr) ([]Neighbour, error) {
	link, err := p.find(of.Name)
	if err != nil || link == nil {
		return of.Neighbours, err
	}
	index := link.Attrs().Index
	var heard []Neighbour
	missing := func() ([]Neighbour, []netip.Addr, error) {
		known, err := p.neighbours(of, index)
		for _, one := range heard {
			if !slices.ContainsFunc(known, func(n Neighbour) bool { return n.Address == one.Address }) {
				known = append(known, one)
			}
		}
		return known, slices.DeleteFunc(slices.Clone(wanted), func(one netip.Addr) bool {
			return slices.ContainsFunc(known, func(n Neighbour) bool { return n.Address == one })
		}), err
	}
	known, unknown, err := missing()
	if err != nil || len(unknown) == 0 {
		return known, err
	}
	wire, err := p.listen(of.Name, gatewayFilter())
	if err != nil {
		return nil, err
	}
	defer func() { _ = wire.Close() }()
	until, again := time.Now().Add(resolvePatience), time.Time{}
	for len(unknown) > 0 && time.Now().Before(until) && ctx.Err() == nil {
		if now := time.Now(); now.After(again) {
			again = now.Add(resolveAgain)
			if err := p.askFor(unknown, of, link, wire); err != nil {
				return nil, err
			}
		}
		one, err := wire.hear(resolveInterval)
		if err != nil {
			return nil, err
		}
		if slices.Contains(unknown, one.Address) {
			heard = append(heard, one)
		}
		if known, unknown, err = missing(); err != nil {
			return nil, err
		}
	}
	return known, ctx.Err()
}

// askFor asks for the MAC addresses of gateways.
func (p *Pod) askFor(gateways []netip.Addr, of *Link, link netlink.Link, wire *wire) error {
	mac, err := net.ParseMAC(of.MAC)
	if err != nil {
		return err
	}
	for _, one := range gateways {
		// NTF_USE makes the kernel ask.
		if err := p.link.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: one.AsSlice(), Flags: unix.NTF_USE}); err != nil {
			return fmt.Errorf("asking for the MAC address of gateway %s: %w", one, err)
		}
		question := responder.AskIPv6(mac, one)
		if one.Is4() {
			own := slices.IndexFunc(of.Addresses, func(prefix netip.Prefix) bool { return prefix.Addr().Is4() })
			question = responder.AskIPv4(mac, of.Addresses[max(own, 0)].Addr(), one)
		}
		if err := send(wire, [][]byte{question}); err != nil {
			return err
		}
	}
	return nil
}

// hear waits for a frame that tells somebody's MAC address; the zero Neighbour is for none in time.
func (w *wire) hear(patience time.Duration) (Neighbour, error) {
	if err := w.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return Neighbour{}, err
	}
	buffer := make([]byte, maxPacket)
	n, err := w.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENETDOWN) {
		return Neighbour{}, nil
	}
	if err != nil {
		return Neighbour{}, fmt.Errorf("reading from device %s: %w", w.device, err)
	}
	address, mac, _ := responder.Tells(buffer[:n])
	return Neighbour{Address: address, MAC: mac.String()}, nil
}

// guestRules drop what a bridged guest asks its network for and we answer, before it leaves the Pod: no other server may answer, and
// nobody there needs to hear it. On the Pod's side they drop the guest's own frames: a node's bridge in hairpin mode (CNI's plugin
// has it so) sends back what goes to all, and a guest that hears itself takes its own address for somebody else's. nil where
// nothing is bridged.
func guestRules(wanted Wanted) *ruleset {
	r := newRuleset(nftables.TableFamilyNetdev)
	for i := range wanted.Interfaces {
		in := &wanted.Interfaces[i]
		if in.Bridge == "" {
			continue
		}
		mac, _ := net.ParseMAC(in.MAC) // Plan has parsed it
		back := r.chain(in.Bridge, in.Link.Name, nftables.ChainTypeFilter, nftables.ChainHookIngress, nftables.ChainPriorityFilter)
		r.rule(back, sentBy(mac), drop())
		if in.Guest == nil {
			continue
		}
		chain := r.chain(in.Tap, in.Tap, nftables.ChainTypeFilter, nftables.ChainHookIngress, nftables.ChainPriorityFilter)
		if in.Guest.IPv4.IsValid() {
			r.rule(chain, ethertype(unix.ETH_P_IP), protocol(unix.IPPROTO_UDP), transport(2, []byte{0, 67}), drop())
		}
		if len(in.Guest.IPv6) > 0 {
			r.rule(chain, ethertype(unix.ETH_P_IPV6), protocol(unix.IPPROTO_UDP), transport(2, []byte{0x02, 0x23}), drop())
		}
		if in.Guest.Router6.IsValid() {
			r.rule(chain, ethertype(unix.ETH_P_IPV6), protocol(unix.IPPROTO_ICMPV6), transport(0, []byte{133}), drop())
			r.rule(chain, ethertype(unix.ETH_P_IPV6), protocol(unix.IPPROTO_ICMPV6), transport(0, []byte{135}), transport(8, in.Guest.Router6.AsSlice()), drop())
		}
	}
	if len(r.rules) == 0 {
		return nil
	}
	return r
}

// sentBy compares the sender of a frame.
func sentBy(mac net.HardwareAddr) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mac},
	}
}

func ethertype(kind uint16) []expr.Any {
	return matchMeta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, binaryutil.BigEndian.PutUint16(kind))
}

// transport compares bytes of the header after IP's.
func transport(offset uint32, value []byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: uint32(len(value))}, //nolint:gosec // at most 16
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value},
	}
}
