package libvirt

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// GuestAgent implements hypervisor.Hypervisor. libvirt lets one command at a time reach an agent and gives each its own
// time, so that one that hangs holds up nobody but its own guest.
//
// Somebody may switch a guest off because it is silent. So only what proves that the guest had its chance is ErrNoAgent, or
// an error without a kind, which is the agent's own answer; all else is ErrUnavailable.
func (h *Hypervisor) GuestAgent(ctx context.Context, name, command string) (string, error) {
	timeout := lv.DOMAIN_QEMU_AGENT_COMMAND_DEFAULT
	if deadline, ok := ctx.Deadline(); ok {
		seconds := (time.Until(deadline) + time.Second - 1) / time.Second
		timeout = min(max(lv.DomainQemuAgentCommandTimeout(seconds), 1), maxAgentTimeout)
	}
	select {
	case h.commands <- struct{}{}:
	case <-ctx.Done():
		return "", doing(unasked(ctx.Err()), "ask the guest agent of", name)
	case <-h.closed:
		return "", doing(errClosed, "ask the guest agent of", name)
	}
	// Whoever is first, the call or the end of the caller's patience, gives the place back.
	var taken, sent atomic.Bool
	defer func() {
		if taken.CompareAndSwap(false, true) {
			<-h.commands
		}
	}()
	reply, err := call(ctx, h, agents, func(c *lv.Connect) (string, error) {
		if !taken.CompareAndSwap(false, true) {
			return "", context.DeadlineExceeded // nobody waits for an answer any more
		}
		defer func() { <-h.commands }() // not before libvirt has answered, which may be after the caller has gone
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return "", err
		}
		defer free(dom)
		sent.Store(true)
		reply, err := dom.QemuAgentCommand(command, timeout, 0)
		// A domain that is off is OPERATION_INVALID, one that has no channel for an agent is ARGUMENT_UNSUPPORTED.
		if hasCode(err, lv.ERR_OPERATION_INVALID, lv.ERR_ARGUMENT_UNSUPPORTED, lv.ERR_AGENT_COMMAND_TIMEOUT) {
			err = &Error{Kind: hypervisor.ErrNoAgent, Cause: err}
		}
		return reply, err
	})
	return reply, doing(agentError(err, sent.Load()), "ask the guest agent of", name)
}

// agentError says what a failed command tells about the guest; sent says that libvirt was about to carry it out.
func agentError(err error, sent bool) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded) && sent:
		return fmt.Errorf("%w: %w", hypervisor.ErrNoAgent, err)
	case errors.Is(err, context.DeadlineExceeded):
		return unasked(err)
	}
	var of *Error
	if errors.As(err, &of) && of.Kind == nil && !hasCode(err, lv.ERR_INTERNAL_ERROR, lv.ERR_AGENT_COMMAND_FAILED) {
		return &Error{Kind: hypervisor.ErrUnavailable, Cause: of.Cause} // such as a lock on the domain that libvirt did not get
	}
	return err
}

// unasked says that the time was over before anybody asked the guest.
func unasked(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: too busy to ask: %w", hypervisor.ErrUnavailable, err)
}

// maxAgentTimeout bounds what a caller without patience of its own lets an agent take, in seconds.
const maxAgentTimeout = 60
