package launcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gitvirt/gitvirt/launcher/libvirtrpc"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// guest is one run of a guest, from its start to its end.
type guest struct {
	domain string
	pid    int              // of QEMU, 0 if it was not found
	exit   *unix.WaitStatus // set when QEMU is gone
	asked  bool             // libvirt was asked what became of it
	killed bool             // by the launcher
}

// how tells how QEMU ended.
func (g *guest) how() string {
	switch {
	case g.exit == nil:
		return ""
	case g.exit.Signaled():
		return "signal: " + g.exit.Signal().String()
	default:
		return fmt.Sprintf("exit status %d", g.exit.ExitStatus())
	}
}

// verdict is libvirt's answer about a guest whose QEMU is gone; the fate is empty when libvirt does not know.
type verdict struct {
	guest *guest
	fate  protocol.Fate
}

// settled is libvirt's answer to which guests run, before the launcher ends. It cannot answer when err is set.
type settled struct {
	active []string
	err    error
}

// reap takes away every process that has ended: the daemon, QEMU, and orphans of either.
func (l *launcher) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if pid == l.daemon.pid {
			l.daemonDied((&guest{exit: &status}).how())
			continue
		}
		for _, g := range l.guests {
			if g.pid == pid {
				g.exit = &status
			}
		}
	}
}

// sync compares what the launcher knows with what a daemon says that runs. A domain that has no QEMU is about to start or to end, and
// the daemon will tell; sync reports whether there is one.
func (l *launcher) sync(ctx context.Context, active []string) (undecided bool) {
	running := map[string]bool{}
	for _, domain := range active {
		running[domain] = true
		pid := l.folder.guestPID(domain)
		if pid == 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			undecided = true
			continue
		}
		l.began(ctx, domain, pid)
	}
	for domain, g := range l.guests {
		if !running[domain] && !g.asked {
			l.inquire(ctx, g)
		}
	}
	return undecided
}

// began notes that a guest runs.
func (l *launcher) began(ctx context.Context, domain string, pid int) {
	known := l.guests[domain]
	if known != nil && (pid == 0 || pid == known.pid) {
		return
	}
	if known != nil && known.pid == 0 {
		known.pid = pid
		return
	}
	l.guests[domain] = &guest{domain: domain, pid: pid}
	l.look = nil
	l.logger.Info("guest started", "domain", domain, "pid", pid)
	if l.termination.asked {
		l.pressPowerButton(ctx)
	}
}

// askAboutTheDead asks libvirt about guests whose QEMU is gone. It tells by itself if it saw QEMU go, which it did not if it
// was not there.
func (l *launcher) askAboutTheDead(ctx context.Context) {
	for _, g := range l.guests {
		switch {
		case g.exit == nil || g.asked:
		case g.killed:
			l.ended(ctx, g, protocol.Killed)
		default:
			l.inquire(ctx, g)
		}
	}
}

// inquire asks libvirt what became of a guest, until it says that the guest is off.
func (l *launcher) inquire(ctx context.Context, g *guest) {
	g.asked = true
	l.background.Go(func() {
		v := verdict{guest: g}
		for deadline := time.Now().Add(talkTime); time.Now().Before(deadline); {
			var state libvirtrpc.State
			err := l.folder.ask(ctx, func(c *libvirtrpc.Client) (err error) {
				state, err = c.State(g.domain)
				return err
			})
			if err != nil {
				break // the domain is not defined any more, or nobody answers
			}
			if !state.Active() {
				v.fate = fateOfState(state.Reason)
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(firstRetry):
			}
		}
		send(ctx, l.verdicts, v)
	})
}

// judge decides about a guest whose QEMU is gone, whether libvirt knows more or not.
func (l *launcher) judge(ctx context.Context, v verdict) {
	g := v.guest
	if l.guests[g.domain] != g {
		return // libvirt told by itself meanwhile
	}
	fate := v.fate
	switch {
	case fate != "":
	case g.exit != nil && g.exit.Exited() && g.exit.ExitStatus() == 0:
		fate = protocol.Shutdown
	default:
		fate = protocol.Crashed
	}
	l.ended(ctx, g, fate)
}

// ended notes that a guest has ended.
func (l *launcher) ended(ctx context.Context, g *guest, fate protocol.Fate) {
	ending := protocol.Ending{Fate: fate, Domain: g.domain, QEMU: g.how()}
	if g.killed {
		ending.Fate = protocol.Killed
		ending.Detail = fmt.Sprintf("the guest did not shut down within %s", l.grace)
	}
	delete(l.guests, g.domain)
	l.last = &ending
	l.logger.Info("guest ended", "domain", g.domain, "fate", ending.Fate, "qemu", ending.QEMU)
	l.settle(ctx)
}

// settle ends the launcher if no guest runs and none will. Whether one runs libvirt is asked once more: one may have been
// started, and the file that held the Pod removed, quicker than the news of it came here.
func (l *launcher) settle(ctx context.Context) {
	l.look = nil
	switch {
	case len(l.guests) > 0 || l.settling:
		return
	case l.termination.asked && (!l.reached || l.termination.force != forceNone):
		l.finish() // nobody to ask, or no time
		return
	case l.termination.asked:
	case l.last == nil:
		return // the agent has not started it yet
	case l.folder.held():
		l.look = time.After(lookAgain)
		return
	}
	l.settling = true
	l.background.Go(func() {
		var s settled
		s.err = l.folder.ask(ctx, func(c *libvirtrpc.Client) (err error) {
			s.active, err = c.Active()
			return err
		})
		send(ctx, l.settled, s)
	})
}

// conclude is the end of settle.
func (l *launcher) conclude(ctx context.Context, s settled) {
	l.settling = false
	if s.err != nil {
		l.logger.Warn("libvirt does not say which guests run", "error", s.err)
	}
	undecided := l.sync(ctx, s.active)
	switch {
	case len(l.guests) > 0:
	case undecided || !l.termination.asked && l.folder.held():
		l.look = time.After(lookAgain)
	default:
		l.finish()
	}
}

// finish ends the launcher with the fate of the guest that ended last.
func (l *launcher) finish() {
	ending := protocol.Ending{Fate: protocol.NeverStarted, Detail: "the Pod was ended before a guest ran"}
	if l.last != nil {
		ending = *l.last
	}
	l.ending = &ending
}
