package launcher

import (
	"context"
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/launcher/libvirtrpc"
	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// How long one conversation with the daemon may take, and how often a daemon that does not answer is tried.
const (
	talkTime   = 10 * time.Second
	firstRetry = 10 * time.Millisecond
	lastRetry  = 250 * time.Millisecond
)

// news is what the daemon tells by itself.
type news struct {
	// synced is set when a connection was made; active names the guests that run now.
	synced bool
	active []string
	// Otherwise a guest has started, or ended with a fate.
	domain string
	fate   protocol.Fate // empty when it has started
}

// dial connects to the daemon, once.
func (f folder) dial(ctx context.Context) (*libvirtrpc.Client, error) {
	return libvirtrpc.Dial(ctx, f.path(protocol.SocketPath))
}

// ask connects to the daemon for one conversation, again and again until it has answered, with an
// error maybe, or time is up.
func (f folder) ask(ctx context.Context, talk func(*libvirtrpc.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, talkTime)
	defer cancel()
	deadline, _ := ctx.Deadline()
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		client, err := f.dial(ctx) // a daemon that has just begun refuses what it will do in a moment
		if err == nil {
			release := context.AfterFunc(ctx, func() { _ = client.Close() })
			if err = client.SetDeadline(deadline); err == nil {
				err = talk(client)
			}
			_ = client.Leave()
			release()
			var answer *libvirtrpc.Error
			if err == nil || errors.As(err, &answer) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-time.After(retry):
		}
	}
}

// watch tells what the daemon says about guests, over all the daemons that come and go, until the context ends.
func (f folder) watch(ctx context.Context, tell chan<- news) {
	for retry := firstRetry; ctx.Err() == nil; retry = min(2*retry, lastRetry) {
		if f.listen(ctx, tell) {
			retry = firstRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

// listen tells what one daemon says until it is gone, and whether there was one. It subscribes before it looks which guests
// run, so that none is missed.
func (f folder) listen(ctx context.Context, tell chan<- news) bool {
	dialing, cancel := context.WithTimeout(ctx, talkTime)
	defer cancel()
	client, err := f.dial(dialing)
	if err != nil {
		return false
	}
	defer client.Close() //nolint:errcheck // the daemon notices
	defer context.AfterFunc(ctx, func() { _ = client.Close() })()
	if client.Subscribe() != nil {
		return false
	}
	active, err := client.Active()
	if err != nil || !send(ctx, tell, news{synced: true, active: active}) {
		return false
	}
	for {
		event, err := client.NextEvent()
		if err != nil {
			return true
		}
		what := news{domain: event.Domain}
		switch event.Kind {
		case libvirtrpc.EventStarted:
		case libvirtrpc.EventStopped:
			what.fate = fateOfEvent(event.Detail)
		default:
			continue
		}
		if !send(ctx, tell, what) {
			return true
		}
	}
}

func send[T any](ctx context.Context, to chan<- T, value T) bool {
	select {
	case to <- value:
		return true
	case <-ctx.Done():
		return false
	}
}

// fateOfEvent translates why a guest stopped. Failed means that QEMU went without the guest having shut down.
func fateOfEvent(detail int32) protocol.Fate {
	switch detail {
	case libvirtrpc.StoppedShutdown:
		return protocol.Shutdown
	case libvirtrpc.StoppedDestroyed:
		return protocol.Destroyed
	case libvirtrpc.StoppedMigrated:
		return protocol.Migrated
	case libvirtrpc.StoppedSaved:
		return protocol.Saved
	default:
		return protocol.Crashed
	}
}

// fateOfState translates why a domain is off, or returns "" when libvirt does not know.
func fateOfState(reason int32) protocol.Fate {
	switch reason {
	case libvirtrpc.ShutoffShutdown:
		return protocol.Shutdown
	case libvirtrpc.ShutoffDestroyed:
		return protocol.Destroyed
	case libvirtrpc.ShutoffCrashed, libvirtrpc.ShutoffFailed:
		return protocol.Crashed
	case libvirtrpc.ShutoffMigrated:
		return protocol.Migrated
	case libvirtrpc.ShutoffSaved:
		return protocol.Saved
	default:
		return ""
	}
}
