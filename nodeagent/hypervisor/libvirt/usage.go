package libvirt

import (
	"context"
	"fmt"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// Usage returns what a running guest has and has used.
func (h *Hypervisor) Usage(ctx context.Context, name string) (hypervisor.Usage, error) {
	usage, err := call(ctx, h, quick, func(c *lv.Connect) (hypervisor.Usage, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return hypervisor.Usage{}, err
		}
		defer func() { _ = dom.Free() }() // only a handle
		return usageOf(c, dom)
	})
	return usage, doing(err, "read the usage of", name)
}

func usageOf(c *lv.Connect, dom *lv.Domain) (hypervisor.Usage, error) {
	info, err := dom.GetInfo()
	if err != nil {
		return hypervisor.Usage{}, err
	}
	usage := hypervisor.Usage{VCPUs: info.NrVirtCpu, MemoryKiB: info.Memory}
	vcpus, err := dom.GetVcpus()
	if err != nil {
		return usage, err
	}
	for _, vcpu := range vcpus {
		usage.CPUTime += time.Duration(vcpu.CpuTime) //nolint:gosec // nanoseconds of a guest's life
	}
	if version, err := c.GetVersion(); err == nil {
		usage.Hypervisor = fmt.Sprintf("qemu-%d.%d.%d", version/1000000, version/1000%1000, version%1000)
	}
	return usage, nil
}
