package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"sync"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// consoleClosing is how long closing a console waits for libvirt; what is left then is done in the background.
const consoleClosing = 5 * time.Second

// blocked is what the binding returns of a stream that has nothing, or takes nothing, now.
const blocked = -2

// OpenConsole implements hypervisor.Hypervisor. Each console has a connection of its own: a guest that talks without end fills no socket
// that others use.
func (h *Hypervisor) OpenConsole(ctx context.Context, name string, force bool) (hypervisor.Console, error) {
	opened, err := h.openConsole(ctx, name, force)
	if err != nil {
		return nil, doing(err, "open the console of", name)
	}
	return opened, nil
}

func (h *Hypervisor) openConsole(ctx context.Context, name string, force bool) (*console, error) {
	if _, err := call(ctx, h, quick, func(c *lv.Connect) (struct{}, error) { return struct{}{}, hasConsole(c, name) }); err != nil {
		return nil, err
	}
	if !h.pool.join() {
		return nil, errClosed
	}
	type outcome struct {
		console *console
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		opened, err := dialConsole(h, name, force)
		if err != nil {
			h.pool.tasks.Done()
		}
		done <- outcome{opened, err}
	}()
	select {
	case o := <-done:
		return o.console, o.err
	case <-ctx.Done():
		go func() {
			if late := <-done; late.console != nil {
				_ = late.console.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// hasConsole tells why the console of a domain cannot be opened at all, in words that libvirt does not have.
func hasConsole(c *lv.Connect, name string) error {
	dom, err := c.LookupDomainByName(name)
	if err != nil {
		return err
	}
	defer free(dom)
	var domain hypervisor.Domain
	if _, err := readState(dom, &domain); err != nil {
		return err
	}
	if !domain.State.Active() {
		return hypervisor.ErrNotRunning
	}
	var live struct {
		Serials []struct {
			Type string `xml:"type,attr"`
		} `xml:"devices>serial"`
	}
	if err := xml.Unmarshal([]byte(domain.Live), &live); err != nil {
		return err
	}
	if len(live.Serials) == 0 || live.Serials[0].Type != "pty" {
		return hypervisor.ErrNoConsole
	}
	return nil
}

// dialConsole opens a console on a connection of its own.
func dialConsole(h *Hypervisor, name string, force bool) (*console, error) {
	conn, err := open(h.pool.source)
	if err != nil {
		return nil, err
	}
	c := &console{
		hypervisor: h, conn: conn, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	if err := c.open(name, force); err != nil {
		err = classify(err, conn.alive())
		h.pool.tasks.Add(1) // close ends it
		h.pool.close(conn)
		return nil, err
	}
	return c, nil
}

// console is a stream of libvirt's that never waits: its events say when to go on.
type console struct {
	hypervisor *Hypervisor
	conn       *connection
	stream     *lv.Stream
	// using is held for reading by whoever is in a call about the stream, and for writing to free it.
	using              sync.RWMutex
	readable, writable chan struct{}
	shut               sync.Once
	closed             chan struct{}
}

// open opens the stream.
func (c *console) open(name string, force bool) error {
	dom, err := c.conn.libvirt.LookupDomainByName(name)
	if err != nil {
		return err
	}
	defer free(dom)
	if c.stream, err = c.conn.libvirt.NewStream(lv.STREAM_NONBLOCK); err != nil {
		return err
	}
	var flags lv.DomainConsoleFlags
	if force {
		flags = lv.DOMAIN_CONSOLE_FORCE
	}
	if err = dom.OpenConsole("", c.stream, flags); err == nil {
		err = c.stream.EventAddCallback(lv.STREAM_EVENT_READABLE|lv.STREAM_EVENT_HANGUP|lv.STREAM_EVENT_ERROR, c.happened)
	} else if hasCode(err, lv.ERR_OPERATION_FAILED) {
		err = &Error{Kind: hypervisor.ErrConsoleBusy, Cause: err}
	}
	if err != nil {
		_ = c.stream.Free() // it was not opened, or ends with its connection
	}
	return err
}

// happened is called by libvirt's event loop and must not wait.
func (c *console) happened(_ *lv.Stream, events lv.StreamEventType) {
	if events != lv.STREAM_EVENT_WRITABLE {
		signal(c.readable)
	}
	if events != lv.STREAM_EVENT_READABLE {
		signal(c.writable)
	}
}

func signal(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// try calls the stream, unless the console is closed.
func (c *console) try(call func() (int, error)) (int, error) {
	c.using.RLock()
	defer c.using.RUnlock()
	select {
	case <-c.closed:
		return 0, io.ErrClosedPipe
	default:
		return call()
	}
}

// wait waits until the stream may have something to say.
func (c *console) wait(until <-chan struct{}) error {
	select {
	case <-until:
		return nil
	case <-c.closed:
		return io.ErrClosedPipe
	case <-c.conn.lost:
		return fmt.Errorf("%w: libvirt is gone", hypervisor.ErrUnavailable)
	case <-c.hypervisor.closed:
		return errClosed
	}
}

// Read implements hypervisor.Console.
func (c *console) Read(p []byte) (int, error) {
	for {
		n, err := c.try(func() (int, error) { return c.stream.Recv(p) })
		if n != blocked || err != nil {
			return max(n, 0), c.ended(err)
		}
		if err := c.wait(c.readable); err != nil {
			return 0, err
		}
	}
}

// ended makes of libvirt's errors about a stream that is over the end that it is: the guest is off, or somebody took the console.
func (c *console) ended(err error) error {
	if err == nil || err == io.EOF || err == io.ErrClosedPipe { //nolint:errorlint // as they are made here and in the binding
		return err
	}
	if c.conn.alive() {
		return io.EOF
	}
	return classify(err, false)
}

// Write implements hypervisor.Console.
func (c *console) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := c.try(func() (int, error) { return c.stream.Send(p[written:]) })
		if err != nil {
			return written, c.ended(err)
		}
		if n != blocked {
			written += n
			continue
		}
		if err := c.full(true); err != nil {
			return written, err
		}
		err = c.wait(c.writable)
		if fullErr := c.full(false); err == nil {
			err = fullErr
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// full has libvirt say, or no longer say, when the stream takes something: that is mostly the case, and would be said all the time.
func (c *console) full(is bool) error {
	events := lv.STREAM_EVENT_READABLE | lv.STREAM_EVENT_HANGUP | lv.STREAM_EVENT_ERROR
	if is {
		events |= lv.STREAM_EVENT_WRITABLE
	}
	_, err := c.try(func() (int, error) { return 0, c.stream.EventUpdateCallback(events) })
	return c.ended(err)
}

// Close implements hypervisor.Console.
func (c *console) Close() error {
	c.shut.Do(func() {
		done := make(chan struct{})
		close(c.closed)
		go func() {
			defer close(done)
			_ = c.stream.EventRemoveCallback() // it fails for a stream that is over
			_ = c.stream.Abort()
			c.using.Lock()
			defer c.using.Unlock()
			_ = c.stream.Free() // only a handle
			c.hypervisor.pool.close(c.conn)
		}()
		patience := time.NewTimer(consoleClosing)
		defer patience.Stop()
		select {
		case <-done:
		case <-patience.C:
		}
	})
	return nil
}
