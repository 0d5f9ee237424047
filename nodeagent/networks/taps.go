package networks

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ensureTap makes the device that QEMU opens. One that is there and was made for another owner or another kind of queues is made anew: QEMU could
// not open it.
func (p *Pod) ensureTap(in *Interface, mac net.HardwareAddr) (netlink.Link, error) {
	link, err := p.find(in.Tap)
	if err != nil {
		return nil, err
	}
	if tap, ok := link.(*netlink.Tuntap); link != nil && (!ok || tap.Owner != TapOwner || (tap.Flags&unix.IFF_MULTI_QUEUE != 0) != (in.Queues > 1)) {
		if err := p.delete(link); err != nil {
			return nil, err
		}
		link = nil
	}
	if link == nil {
		if err := p.step("make tap %s", in.Tap); err != nil {
			return nil, err
		}
		if err := p.inside(func() error { return makeTap(in.Tap, in.Queues > 1) }); err != nil {
			return nil, fmt.Errorf("making tap device %s: %w", in.Tap, err)
		}
		if link, err = p.find(in.Tap); err != nil {
			return nil, err
		}
		if link == nil {
			return nil, fmt.Errorf("making tap device %s: it went away", in.Tap)
		}
	}
	return link, p.shape(link, in.MTU, mac)
}

// makeTap makes a device that stays when nobody has it open. Until its last step it goes with the file, so half of one is never left.
func makeTap(name string, multiqueue bool) (err error) {
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_TUN_EXCL)
	if multiqueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(int(file.Fd()), unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("asking /dev/net/tun for it (it takes CAP_NET_ADMIN): %w", err)
	}
	if err := unix.IoctlSetInt(int(file.Fd()), unix.TUNSETOWNER, TapOwner); err != nil {
		return fmt.Errorf("giving it to user %d: %w", TapOwner, err)
	}
	return unix.IoctlSetInt(int(file.Fd()), unix.TUNSETPERSIST, 1)
}

// find returns a device by its name, nil when there is none.
func (p *Pod) find(name string) (netlink.Link, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	link, err := p.link.LinkByName(name)
	if _, gone := errors.AsType[netlink.LinkNotFoundError](err); gone {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("looking for device %s: %w", name, err)
	}
	return link, nil
}

func (p *Pod) delete(link netlink.Link) error {
	if err := p.step("delete %s", link.Attrs().Name); err != nil {
		return err
	}
	if err := p.link.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("removing device %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// shape gives a device its MTU and MAC address; no address leaves it as it is.
func (p *Pod) shape(link netlink.Link, mtu int, mac net.HardwareAddr) error {
	name := link.Attrs().Name
	if link.Attrs().MTU != mtu {
		if err := p.step("set mtu of %s", name); err != nil {
			return err
		}
		if err := p.link.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("giving device %s an MTU of %d: %w", name, mtu, err)
		}
	}
	if mac != nil && link.Attrs().HardwareAddr.String() != mac.String() {
		if err := p.step("set mac of %s", name); err != nil {
			return err
		}
		if err := p.link.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("giving device %s the MAC address %s: %w", name, mac, err)
		}
	}
	return nil
}

// up switches a device on.
func (p *Pod) up(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := p.step("set %s up", link.Attrs().Name); err != nil {
		return err
	}
	if err := p.link.LinkSetUp(link); err != nil {
		return fmt.Errorf("switching device %s on: %w", link.Attrs().Name, err)
	}
	return nil
}
