// Package libvirt drives libvirt for the node agent. It is the only package with cgo: built plainly it links libvirt.so.0,
// with the build tag libvirt_dlopen it loads it at run time. It renders and judges no domain XML and logs nothing.
//
// Connections are made when a call needs one and replaced when they die, so libvirtd may be down at the start and be
// restarted at any time; no domain is touched by that. While it is down, calls fail with hypervisor.ErrUnavailable
// without waiting, and a connection is tried again with a backoff of at most a second.
//
// A libvirt call cannot be cancelled. Each runs in a goroutine of its own; when its context ends the caller gets ctx.Err()
// at once, and the call goes on by itself, its effect included. What that can cost is bounded: at most maxCalls are
// under way, the next ones wait for one of them or for their context. Calls into a dead libvirtd end when the
// keepalive gives up (20 s); libvirt itself limits how long one domain's job waits for another (30 s).
package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const (
	// maxCalls is how many libvirt calls may be under way, abandoned ones included.
	maxCalls = 64

	// closePatience is how long Close waits for calls that are under way.
	closePatience = 10 * time.Second

	// DefaultConnections is one for reading, two for changes, which lets 10 domains start at once (5 requests each, see
	// requestsPerConnection), and one for guest agents: together as much as the 20 workers do that libvirtd has for all
	// its clients (max_workers), so that nothing waits for one. BenchmarkReadDuringStarts shows what one connection would
	// cost.
	DefaultConnections = 4
)

// Hypervisor is a libvirt. It implements hypervisor.Hypervisor.
type Hypervisor struct {
	pool   *pool
	tokens chan struct{} // one per call under way
	agents agentQueries
	// commands has one for each command to a guest agent that is under way: no more than libvirtd carries out for one
	// connection, so that none of them waits there while its time runs.
	commands chan struct{}

	shut   sync.Once
	closed chan struct{}
}

var _ hypervisor.Hypervisor = (*Hypervisor)(nil)

// Option changes how a Hypervisor is made.
type Option func(*Hypervisor)

// WithConnections sets how many connections there are at most, at least one, in place of DefaultConnections. Drivers that
// live in this process (test:, qemu:///embed) have one and need no more: with several, each may show other domains.
func WithConnections(n int) Option {
	return func(h *Hypervisor) { h.pool.slots = make([]slot, max(n, 1)) }
}

// New returns the libvirt at uri, such as qemu:///system or qemu+unix:///system?socket=PATH. It connects with the first
// call. Close frees it.
func New(uri string, options ...Option) *Hypervisor {
	h := NewFrom(uri, func() (string, func(), error) { return uri, func() {}, nil })
	h.pool.slots = make([]slot, connectionsFor(uri))
	for _, option := range options {
		option(h)
	}
	return h
}

// Source says where a libvirt is, anew for each connection. release is called when the connection is there or has failed.
type Source func() (uri string, release func(), err error)

// NewFrom returns a libvirt that may be somewhere else at each connection; its name is for people.
func NewFrom(name string, source Source, options ...Option) *Hypervisor {
	h := &Hypervisor{
		pool:   &pool{name: name, source: source, slots: make([]slot, DefaultConnections)},
		tokens: make(chan struct{}, maxCalls),
		closed: make(chan struct{}),

		commands: make(chan struct{}, requestsPerConnection),
	}
	for _, option := range options {
		option(h)
	}
	return h
}

// connectionsFor returns how many connections are right for a URI, see https://libvirt.org/uri.html.
func connectionsFor(uri string) int {
	if u, err := url.Parse(uri); err == nil && (u.Scheme == "test" || u.Path == "/embed") {
		return 1
	}
	return DefaultConnections
}

// Close ends Events, refuses further calls, waits for those under way and closes the connections. Domains are not
// touched. An error says that some call did not end in time: its goroutine and connection remain until it does.
func (h *Hypervisor) Close() error {
	h.shut.Do(func() { close(h.closed) })
	h.pool.shut()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.pool.tasks.Wait()
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(closePatience):
		return errors.New("close the connection to libvirt: a call has not ended")
	}
}

// call runs f with a connection of the lane and returns what f does, or ctx.Err() as soon as ctx ends. f may run on after
// that, so it must hand out results only through its return value.
func call[T any](ctx context.Context, h *Hypervisor, l lane, f func(*lv.Connect) (T, error)) (T, error) {
	var none T
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case <-h.closed:
		return none, errClosed
	default:
	}
	select {
	case h.tokens <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	case <-h.closed:
		return none, errClosed
	}
	conn, err := h.pool.acquire(ctx, l)
	if err != nil {
		<-h.tokens
		return none, err
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := f(conn.libvirt)
		if err != nil {
			err = classify(err, conn.alive())
		}
		h.pool.release(conn)
		<-h.tokens
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// do is call for what changes something and returns nothing.
func do(ctx context.Context, h *Hypervisor, f func(*lv.Connect) error) error {
	_, err := call(ctx, h, slow, func(c *lv.Connect) (struct{}, error) { return struct{}{}, f(c) })
	return err
}

// withDomain is do for one domain, which it looks up and frees.
func withDomain(ctx context.Context, h *Hypervisor, name string, f func(*lv.Domain) error) error {
	return do(ctx, h, func(c *lv.Connect) error {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return err
		}
		defer free(dom)
		return f(dom)
	})
}

// free gives a domain handle back. It fails only for a handle that is none.
func free(dom *lv.Domain) { _ = dom.Free() }

// doing wraps the error of one method, once, with what it did to which domain.
func doing(err error, what, name string) error {
	if err == nil {
		return nil
	}
	if name == "" {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s domain %q: %w", what, name, err)
}
