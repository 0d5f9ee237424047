package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Ensure makes the namespace what is wanted of it, and changes nothing that is so already. Devices of interfaces that are not wanted any
// more are taken away. Whatever an earlier call did not finish, this one does.
func (p *Pod) Ensure(ctx context.Context, wanted Wanted) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(); err != nil {
		return err
	}
	if err := p.prune(ctx, wanted); err != nil {
		return err
	}
	err := each(ctx, wanted, func(in *Interface) error {
		if in.Masquerade != nil {
			return p.ensureMasquerade(in)
		}
		return p.prepareBridge(ctx, in)
	})
	if err != nil {
		return err
	}
	// The rules of bridges hang on devices that are there now, and stand before anything comes through.
	if rules := guestRules(wanted); rules != nil {
		err = p.ensureRules(rules)
	} else {
		err = p.removeRules(nftables.TableFamilyNetdev)
	}
	if err != nil {
		return err
	}
	return each(ctx, wanted, func(in *Interface) error {
		if in.Masquerade != nil {
			return nil
		}
		return p.connectBridge(in)
	})
}

// each does something for each interface, until one fails.
func each(ctx context.Context, wanted Wanted, do func(*Interface) error) error {
	for i := range wanted.Interfaces {
		in := &wanted.Interfaces[i]
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := do(in); err != nil {
			return interfaceError(in, err)
		}
	}
	return nil
}

// setAddresses gives a device exactly these addresses, besides the link-local ones that the kernel makes.
func (p *Pod) setAddresses(link netlink.Link, wanted []netip.Prefix) error {
	name := link.Attrs().Name
	have, err := p.link.AddrList(link, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("listing addresses of device %s: %w", name, err)
	}
	var kept []netip.Prefix
	for _, address := range have {
		prefix := prefixOf(address)
		if slices.Contains(wanted, prefix) {
			kept = append(kept, prefix)
			continue
		}
		if prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
			continue // the kernel's own, without which it finds no neighbours
		}
		if err := p.step("take %s from %s", prefix, name); err != nil {
			return err
		}
		if err := p.link.AddrDel(link, &address); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("taking address %s from device %s: %w", prefix, name, err)
		}
	}
	for _, prefix := range wanted {
		if slices.Contains(kept, prefix) {
			continue
		}
		if err := p.step("give %s to %s", prefix, name); err != nil {
			return err
		}
		if err := p.link.AddrAdd(link, addressOf(prefix)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("giving address %s to device %s: %w", prefix, name, err)
		}
	}
	return nil
}

// addressOf is an address for the kernel, that nobody else is asked about first.
func addressOf(prefix netip.Prefix) *netlink.Addr {
	out := &netlink.Addr{IPNet: ipNet(prefix)}
	if prefix.Addr().Is6() {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
