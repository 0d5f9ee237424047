package libvirt

import (
	"context"

	lv "libvirt.org/go/libvirt"
)

// Monitor implements hypervisor.Hypervisor.
func (h *Hypervisor) Monitor(ctx context.Context, name, command string) (string, error) {
	output, err := call(ctx, h, slow, func(c *lv.Connect) (string, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return "", err
		}
		defer free(dom)
		return dom.QemuMonitorCommand(command, lv.DOMAIN_QEMU_MONITOR_COMMAND_HMP)
	})
	return output, doing(err, "ask the monitor of", name)
}
