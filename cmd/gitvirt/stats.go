package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) statsCommand() *cobra.Command {
	var guest guestFlags
	var output string
	var interval time.Duration
	command := &cobra.Command{
		Use:     "stats [NAMESPACE/]NAME",
		Aliases: []string{"top"},
		Short:   "Show what a running VM uses: CPU, memory, disks, network",
		Long: `Show what a running VM uses, on this host or in a cluster: figures of its libvirt, read twice with --interval between them. What is "/s" is
of that time, everything else since the guest was started. In a cluster you need the ClusterRole and the Role "gitvirt-user", as for
"gitvirt console", and "get" on "pods" where the VM is, which "view" has.

CPU is what QEMU uses, devices included; 100 % is one CPU of the host. "Guest" is what the guest's kernel says of its memory, which
needs a balloon and a driver for it. Disks and interfaces have the names of the manifest. Guests on a host's user-mode networking have no
figures of their network.

Exit codes: 0 done, 1 an error or a VM that does not run.`,
		Example: `  gitvirt stats web-1
  gitvirt stats shop/db-1 --kubernetes --interval 5s
  gitvirt stats web-1 -o json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.askAgent(cmd.Context(), &guest, args[0], func(client api.AgentClient, vm schemas.Address) error {
				return c.stats(cmd.Context(), client, vm, interval, output)
			})
		},
	}
	guest.add(command, c)
	command.Flags().DurationVar(&interval, "interval", time.Second, "time between the two readings")
	addOutput(command, &output, "table", "json", "yaml")
	return command
}

// usage is what a VM uses in JSON and YAML. Rates are per second of the interval; the rest is since the guest was started.
type usage struct {
	VM              string         `json:"vm"`
	State           string         `json:"state"`
	Time            time.Time      `json:"time"`
	IntervalSeconds float64        `json:"interval_seconds"`
	CPU             cpuUsage       `json:"cpu"`
	Memory          memoryUsage    `json:"memory"`
	Disks           []diskUsage    `json:"disks"`
	Networks        []networkUsage `json:"networks"`
}

type cpuUsage struct {
	VCPUs         uint32  `json:"vcpus"`
	Percent       float64 `json:"percent"`
	Seconds       float64 `json:"seconds"`
	UserSeconds   float64 `json:"user_seconds"`
	SystemSeconds float64 `json:"system_seconds"`
}

type memoryUsage struct {
	Bytes            uint64  `json:"bytes"`
	ResidentBytes    uint64  `json:"resident_bytes"`
	GuestTotalBytes  *uint64 `json:"guest_total_bytes,omitempty"`
	GuestUsableBytes *uint64 `json:"guest_usable_bytes,omitempty"`
}

type diskUsage struct {
	Name                string  `json:"name,omitempty"`
	Target              string  `json:"target"`
	ReadBytesPerSecond  float64 `json:"read_bytes_per_second"`
	WriteBytesPerSecond float64 `json:"write_bytes_per_second"`
	ReadBytes           uint64  `json:"read_bytes"`
	WriteBytes          uint64  `json:"write_bytes"`
	ReadRequests        uint64  `json:"read_requests"`
	WriteRequests       uint64  `json:"write_requests"`
	CapacityBytes       uint64  `json:"capacity_bytes"`
	AllocatedBytes      uint64  `json:"allocated_bytes"`
}

type networkUsage struct {
	Name                   string  `json:"name,omitempty"`
	Device                 string  `json:"device"`
	ReceivedBytesPerSecond float64 `json:"received_bytes_per_second"`
	SentBytesPerSecond     float64 `json:"sent_bytes_per_second"`
	ReceivedBytes          uint64  `json:"received_bytes"`
	SentBytes              uint64  `json:"sent_bytes"`
	ReceivedPackets        uint64  `json:"received_packets"`
	SentPackets            uint64  `json:"sent_packets"`
	DroppedPackets         uint64  `json:"dropped_packets"`
}

func (c *cli) stats(ctx context.Context, client api.AgentClient, vm schemas.Address, interval time.Duration, output string) error {
	read := func() (*api.Statistics, error) {
		found, err := client.ReadStatistics(ctx, &api.ReadStatisticsRequest{Address: vm.String()})
		if err != nil {
			return nil, guestError(vm, err)
		}
		return found, nil
	}
	before, err := read()
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return errInterrupted
	case <-time.After(interval):
	}
	now, err := read()
	if err != nil {
		return err
	}
	found := usageOf(vm, before, now)
	if output != "table" {
		return c.print(found, output)
	}
	return c.showUsage(found)
}

// usageOf is what was used between two readings. A counter that went back, as that of a guest that was restarted, begins anew.
func usageOf(vm schemas.Address, before, now *api.Statistics) *usage {
	elapsed := time.Duration(now.GetTimeUnixNano() - before.GetTimeUnixNano())
	rate := func(was, is uint64) float64 {
		if is < was || elapsed <= 0 {
			return 0
		}
		return float64(is-was) / elapsed.Seconds()
	}
	out := &usage{
		VM: vm.Namespace + "/" + vm.Name, State: now.GetState(), Time: time.Unix(0, now.GetTimeUnixNano()).UTC(), IntervalSeconds: elapsed.Seconds(),
		CPU: cpuUsage{
			VCPUs: now.GetVcpus(), Percent: rate(before.GetCpuNs(), now.GetCpuNs()) / float64(time.Second) * 100,
			Seconds: seconds(now.GetCpuNs()), UserSeconds: seconds(now.GetCpuUserNs()), SystemSeconds: seconds(now.GetCpuSystemNs()),
		},
		Memory: memoryUsage{
			Bytes: now.GetMemoryBytes(), ResidentBytes: now.GetResidentBytes(), GuestTotalBytes: now.GuestTotalBytes, GuestUsableBytes: now.GuestUsableBytes,
		},
		Disks: []diskUsage{}, Networks: []networkUsage{},
	}
	disks := map[string]*api.DiskStatistics{}
	for _, disk := range before.GetDisks() {
		disks[disk.GetTarget()] = disk
	}
	for _, disk := range now.GetDisks() {
		was := disks[disk.GetTarget()]
		out.Disks = append(out.Disks, diskUsage{
			Name: disk.GetName(), Target: disk.GetTarget(),
			ReadBytesPerSecond:  rate(was.GetReadBytes(), disk.GetReadBytes()),
			WriteBytesPerSecond: rate(was.GetWriteBytes(), disk.GetWriteBytes()),
			ReadBytes:           disk.GetReadBytes(), WriteBytes: disk.GetWriteBytes(), ReadRequests: disk.GetReadRequests(), WriteRequests: disk.GetWriteRequests(),
			CapacityBytes: disk.GetCapacityBytes(), AllocatedBytes: disk.GetAllocatedBytes(),
		})
	}
	interfaces := map[string]*api.InterfaceStatistics{}
	for _, nic := range before.GetInterfaces() {
		interfaces[nic.GetDevice()] = nic
	}
	for _, nic := range now.GetInterfaces() {
		was := interfaces[nic.GetDevice()]
		out.Networks = append(out.Networks, networkUsage{
			Name: nic.GetName(), Device: nic.GetDevice(),
			ReceivedBytesPerSecond: rate(was.GetReceivedBytes(), nic.GetReceivedBytes()),
			SentBytesPerSecond:     rate(was.GetSentBytes(), nic.GetSentBytes()),
			ReceivedBytes:          nic.GetReceivedBytes(), SentBytes: nic.GetSentBytes(), ReceivedPackets: nic.GetReceivedPackets(), SentPackets: nic.GetSentPackets(),
			DroppedPackets: nic.GetDroppedPackets(),
		})
	}
	return out
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

// showUsage writes what a VM uses in three tables.
func (c *cli) showUsage(u *usage) error {
	guest := "-"
	if total, usable := u.Memory.GuestTotalBytes, u.Memory.GuestUsableBytes; total != nil && usable != nil {
		guest = fmt.Sprintf("%s of %s", size(float64(*total-min(*usable, *total))), size(float64(*total)))
	}
	if err := c.table([][]string{
		{"VM", "STATE", "VCPUS", "CPU", "CPU TIME", "MEMORY", "RESIDENT", "GUEST"},
		{
			u.VM, u.State, strconv.Itoa(int(u.CPU.VCPUs)), fmt.Sprintf("%.1f %%", u.CPU.Percent), fmt.Sprintf("%.1fs", u.CPU.Seconds),
			size(float64(u.Memory.Bytes)), size(float64(u.Memory.ResidentBytes)), guest,
		},
	}); err != nil {
		return err
	}
	if len(u.Disks) > 0 {
		rows := [][]string{{"DISK", "TARGET", "READ/s", "WRITTEN/s", "READ", "WRITTEN", "ALLOCATED", "CAPACITY"}}
		for _, disk := range u.Disks {
			rows = append(rows, []string{
				dash(disk.Name), disk.Target, size(disk.ReadBytesPerSecond), size(disk.WriteBytesPerSecond), size(float64(disk.ReadBytes)),
				size(float64(disk.WriteBytes)), size(float64(disk.AllocatedBytes)), size(float64(disk.CapacityBytes)),
			})
		}
		c.printf("\n")
		if err := c.table(rows); err != nil {
			return err
		}
	}
	if len(u.Networks) == 0 {
		return nil
	}
	rows := [][]string{{"NETWORK", "DEVICE", "RECEIVED/s", "SENT/s", "RECEIVED", "SENT", "DROPPED"}}
	for _, nic := range u.Networks {
		rows = append(rows, []string{
			dash(nic.Name), nic.Device, size(nic.ReceivedBytesPerSecond), size(nic.SentBytesPerSecond), size(float64(nic.ReceivedBytes)),
			size(float64(nic.SentBytes)), strconv.FormatUint(nic.DroppedPackets, 10),
		})
	}
	c.printf("\n")
	return c.table(rows)
}

// size writes bytes in the unit that leaves one to four digits before the point.
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	unit := 0
	for bytes >= 1024 && unit < len(units)-1 {
		bytes /= 1024
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%.0f B", bytes)
	}
	return fmt.Sprintf("%.1f %s", bytes, units[unit])
}
