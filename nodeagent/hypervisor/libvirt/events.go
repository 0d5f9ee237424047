package libvirt

import (
	"context"
	"sync"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/eventqueue"
)

// eventsPause is the least time between two connections that Events opens.
const eventsPause = 100 * time.Millisecond

// Events implements hypervisor.Hypervisor. It also returns when the Hypervisor is closed.
func (h *Hypervisor) Events(ctx context.Context, handle func(hypervisor.Event)) {
	for !h.ended(ctx) {
		if h.watch(ctx, handle) {
			handle(hypervisor.Event{Kind: hypervisor.EventDisconnected})
		}
		// The pool fails quickly until its next attempt, so there is no point in asking before.
		pause := time.NewTimer(max(eventsPause, time.Until(h.pool.nextAttempt())))
		select {
		case <-ctx.Done():
		case <-h.closed:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// ended reports whether nobody wants events any more.
func (h *Hypervisor) ended(ctx context.Context) bool {
	select {
	case <-h.closed:
		return true
	default:
		return ctx.Err() != nil
	}
}

// watch hands out the events of one connection. It reports whether there was one and it died.
func (h *Hypervisor) watch(ctx context.Context, handle func(hypervisor.Event)) bool {
	conn, err := h.pool.acquire(ctx, events)
	if err != nil {
		return false
	}
	queue := eventqueue.New()
	subscribed := make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	// Registering and deregistering ask the daemon, which may hang. Close waits for this goroutine, as for every user of
	// a connection.
	go func() {
		defer h.pool.release(conn)
		defer conn.events.unsubscribe(conn.libvirt, queue)
		subscribed <- conn.events.subscribe(conn.libvirt, queue)
		<-stop
	}()
	select {
	case err := <-subscribed:
		if err != nil {
			return false
		}
	case <-ctx.Done():
		return false
	case <-h.closed:
		return false
	}
	handle(hypervisor.Event{Kind: hypervisor.EventConnected})
	for {
		select {
		case <-queue.Ready():
			for _, event := range queue.Take() {
				if h.ended(ctx) {
					return false
				}
				handle(event)
			}
		case <-conn.lost:
			return true
		case <-ctx.Done():
			return false
		case <-h.closed:
			return false
		}
	}
}

// broadcast hands the events of one connection to any number of queues. libvirt refuses a second registration of the same
// kind on a connection, so there is one, for as long as somebody listens.
type broadcast struct {
	registration sync.Mutex // held while libvirt is asked
	ids          []int      // of the registered callbacks

	// mu is never held while libvirt is asked: the callbacks need it, and run on the event loop's goroutine, where they
	// must neither block nor call libvirt.
	mu     sync.Mutex
	queues map[*eventqueue.Queue]struct{}
}

// subscribe lets a queue have the events from now on. It is to be unsubscribed also when this fails.
func (b *broadcast) subscribe(c *lv.Connect, queue *eventqueue.Queue) error {
	b.registration.Lock()
	defer b.registration.Unlock()
	b.mu.Lock()
	if b.queues == nil {
		b.queues = map[*eventqueue.Queue]struct{}{}
	}
	b.queues[queue] = struct{}{}
	b.mu.Unlock()
	if len(b.ids) > 0 {
		return nil
	}
	return b.register(c)
}

// unsubscribe undoes subscribe. On a dead connection libvirt forgets the callbacks by itself and reports an error.
func (b *broadcast) unsubscribe(c *lv.Connect, queue *eventqueue.Queue) {
	b.registration.Lock()
	defer b.registration.Unlock()
	b.mu.Lock()
	delete(b.queues, queue)
	unused := len(b.queues) == 0
	b.mu.Unlock()
	if !unused {
		return
	}
	for _, id := range b.ids {
		_ = c.DomainEventDeregister(id)
	}
	b.ids = nil
}

// register asks for the events that may concern us. Only lifecycle events are required; an older libvirt or another
// driver may lack the rest.
func (b *broadcast) register(c *lv.Connect) error {
	id, err := c.DomainEventLifecycleRegister(nil, func(_ *lv.Connect, d *lv.Domain, e *lv.DomainEventLifecycle) {
		b.push(d, lifecycleEvent(e))
	})
	if err != nil {
		return err
	}
	b.ids = append(b.ids, id)
	for _, registration := range b.changes(c) {
		if id, err := registration(); err == nil {
			b.ids = append(b.ids, id)
		}
	}
	return nil
}

// changes returns the registrations of what changes about a domain that goes on. Limits of CPU time and of disks
// (DomainEventTunableRegister) are not among them: the binding, v1.12002, panics on its event loop when a disk's limits are set.
// The next look at all domains finds those.
func (b *broadcast) changes(c *lv.Connect) []func() (int, error) {
	changed := func(d *lv.Domain) { b.push(d, hypervisor.Event{Kind: hypervisor.EventChanged}) }
	return []func() (int, error){
		func() (int, error) {
			return c.DomainEventRebootRegister(nil, func(_ *lv.Connect, d *lv.Domain) { changed(d) })
		},
		func() (int, error) {
			return c.DomainEventMetadataChangeRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventMetadataChange) { changed(d) })
		},
		func() (int, error) {
			return c.DomainEventDeviceAddedRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventDeviceAdded) { changed(d) })
		},
		func() (int, error) {
			return c.DomainEventDeviceRemovedRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventDeviceRemoved) { changed(d) })
		},
		func() (int, error) { // the guest's addresses can be asked for, or no longer
			return c.DomainEventAgentLifecycleRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventAgentLifecycle) { changed(d) })
		},
		func() (int, error) { // the guest has got or given back memory
			return c.DomainEventBalloonChangeRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventBalloonChange) { changed(d) })
		},
		func() (int, error) {
			return c.DomainEventMemoryDeviceSizeChangeRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventMemoryDeviceSizeChange) { changed(d) })
		},
		func() (int, error) { // a medium is ejected, by the guest too
			return c.DomainEventTrayChangeRegister(nil,
				func(_ *lv.Connect, d *lv.Domain, _ *lv.DomainEventTrayChange) { changed(d) })
		},
	}
}

// push queues an event about a domain, which belongs to libvirt and is valid only during the callback.
func (b *broadcast) push(d *lv.Domain, event hypervisor.Event) {
	name, err := d.GetName() // asks nobody
	if err != nil {
		return
	}
	event.Name = name
	b.mu.Lock()
	defer b.mu.Unlock()
	for queue := range b.queues {
		queue.Push(event)
	}
}

// lifecycleEvent translates virDomainEventType and the detail that belongs to it.
func lifecycleEvent(e *lv.DomainEventLifecycle) hypervisor.Event {
	switch e.Event {
	case lv.DOMAIN_EVENT_DEFINED:
		return hypervisor.Event{Kind: hypervisor.EventDefined}
	case lv.DOMAIN_EVENT_UNDEFINED:
		return hypervisor.Event{Kind: hypervisor.EventUndefined}
	case lv.DOMAIN_EVENT_STARTED:
		return hypervisor.Event{Kind: hypervisor.EventStarted}
	case lv.DOMAIN_EVENT_STOPPED:
		return hypervisor.Event{Kind: hypervisor.EventStopped, Stop: stopEventReason(lv.DomainEventStoppedDetailType(e.Detail))}
	default: // suspended, resumed, about to shut down, crashed but preserved
		return hypervisor.Event{Kind: hypervisor.EventChanged}
	}
}

// stopEventReason translates the detail of a stop. QEMU's driver reports FAILED for a QEMU that died, for which the
// domain's own reason is CRASHED (qemuProcessHandleMonitorEOF).
func stopEventReason(detail lv.DomainEventStoppedDetailType) hypervisor.StopReason {
	switch detail {
	case lv.DOMAIN_EVENT_STOPPED_SHUTDOWN:
		return hypervisor.StopShutdown
	case lv.DOMAIN_EVENT_STOPPED_DESTROYED, lv.DOMAIN_EVENT_STOPPED_FROM_SNAPSHOT:
		return hypervisor.StopDestroyed
	case lv.DOMAIN_EVENT_STOPPED_CRASHED, lv.DOMAIN_EVENT_STOPPED_FAILED:
		return hypervisor.StopCrashed
	case lv.DOMAIN_EVENT_STOPPED_SAVED:
		return hypervisor.StopSaved
	case lv.DOMAIN_EVENT_STOPPED_MIGRATED:
		return hypervisor.StopMigrated
	default:
		return hypervisor.StopUnknown
	}
}
