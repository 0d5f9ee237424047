package nodeagent

import (
	"context"
	"encoding/xml"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
)

// ReadStatistics returns what a running guest uses.
func (a *Agent) ReadStatistics(ctx context.Context, request *api.ReadStatisticsRequest) (*api.Statistics, error) {
	name, err := a.guestOf(request.GetAddress(), request.GetDomain())
	if err != nil {
		return nil, err
	}
	domain, err := a.hypervisor.Domain(ctx, name)
	if err != nil {
		return nil, err
	}
	found, err := a.hypervisor.Statistics(ctx, name)
	if err != nil {
		return nil, err
	}
	return statisticsMessage(&found, &domain, time.Now()), nil
}

func statisticsMessage(found *hypervisor.Statistics, domain *hypervisor.Domain, now time.Time) *api.Statistics {
	named := namesOf(domain.Live)
	out := &api.Statistics{
		State: stateName(domain.State), TimeUnixNano: now.UnixNano(), Vcpus: uint32(found.VCPUs), //nolint:gosec // hundreds at most
		CpuNs: nanoseconds(found.CPU), CpuUserNs: nanoseconds(found.User), CpuSystemNs: nanoseconds(found.System),
		MemoryBytes: found.MemoryKiB << 10, ResidentBytes: found.ResidentKiB << 10,
		GuestTotalBytes: inBytes(found.GuestTotalKiB), GuestUsableBytes: inBytes(found.GuestUsableKiB),
	}
	for _, disk := range found.Disks {
		out.Disks = append(out.Disks, &api.DiskStatistics{
			Name: named[disk.Target], Target: disk.Target, ReadRequests: disk.ReadRequests, ReadBytes: disk.ReadBytes,
			WriteRequests: disk.WriteRequests, WriteBytes: disk.WriteBytes, CapacityBytes: disk.CapacityBytes, AllocatedBytes: disk.AllocatedBytes,
		})
	}
	for _, nic := range found.Interfaces {
		out.Interfaces = append(out.Interfaces, &api.InterfaceStatistics{
			Name: named[nic.Device], Device: nic.Device, ReceivedBytes: nic.ReceivedBytes, ReceivedPackets: nic.ReceivedPackets,
			SentBytes: nic.SentBytes, SentPackets: nic.SentPackets, DroppedPackets: nic.Dropped,
		})
	}
	return out
}

func nanoseconds(d time.Duration) uint64 { return uint64(max(d, 0)) }

func inBytes(kib *uint64) *uint64 {
	if kib == nil {
		return nil
	}
	bytes := *kib << 10
	return &bytes
}

// namesOf returns the names that disks and interfaces have in the manifest, by their devices in the running guest's XML.
func namesOf(live string) map[string]string {
	type device struct {
		Target struct {
			Dev string `xml:"dev,attr"`
		} `xml:"target"`
		Alias struct {
			Name string `xml:"name,attr"`
		} `xml:"alias"`
	}
	var domain struct {
		Disks      []device `xml:"devices>disk"`
		Interfaces []device `xml:"devices>interface"`
	}
	if err := xml.Unmarshal([]byte(live), &domain); err != nil {
		return nil // the figures are of use without names
	}
	names := map[string]string{}
	for _, one := range append(domain.Disks, domain.Interfaces...) {
		if name, ok := strings.CutPrefix(one.Alias.Name, "ua-"); ok {
			names[one.Target.Dev] = name
		}
	}
	return names
}
