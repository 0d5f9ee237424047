package libvirt

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

const (
	// requestsPerConnection is how many calls of one client libvirtd carries out at a time (max_client_requests in
	// libvirtd.conf); more wait in its socket.
	requestsPerConnection = 5

	// dialPatience is how long a caller waits for a connection. A daemon that accepts and then says nothing would
	// otherwise hold callers until their contexts end.
	dialPatience = 5 * time.Second

	// dialGrace is how long a call waits for one more connection rather than share one that is busy.
	dialGrace = 100 * time.Millisecond

	// A connection on which libvirtd answers no keepalive for keepAliveInterval * keepAliveCount seconds is closed.
	keepAliveInterval = 5
	keepAliveCount    = 3

	// After a failed connection attempt none is made for a while, so that calls fail quickly: it doubles from
	// backoffFirst to backoffLast, give or take a quarter. backoffLast is short because a local daemon's socket costs
	// nothing to try and everything waits for it.
	backoffFirst = 50 * time.Millisecond
	backoffLast  = time.Second
)

var errClosed = fmt.Errorf("%w: closed", hypervisor.ErrUnavailable)

// pool holds up to size connections to one libvirt and replaces those that die.
type pool struct {
	name   string // for people
	source Source

	mu       sync.Mutex
	slots    []slot
	closed   bool
	tasks    sync.WaitGroup // uses, dials and closings; added to under mu while not closed, or by a task
	failures int            // connection attempts that failed in a row
	lastErr  error          // what the last of them said
	retryAt  time.Time      // no attempt before
}

// slot is a place for a connection. Either conn is set, or dialing, or neither.
type slot struct {
	conn    *connection
	dialing *dial
}

// dial is an attempt to connect that is under way; done is closed when it has ended.
type dial struct {
	since time.Time
	done  chan struct{}
}

// connection is an open connection and who uses it. users and retired belong to the pool's mutex.
type connection struct {
	libvirt *lv.Connect
	events  broadcast
	lost    chan struct{} // closed when libvirt reports that the daemon is gone
	users   int
	retired bool // no longer in a slot: closed with its last user
}

// alive reports whether the connection is there as far as is known; it asks nobody.
func (c *connection) alive() bool {
	select {
	case <-c.lost:
		return false
	default:
	}
	alive, err := c.libvirt.IsAlive()
	return alive && err == nil
}

// lane says which connections a call may use.
type lane int

const (
	// quick is for calls that read: the first connection, and the others when that is busy.
	quick lane = iota
	// slow is for calls that may take seconds, such as starting a guest: all but the first, so that nobody who reads waits
	// behind them, and the last.
	slow
	// agents is for commands to guest agents, which have a second to answer in: the last connection, where nothing waits
	// behind guests that start.
	agents
	// events is for who must have the first one, because others call it: each connection to a driver that lives in
	// this process (test, embed) may be a world of its own, and then there is only one.
	events
)

// lane returns the slots of a lane.
func (p *pool) lane(l lane) []slot {
	switch {
	case l == events:
		return p.slots[:1]
	case l == agents && len(p.slots) > 2:
		return p.slots[len(p.slots)-1:]
	case l == slow && len(p.slots) > 2:
		return p.slots[1 : len(p.slots)-1]
	case l != quick && len(p.slots) > 1:
		return p.slots[1:]
	default:
		return p.slots
	}
}

// acquire returns a connection of a lane, which is to be released.
func (p *pool) acquire(ctx context.Context, l lane) (*connection, error) {
	for {
		conn, attempt, err := p.try(l)
		if conn != nil || err != nil {
			return conn, err
		}
		patience := time.NewTimer(time.Until(attempt.since.Add(dialPatience)))
		select {
		case <-attempt.done:
			patience.Stop()
		case <-ctx.Done():
			patience.Stop()
			return nil, ctx.Err()
		case <-patience.C:
			return nil, fmt.Errorf("%w: %s has not answered for %s", hypervisor.ErrUnavailable, p.name, dialPatience)
		}
	}
}

// try returns a connection, or the attempt to wait for before trying again, or an error.
func (p *pool) try(l lane) (*connection, *dial, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errClosed
	}
	s := pick(p.lane(l))
	if s.conn != nil && !s.conn.alive() {
		p.retire(s)
	}
	switch {
	case s.conn != nil:
		s.conn.users++
		p.tasks.Add(1)
		return s.conn, nil, nil
	case s.dialing != nil:
		return nil, s.dialing, nil
	case time.Now().Before(p.retryAt):
		return nil, nil, p.lastErr
	}
	s.dialing = &dial{since: time.Now(), done: make(chan struct{})}
	p.tasks.Add(1)
	go p.dial(s, s.dialing)
	return nil, s.dialing, nil
}

// pick chooses the first slot with room for another call, or the least busy one. Slots are filled in order, so a quiet
// agent has few connections. A slot whose connection is slow to come is passed over as long as there is any other.
func pick(slots []slot) *slot {
	var best *slot
	for i := range slots {
		s := &slots[i]
		switch {
		case s.dialing != nil && time.Since(s.dialing.since) > dialGrace:
			continue
		case s.conn == nil || s.conn.users < requestsPerConnection:
			return s
		case best == nil || s.conn.users < best.conn.users:
			best = s
		}
	}
	if best == nil {
		best = &slots[0]
	}
	return best
}

// dial fills a slot. It ends when libvirt answers or refuses, which a hung daemon never does: then one goroutine per slot
// waits, and no more.
func (p *pool) dial(s *slot, attempt *dial) {
	defer p.tasks.Done()
	conn, err := open(p.source)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(attempt.done)
	s.dialing = nil
	if err != nil {
		wait := backoffLast
		if p.failures < 10 {
			wait = min(backoffFirst<<p.failures, backoffLast)
		}
		wait += time.Duration((rand.Float64() - 0.5) * float64(wait) / 2) //nolint:gosec // jitter needs no secrecy
		p.failures++
		p.lastErr = err
		p.retryAt = time.Now().Add(wait)
		return
	}
	p.failures, p.lastErr, p.retryAt = 0, nil, time.Time{}
	s.conn = conn
	if p.closed {
		p.retire(s)
	}
}

// retire takes the connection out of its slot and closes it once nobody uses it.
func (p *pool) retire(s *slot) {
	s.conn.retired = true
	if s.conn.users == 0 {
		p.tasks.Add(1)
		go p.close(s.conn)
	}
	s.conn = nil
}

// join adds a task for something that is to end before the pool is closed; it is false when that has begun.
func (p *pool) join() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.tasks.Add(1)
	return true
}

// release gives a connection back.
func (p *pool) release(conn *connection) {
	defer p.tasks.Done()
	p.mu.Lock()
	conn.users--
	last := conn.retired && conn.users == 0
	if last {
		p.tasks.Add(1)
	}
	p.mu.Unlock()
	if last {
		p.close(conn)
	}
}

// close frees a connection that nobody uses. On a healthy one it asks the daemon and waits for its answer.
func (p *pool) close(conn *connection) {
	defer p.tasks.Done()
	_ = conn.libvirt.UnregisterCloseCallback() // it holds a reference: unregister first, or the connection is never freed
	_, _ = conn.libvirt.Close()                // there is nobody left to tell
	processLoop.release()
}

// nextAttempt returns when a call may try to connect again; the zero time says now.
func (p *pool) nextAttempt() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retryAt
}

// shut refuses further calls and retires all connections; those in use close with their last user.
func (p *pool) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for i := range p.slots {
		if s := &p.slots[i]; s.conn != nil {
			p.retire(s)
		}
	}
}

// open connects and makes sure that a connection that dies is noticed.
func open(source Source) (*connection, error) {
	uri, release, err := source()
	if err != nil {
		return nil, &Error{Kind: hypervisor.ErrUnavailable, Cause: err}
	}
	defer release()
	if err := processLoop.acquire(); err != nil {
		return nil, &Error{Kind: hypervisor.ErrUnavailable, Cause: err}
	}
	connect, err := lv.NewConnect(uri)
	if err != nil {
		processLoop.release()
		return nil, &Error{Kind: hypervisor.ErrUnavailable, Cause: err}
	}
	conn := &connection{libvirt: connect, lost: make(chan struct{})}
	lost := sync.OnceFunc(func() { close(conn.lost) })
	err = connect.RegisterCloseCallback(func(*lv.Connect, lv.ConnectCloseReason) { lost() })
	if err != nil && !unsupported(err) {
		_, closeErr := connect.Close()
		processLoop.release()
		return nil, &Error{Kind: hypervisor.ErrUnavailable, Cause: errors.Join(err, closeErr)}
	}
	// The drivers inside this process have no keepalive and say so; nothing else can be wrong with it.
	_ = connect.SetKeepAlive(keepAliveInterval, keepAliveCount)
	return conn, nil
}
