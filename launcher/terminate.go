package launcher

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/libvirtrpc"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

const (
	// The power button is pressed again, after a second first and then less and less often: firmware, boot loaders and kernels that
	// have just begun do not listen to it, and a guest that is shutting down minds a second time as little as a machine does.
	firstPress = time.Second
	lastPress  = 8 * time.Second
	// KillTime is how long QEMU may take to end when it is told to, with what is in its caches, and once more when it is killed.
	// The Pod's terminationGracePeriodSeconds is the guest's grace and twice this, at least.
	KillTime = 3 * time.Second
)

// termination is how far the end of the Pod has come.
type termination struct {
	asked bool
	press <-chan time.Time // when the button is pressed again
	pause time.Duration    // until then
	next  <-chan time.Time // when more force is used
	force force
}

// force is what QEMU was last ended with.
type force int

const (
	forceNone force = iota
	forceTerm
	forceKill
)

// terminate begins the end of the Pod: the guest is asked to shut down.
func (l *launcher) terminate(ctx context.Context) {
	l.logger.Info("asked to end", "guests", len(l.guests), "grace", l.grace)
	l.termination.asked = true
	l.termination.next = time.After(l.grace)
	if len(l.guests) == 0 {
		l.settle(ctx)
		return
	}
	l.pressPowerButton(ctx)
}

func (l *launcher) pressPowerButton(ctx context.Context) {
	l.termination.pause = min(max(2*l.termination.pause, firstPress), lastPress)
	l.termination.press = time.After(l.termination.pause)
	for domain := range l.guests {
		l.background.Go(func() {
			err := l.folder.ask(ctx, func(c *libvirtrpc.Client) error { return c.PressPowerButton(domain) })
			if err != nil && ctx.Err() == nil {
				l.logger.Warn("cannot ask the guest to shut down", "domain", domain, "error", err)
			}
		})
	}
}

// stopHard ends QEMU without the guest's consent, and without libvirt, which may be what hangs: with SIGTERM, which has QEMU
// write what it holds in its caches, then with SIGKILL. A QEMU that survives that hangs in the kernel, and ends with the Pod.
func (l *launcher) stopHard() {
	if len(l.guests) == 0 {
		l.finish() // it was asked once more whether one runs, and nobody has answered
		return
	}
	l.termination.press, l.termination.next = nil, time.After(KillTime)
	l.termination.force++
	signal := unix.SIGTERM
	switch l.termination.force {
	case forceNone, forceTerm:
	case forceKill:
		signal = unix.SIGKILL
	default:
		l.ending = &protocol.Ending{Fate: protocol.Killed, Detail: "QEMU does not end, not even when it is killed"}
		return
	}
	for _, g := range l.guests {
		l.logger.Warn("the guest has not shut down; it is stopped", "domain", g.domain, "after", l.grace, "signal", signal.String())
		g.killed = true
		if g.pid == 0 {
			g.pid = l.folder.guestPID(g.domain)
		}
		if g.pid == 0 {
			l.ending = &protocol.Ending{
				Fate: protocol.Killed, Domain: g.domain,
				Detail: fmt.Sprintf("the guest did not shut down within %s, and its QEMU was not found", l.grace),
			}
			return
		}
		if err := unix.Kill(g.pid, signal); err != nil {
			l.logger.Warn("cannot stop QEMU", "pid", g.pid, "error", err)
		}
	}
}
