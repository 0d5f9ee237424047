package nodeagent

import (
	"context"
	"time"
)

// startingRun tells a guest that is being started from the same one when it runs.
const startingRun = " starting"

// startLimit is how long libvirt may say that a guest is being started.
const startLimit = 3 * time.Minute

// expect switches a guest off that is being started for ever. A step that starts it has its lock, and is waited for. libvirt 9 that is
// killed between QEMU's fork and its first sign of life (pid 0 in its state file) says so after every restart, and lets nobody
// switch it off; then all that is left is to tell how it is mended.
func (at *attendant) expect(ctx context.Context) {
	ctx, at.cancel = context.WithCancel(ctx)
	at.tell(func(*health) {}) // what was told of the run before is over
	at.work.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-at.agent.clock.After(startLimit):
			}
			err := at.agent.kill(ctx, at.name, at.run)
			if err == nil || ctx.Err() != nil {
				return
			}
			at.agent.config.Logger.Warn("libvirt does not end the start of a guest", "domain", at.name, "error", err)
			at.tell(func(h *health) {
				h.ready, h.readyReason = "false", "libvirt says for more than "+startLimit.String()+" that the guest is being started, and does not switch it off ("+
					err.Error()+"); stop libvirtd, remove /run/libvirt/qemu/"+at.name+".xml and start it again"
			})
		}
	})
}
