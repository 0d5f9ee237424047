package libvirt

import (
	"context"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// GuestAgent implements hypervisor.Hypervisor. libvirt lets one command at a time reach an agent and gives each its own
// time, so that one that hangs holds up nobody but its own guest.
func (h *Hypervisor) GuestAgent(ctx context.Context, name, command string) (string, error) {
	timeout := lv.DOMAIN_QEMU_AGENT_COMMAND_DEFAULT
	if deadline, ok := ctx.Deadline(); ok {
		seconds := (time.Until(deadline) + time.Second - 1) / time.Second
		timeout = min(max(lv.DomainQemuAgentCommandTimeout(seconds), 1), maxAgentTimeout)
	}
	reply, err := call(ctx, h, slow, func(c *lv.Connect) (string, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return "", err
		}
		defer free(dom)
		reply, err := dom.QemuAgentCommand(command, timeout, 0)
		// A domain that is off is OPERATION_INVALID, one that has no channel for an agent is ARGUMENT_UNSUPPORTED.
		if hasCode(err, lv.ERR_OPERATION_INVALID, lv.ERR_ARGUMENT_UNSUPPORTED, lv.ERR_AGENT_COMMAND_TIMEOUT) {
			err = &Error{Kind: hypervisor.ErrNoAgent, Cause: err}
		}
		return reply, err
	})
	return reply, doing(err, "ask the guest agent of", name)
}

// maxAgentTimeout bounds what a caller without patience of its own lets an agent take, in seconds.
const maxAgentTimeout = 60
