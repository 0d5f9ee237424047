// Package libvirtrpc speaks as much of libvirt's remote protocol as the launcher of a Pod needs: which guests run, what
// became of one, press its power button, and be told when one starts or ends. Seven procedures do not deserve libvirt's client
// library, which would be the launcher's greater part, nor a virsh per question. The protocol is as stable as libvirt's API
// (https://libvirt.org/kbase/internals/rpc.html); the numbers are those of src/remote/remote_protocol.x.
//
// It is no client for anybody else: the node agent uses libvirt's own.
package libvirtrpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The remote program, its version, and the procedures that are called.
const (
	program = 0x20008086
	version = 1

	procConnectOpen      = 1
	procConnectClose     = 2
	procDomainLookup     = 23
	procDomainGetState   = 212
	procDomainShutdown   = 258
	procListAllDomains   = 273
	procEventRegisterAny = 316
	procEventLifecycle   = 318
)

// What a message is, and how a call ended (virNetMessageType, virNetMessageStatus).
const (
	typeCall  = 0
	typeReply = 1
	typeEvent = 2

	statusOK = 0
)

// Limits: what is asked here is answered in a few hundred bytes, and an event has no more. Whoever sends much more is no libvirt, and the
// launcher's memory is not his.
const (
	headerBytes  = 28 // length, program, version, procedure, type, serial, status
	maxMessage   = 256 << 10
	maxDomains   = 1024
	uuidBytes    = 16
	listActive   = 1 // VIR_CONNECT_LIST_DOMAINS_ACTIVE
	shutdownACPI = 1 // VIR_DOMAIN_SHUTDOWN_ACPI_POWER_BTN
)

// Client is a connection to a libvirt daemon. It is for one goroutine at a time.
type Client struct {
	conn   net.Conn
	serial uint32
	events []Event // those that came while an answer was awaited
}

// Dial connects to the daemon that listens on a unix socket and opens its driver for QEMU's sessions. The context bounds
// connecting only; the deadline of the calls is SetDeadline's.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn}
	// A daemon that hangs accepts connections and says nothing.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var open encoder
	open.uint32(1) // there is a name
	open.string("qemu:///session")
	open.uint32(0)
	if _, err := c.call(procConnectOpen, open); err != nil {
		return nil, errors.Join(fmt.Errorf("opening qemu:///session: %w", err), c.Leave())
	}
	return c, nil
}

// Leave says goodbye and closes the connection; the daemon logs an error about clients that just go.
func (c *Client) Leave() error {
	_, err := c.call(procConnectClose, nil)
	return errors.Join(err, c.conn.Close())
}

// Close ends the connection. Unlike the other methods it may be called meanwhile, and ends them.
func (c *Client) Close() error { return c.conn.Close() }

// SetDeadline bounds the calls that follow; the zero time takes the bound away.
func (c *Client) SetDeadline(deadline time.Time) error { return c.conn.SetDeadline(deadline) }

// Active lists the names of the domains that run.
func (c *Client) Active() ([]string, error) {
	var args encoder
	args.uint32(1) // the list, not only its length
	args.uint32(listActive)
	reply, err := c.call(procListAllDomains, args)
	if err != nil {
		return nil, fmt.Errorf("listing the running domains: %w", err)
	}
	count := reply.uint32()
	if count > maxDomains {
		return nil, fmt.Errorf("listing the running domains: %d of them", count)
	}
	names := make([]string, 0, min(count, 16))
	for range count {
		names = append(names, reply.domain().name)
	}
	return names, reply.err
}

// State returns a domain's state and the reason of it.
func (c *Client) State(name string) (State, error) {
	args, err := c.lookup(name)
	if err != nil {
		return State{}, err
	}
	args.uint32(0)
	reply, err := c.call(procDomainGetState, args)
	if err != nil {
		return State{}, fmt.Errorf("asking for the state of domain %q: %w", name, err)
	}
	state := State{State: reply.int32(), Reason: reply.int32()}
	return state, reply.err
}

// PressPowerButton presses a domain's ACPI power button. What the guest makes of it is the guest's business.
func (c *Client) PressPowerButton(name string) error {
	args, err := c.lookup(name)
	if err != nil {
		return err
	}
	args.uint32(shutdownACPI)
	if _, err := c.call(procDomainShutdown, args); err != nil {
		return fmt.Errorf("pressing the power button of domain %q: %w", name, err)
	}
	return nil
}

// Subscribe has the daemon tell when domains start, end or change otherwise; NextEvent returns what it tells.
func (c *Client) Subscribe() error {
	var args encoder
	args.uint32(0) // VIR_DOMAIN_EVENT_ID_LIFECYCLE
	args.uint32(0) // of all domains
	if _, err := c.call(procEventRegisterAny, args); err != nil {
		return fmt.Errorf("subscribing to events: %w", err)
	}
	return nil
}

// NextEvent waits for the next event.
func (c *Client) NextEvent() (Event, error) {
	for len(c.events) == 0 {
		if _, _, err := c.receive(); err != nil {
			return Event{}, err
		}
	}
	event := c.events[0]
	c.events = c.events[1:]
	return event, nil
}

// lookup returns the beginning of the arguments of a call about a domain.
func (c *Client) lookup(name string) (encoder, error) {
	var args encoder
	args.string(name)
	reply, err := c.call(procDomainLookup, args)
	if err != nil {
		return nil, fmt.Errorf("looking for domain %q: %w", name, err)
	}
	domain := reply.domain()
	var found encoder
	found.string(domain.name)
	found = append(found, domain.uuid[:]...)
	found.uint32(domain.id)
	return found, reply.err
}

// call sends a call and returns what is answered.
func (c *Client) call(procedure uint32, args encoder) (*decoder, error) {
	c.serial++
	message := make(encoder, 0, headerBytes+len(args))
	for _, field := range []uint32{uint32(headerBytes + len(args)), program, version, procedure, typeCall, c.serial, statusOK} { //nolint:gosec // a few hundred bytes
		message.uint32(field)
	}
	if _, err := c.conn.Write(append(message, args...)); err != nil {
		return nil, err
	}
	for {
		header, reply, err := c.receive()
		if err != nil {
			return nil, err
		}
		if header.kind != typeReply || header.serial != c.serial {
			continue // an event, which receive has put aside, or what answers a call that was given up
		}
		if header.status != statusOK {
			return nil, reply.remoteError()
		}
		return reply, nil
	}
}

// header is what matters of a message's header.
type header struct{ procedure, kind, serial, status uint32 }

// receive reads a message. An event about a domain's life it puts aside.
func (c *Client) receive() (header, *decoder, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.conn, size[:]); err != nil {
		return header{}, nil, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length < headerBytes || length > maxMessage {
		return header{}, nil, fmt.Errorf("a message of %d bytes: this is no libvirt", length)
	}
	body := make([]byte, length-4)
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return header{}, nil, err
	}
	message := &decoder{rest: body}
	ofProgram, _ := message.uint32(), message.uint32()
	h := header{message.uint32(), message.uint32(), message.uint32(), message.uint32()}
	if ofProgram == program && h.kind == typeEvent && h.procedure == procEventLifecycle {
		message.uint32() // the subscription's number
		event := Event{Domain: message.domain().name, Kind: message.int32(), Detail: message.int32()}
		if message.err != nil {
			return header{}, nil, message.err
		}
		c.events = append(c.events, event)
	}
	return h, message, nil
}
