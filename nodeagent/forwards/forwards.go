// Package forwards opens ports of guests behind QEMU's user-mode network to their host. libvirt 9 has no notion of it, so
// it speaks to QEMU's monitor, and to nftables.
//
// A guest has a loopback address of its own (schemas.LoopbackAddress), so guests never compete for ports. QEMU must not
// listen there on the guest's port itself: no service of the host that listens on all addresses, such as sshd on port 22,
// could be started as long as it did, nor could QEMU while that service runs, and QEMU may be a user that gets no port below
// 1024. So QEMU listens on a port of the same address that nobody else wants, and nftables redirects connections to the
// guest's port there. Both sides are read before they are changed; nothing is remembered.
package forwards

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Monitor gives one command to the human monitor of a guest's QEMU and returns what it prints.
type Monitor func(ctx context.Context, command string) (output string, err error)

// Guest is the network card that ports are opened for.
type Guest struct {
	Monitor Monitor
	// Netdev is QEMU's name of its network, see Netdev.
	Netdev string
	// Address is the loopback address of the guest.
	Address netip.Addr
}

const (
	// firstPort is where QEMU listens for the first port of a guest: above the range from which Linux takes ports for
	// connections (32768 to 60999), so that few programs of the host are there.
	firstPort = 61440
	// lastPort leaves room for twice the ports that a guest may open in either protocol.
	lastPort = firstPort + 4*schemas.MaxForwardedPorts - 1
)

// maxBusy is how many ports in a row may be taken by others until that is told: a port that is taken is rare, a QEMU that
// may not listen at all would refuse every one.
const maxBusy = 16

// Open makes QEMU forward exactly the wanted ports and returns on which port of the address it listens for each. What
// it forwards at other addresses is left alone. When some ports cannot be had the others are opened all the same.
func Open(ctx context.Context, guest Guest, wanted []schemas.ForwardedPort) (map[schemas.ForwardedPort]uint16, error) {
	have, err := forwardsOf(ctx, guest)
	if err != nil {
		return nil, err
	}
	open := map[schemas.ForwardedPort]uint16{}
	taken := map[schemas.ForwardedPort]bool{}
	for _, row := range have {
		to := schemas.ForwardedPort{Protocol: row.protocol, Port: row.port}
		if open[to] == 0 && slices.Contains(wanted, to) {
			open[to], taken[schemas.ForwardedPort{Protocol: row.protocol, Port: row.listen}] = row.listen, true
			continue
		}
		if _, err := guest.Monitor(ctx, fmt.Sprintf("hostfwd_remove %s %s", guest.Netdev, guest.endpoint(row.protocol, row.listen))); err != nil {
			return open, fmt.Errorf("closing port %d: %w", row.port, err)
		}
	}
	var failed []error
	next := map[string]uint16{"TCP": firstPort, "UDP": firstPort}
	for _, port := range wanted {
		if open[port] != 0 {
			continue
		}
		listen, err := guest.add(ctx, port, next[port.Protocol], taken)
		if err != nil {
			failed = append(failed, fmt.Errorf("port %d (%s): %w", port.Port, port.Protocol, err))
			if ctx.Err() != nil || len(failed) > maxTold {
				break
			}
			continue
		}
		open[port], next[port.Protocol] = listen, listen+1
	}
	return open, errors.Join(failed...)
}

// maxTold is how many ports may fail until the others are not even tried.
const maxTold = 3

// errBusy says that nobody may listen on any of the ports that were tried.
var errBusy = errors.New("QEMU gets no port of the host for it")

// add opens a port on the first port of the host, from a number on, that is to be had.
func (g *Guest) add(ctx context.Context, port schemas.ForwardedPort, from uint16, taken map[schemas.ForwardedPort]bool) (uint16, error) {
	busy, last := 0, ""
	for listen := from; listen <= lastPort && busy < maxBusy; listen++ {
		if taken[schemas.ForwardedPort{Protocol: port.Protocol, Port: listen}] {
			continue
		}
		output, err := g.Monitor(ctx, fmt.Sprintf("hostfwd_add %s %s-:%d", g.Netdev, g.endpoint(port.Protocol, listen), port.Port))
		if err != nil {
			return 0, err
		}
		if last = strings.TrimSpace(output); last == "" {
			return listen, nil
		}
		busy++
	}
	return 0, fmt.Errorf("%w: %s", errBusy, last)
}

func (g *Guest) endpoint(protocol string, port uint16) string {
	return fmt.Sprintf("%s:%s:%d", strings.ToLower(protocol), g.Address, port)
}

// Answers reports whether the guest itself has taken a connection to one of its ports, by the port on which QEMU
// listens for it: QEMU accepts connections before it asks the guest.
func Answers(ctx context.Context, guest Guest, listen uint16) (bool, error) {
	rows, err := connections(ctx, guest)
	for _, row := range rows {
		if row.listen == listen && row.protocol == "TCP" && (row.state == "ESTABLISHED" || row.state == "CLOSE_WAIT") {
			return true, err
		}
	}
	return false, err
}
