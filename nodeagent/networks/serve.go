package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/nodeagent/networks/responder"
)

// Serve answers what guests ask their networks for, until ctx ends, which is no error. It wants Ensure to have been
// called with the same argument. It ends early when a device is taken away, or cannot be listened to.
func (p *Pod) Serve(ctx context.Context, wanted Wanted) error {
	group, inner := errgroup.WithContext(ctx)
	for i := range wanted.Interfaces {
		in := &wanted.Interfaces[i]
		if in.Guest == nil {
			continue
		}
		group.Go(func() error { return interfaceError(in, p.serve(inner, in)) })
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// announceInterval is how often a guest is told its router without asking: its lifetime is 18 hours.
const announceInterval = 30 * time.Minute

// server answers one guest on one wire.
type server struct {
	pod *Pod
	in  *Interface
	own net.HardwareAddr
	// tap is towards the guest, outside towards the Pod's gateways; nil where none is answered for.
	tap, outside *wire

	mu sync.Mutex
	// gateways are the MAC addresses of the Pod's next hops as far as they are known.
	gateways map[netip.Addr]net.HardwareAddr
	config   *responder.Config
}

// wire is a socket that hears and speaks over one device.
type wire struct {
	*os.File
	device string
	index  int
}

func (p *Pod) serve(ctx context.Context, in *Interface) (err error) {
	s := &server{pod: p, in: in, own: gatewayMAC(), gateways: map[netip.Addr]net.HardwareAddr{}}
	if in.Bridge != "" {
		s.own = portMAC(in.Link.MAC)
		if err := s.remember(); err != nil {
			return err
		}
	}
	s.configure()
	answered := in.Guest.answered()
	bridged := in.Bridge != ""
	if s.tap, err = p.listen(in.Tap, guestFilter(bridged)); err != nil {
		return err
	}
	defer func() { _ = s.tap.Close() }()
	group, ctx := errgroup.WithContext(ctx)
	if bridged && len(answered) > 0 {
		if s.outside, err = p.listen(in.Link.Name, gatewayFilter()); err != nil {
			return err
		}
		defer func() { _ = s.outside.Close() }()
		group.Go(func() error { return s.read(ctx, s.outside, s.learn) })
	}
	group.Go(func() error { return s.read(ctx, s.tap, s.answer) })
	group.Go(func() error { return s.announce(ctx) })
	return group.Wait()
}

// listen opens a socket that sees what comes in over a device, as far as the filter lets it through.
func (p *Pod) listen(device string, filter []bpf.Instruction) (*wire, error) {
	link, err := p.find(device)
	if err != nil {
		return nil, err
	}
	if link == nil {
		return nil, fmt.Errorf("there is no device %s to listen on", device)
	}
	socket := -1
	err = p.inside(func() (err error) {
		// Nothing arrives before the filter is there: a socket without a protocol hears nothing.
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket (it takes CAP_NET_RAW): %w", err)
	}
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	err = errors.Join(
		attach(socket, filter),
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Attrs().Index}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listening on device %s: %w", device, err), unix.Close(socket))
	}
	return &wire{File: os.NewFile(uintptr(socket), device), device: device, index: link.Attrs().Index}, nil
}

// maxFrames is how many frames of a device are read in a second. The kernel drops what is more than its buffer holds, so a guest that
// asks without end costs no more than that.
const maxFrames = 64

// recheck is how often a device that was switched off is looked at, for whether it is there at all: the kernel does not tell.
const recheck = time.Second

// read hands each frame that arrives to handle, until ctx ends.
func (s *server) read(ctx context.Context, from *wire, handle func([]byte) error) error {
	stop := context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buffer := make([]byte, maxPacket)
	since, count := time.Now(), 0
	for {
		n, err := from.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENETDOWN), errors.Is(err, os.ErrDeadlineExceeded):
			next, err := s.recheck(from)
			if err == nil {
				err = from.SetReadDeadline(next)
			}
			if ctx.Err() != nil {
				return nil // its deadline may have been overwritten
			}
			if err != nil {
				return err
			}
			continue
		case err != nil:
			return fmt.Errorf("reading from device %s: %w", from.device, err)
		}
		if err := handle(buffer[:n]); err != nil {
			return err
		}
		if spent := time.Since(since); spent >= time.Second {
			since, count = time.Now(), 0
		} else if count++; count >= maxFrames {
			if backoff.Wait(ctx, nil, time.Second-spent) != nil {
				return nil
			}
		}
	}
}

// recheck returns until when to wait for frames of a device that was switched off, or an error when it is gone. The zero time is for ever.
func (s *server) recheck(from *wire) (time.Time, error) {
	link, err := s.pod.find(from.device)
	switch {
	case err != nil:
		return time.Time{}, err
	case link == nil || link.Attrs().Index != from.index:
		return time.Time{}, fmt.Errorf("device %s was taken away", from.device)
	case link.Attrs().Flags&net.FlagUp != 0:
		return time.Time{}, nil
	}
	return time.Now().Add(recheck), nil
}

// answer answers a frame of the guest's. When it asks for a gateway, the gateway is asked too: its address may be another by now.
func (s *server) answer(frame []byte) error {
	s.mu.Lock()
	answers, probes := s.config.Answer(frame), [][]byte(nil)
	if s.outside != nil && responder.Solicits(frame) {
		for _, gateway := range s.in.Guest.answered() {
			probes = append(probes, s.probe(gateway))
		}
	}
	s.mu.Unlock()
	return errors.Join(send(s.tap, answers), send(s.outside, probes))
}

// send writes frames. A device that is down, or has no room, has nobody who waits for them.
func send(over *wire, frames [][]byte) error {
	for _, frame := range frames {
		_, err := over.Write(frame)
		if err != nil && !slices.ContainsFunc([]error{unix.ENETDOWN, unix.ENOBUFS, unix.ENXIO, unix.ENODEV, os.ErrClosed}, func(one error) bool { return errors.Is(err, one) }) {
			return fmt.Errorf("answering over device %s: %w", over.device, err)
		}
	}
	return nil
}

// announce tells the guest its router, now and again.
func (s *server) announce(ctx context.Context) error {
	for {
		s.mu.Lock()
		frames, probes := s.config.Announce(), [][]byte(nil)
		if s.outside != nil {
			for _, gateway := range s.in.Guest.answered() {
				probes = append(probes, s.probe(gateway))
			}
		}
		s.mu.Unlock()
		if err := errors.Join(send(s.tap, frames), send(s.outside, probes)); err != nil {
			return err
		}
		if backoff.Wait(ctx, nil, announceInterval) != nil {
			return nil
		}
	}
}

// configure makes the responder's configuration from what is known now.
func (s *server) configure() { s.config = s.in.configuration(s.own, s.gateways) }

// remember reads what was found out about the gateways before.
func (s *server) remember() error {
	s.pod.mu.Lock()
	defer s.pod.mu.Unlock()
	noted, err := s.pod.load()
	if err != nil {
		return err
	}
	was := noted.link(s.in.Link.Name)
	if was == nil {
		return fmt.Errorf("nothing is noted of the Pod's interface %s; Ensure comes before Serve", s.in.Link.Name)
	}
	for _, neighbour := range was.Neighbours {
		if mac, err := net.ParseMAC(neighbour.MAC); err == nil {
			s.gateways[neighbour.Address] = mac
		}
	}
	return nil
}

// learn reads a frame from the Pod's side. Where it tells a gateway's MAC address, and that is a new one, it is noted and the guest hears of it.
func (s *server) learn(frame []byte) error {
	address, mac, ok := responder.Tells(frame)
	if !ok || !slices.Contains(s.in.Guest.answered(), address) {
		return nil
	}
	s.mu.Lock()
	same := slices.Equal(s.gateways[address], mac)
	if !same {
		s.gateways[address] = mac
		s.configure()
	}
	frames := s.config.Announce()
	s.mu.Unlock()
	if same {
		return nil
	}
	return errors.Join(s.pod.noteNeighbour(s.in.Link.Name, Neighbour{Address: address, MAC: mac.String()}), send(s.tap, frames))
}

func (p *Pod) noteNeighbour(link string, neighbour Neighbour) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	noted, err := p.load()
	if err != nil {
		return err
	}
	was := noted.link(link)
	if was == nil {
		return nil // removed meanwhile
	}
	was.Neighbours = slices.DeleteFunc(was.Neighbours, func(one Neighbour) bool { return one.Address == neighbour.Address })
	was.Neighbours = append(was.Neighbours, neighbour)
	return p.save(noted)
}

// probe asks a gateway for its MAC address, in the name of the guest.
func (s *server) probe(gateway netip.Addr) []byte {
	mac, err := net.ParseMAC(s.in.MAC)
	if err != nil {
		return nil
	}
	if gateway.Is4() {
		return responder.AskIPv4(mac, s.in.Guest.IPv4.Addr(), gateway)
	}
	return responder.AskIPv6(s.own, gateway)
}
