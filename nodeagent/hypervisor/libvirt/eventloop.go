package libvirt

import (
	"fmt"
	"sync"

	lv "libvirt.org/go/libvirt"
)

// processLoop is the one mutable package variable here: libvirt's default event loop belongs to the process, is
// registered once before the first connection, and cannot be unregistered. Whoever links this package must not register
// or run another.
var processLoop eventLoop

// eventLoop runs libvirt's default event loop in one goroutine for as long as somebody uses it. Every open connection
// is a user: it needs the loop for keepalives, events and to notice that the daemon is gone.
type eventLoop struct {
	mu         sync.Mutex
	registered bool
	running    bool
	users      int
	done       chan struct{} // closed when the goroutine has ended
	stopping   bool          // touched by the goroutine only
}

// acquire starts the loop for its first user.
func (l *eventLoop) acquire() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.registered {
		if err := lv.EventRegisterDefaultImpl(); err != nil {
			return fmt.Errorf("register libvirt's event loop: %w", err)
		}
		l.registered = true
	}
	if !l.running {
		l.running, l.stopping = true, false
		l.done = make(chan struct{})
		go l.run(l.done)
	}
	l.users++
	return nil
}

// release stops the loop with its last user and waits for its goroutine. It must not be called from a libvirt callback,
// which runs on that goroutine.
func (l *eventLoop) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users--; l.users > 0 {
		return
	}
	// A timer wakes the loop. libvirt frees the sockets of closed connections in idle callbacks, which run only when
	// no timer is due: let it come round a few times before the goroutine ends.
	const rounds = 3
	fired := 0
	timer, err := lv.EventAddTimeout(1, func(int) {
		if fired++; fired >= rounds {
			l.stopping = true
		}
	})
	if err != nil {
		return // out of memory; the loop goes on without users
	}
	<-l.done
	l.running = false
	_ = lv.EventRemoveTimeout(timer) // fails only for a timer that does not exist
}

func (l *eventLoop) run(done chan<- struct{}) {
	defer close(done)
	for !l.stopping {
		if err := lv.EventRunDefaultImpl(); err != nil {
			return // nothing is registered: cannot happen after acquire
		}
	}
}
