package libvirt

import (
	"context"
	"time"

	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// statisticsOf are the groups that are read. None of them waits for the guest.
const statisticsOf = lv.DOMAIN_STATS_STATE | lv.DOMAIN_STATS_CPU_TOTAL | lv.DOMAIN_STATS_BALLOON | lv.DOMAIN_STATS_INTERFACE | lv.DOMAIN_STATS_BLOCK

// Statistics implements hypervisor.Hypervisor.
func (h *Hypervisor) Statistics(ctx context.Context, name string) (hypervisor.Statistics, error) {
	found, err := call(ctx, h, quick, func(c *lv.Connect) (hypervisor.Statistics, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return hypervisor.Statistics{}, err
		}
		defer free(dom)
		return statistics(c, dom)
	})
	return found, doing(err, "read the statistics of", name)
}

func statistics(c *lv.Connect, dom *lv.Domain) (hypervisor.Statistics, error) {
	var out hypervisor.Statistics
	info, err := dom.GetInfo()
	if err != nil {
		return out, err
	}
	if state, _ := stateOf(info.State, 0); !state.Active() {
		return out, hypervisor.ErrNotRunning
	}
	out.VCPUs, out.MemoryKiB = info.NrVirtCpu, info.Memory
	all, err := c.GetAllDomainStats([]*lv.Domain{dom}, statisticsOf, 0)
	if err != nil {
		return out, err
	}
	for i := range all {
		add(&out, &all[i])
		free(all[i].Domain)
	}
	return out, nil
}

// add takes what libvirt says. What it does not say is not set.
func add(out *hypervisor.Statistics, said *lv.DomainStats) {
	if cpu := said.Cpu; cpu != nil {
		out.CPU, out.User, out.System = time.Duration(cpu.Time), time.Duration(cpu.User), time.Duration(cpu.System) //nolint:gosec // nanoseconds of a guest's life
	}
	if balloon := said.Balloon; balloon != nil {
		if balloon.CurrentSet {
			out.MemoryKiB = balloon.Current
		}
		out.ResidentKiB = balloon.Rss
		if balloon.AvailableSet && balloon.UsableSet {
			out.GuestTotalKiB, out.GuestUsableKiB = &balloon.Available, &balloon.Usable
		}
	}
	for i := range said.Block {
		block := &said.Block[i]
		out.Disks = append(out.Disks, hypervisor.DiskStatistics{
			Target: block.Name, ReadRequests: block.RdReqs, ReadBytes: block.RdBytes, WriteRequests: block.WrReqs, WriteBytes: block.WrBytes,
			CapacityBytes: block.Capacity, AllocatedBytes: block.Allocation,
		})
	}
	for i := range said.Net {
		// libvirt tells of the host's side of a tap as the guest sees it.
		net := &said.Net[i]
		out.Interfaces = append(out.Interfaces, hypervisor.InterfaceStatistics{
			Device: net.Name, ReceivedBytes: net.RxBytes, ReceivedPackets: net.RxPkts, SentBytes: net.TxBytes, SentPackets: net.TxPkts,
			Dropped: net.RxDrop + net.TxDrop + net.RxErrs + net.TxErrs,
		})
	}
}
