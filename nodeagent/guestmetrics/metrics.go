// Package guestmetrics shows a guest some figures of its host and of itself: KubeVirt's downwardMetrics. They reach the guest
// in one of two ways that the tool vm-dump-metrics reads, both of vhostmd (https://github.com/vhostmd/vhostmd): a small disk that is
// written again every few seconds, and a virtio-serial port on which the guest asks. Both carry the same XML. Nothing here
// knows libvirt: whoever calls says what the guest has and used.
package guestmetrics

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"time"
)

// Vendor is what a guest is told about who runs it.
const Vendor = "gitvirt.io"

// Guest is what is known about a guest.
type Guest struct {
	// VCPUs and Memory (KiB) are what it has now.
	VCPUs     uint
	MemoryKiB uint64
	// CPUTime is what its vCPUs have used since it was started.
	CPUTime time.Duration
}

// Host is what is known about the host. A figure that cannot be read is 0.
type Host struct {
	Name string
	// Hypervisor is QEMU's version, "qemu-8.2.0"; empty when unknown.
	Hypervisor string
	// Sockets is the number of processors.
	Sockets int
	// CPUTime is what all processes have used since the host was started.
	CPUTime time.Duration
	// Memory, in KiB.
	FreeKiB, FreeVirtualKiB, UsedKiB, UsedVirtualKiB uint64
	PagedInKiB, PagedOutKiB                          uint64
	Time                                             time.Time
}

type metric struct {
	Type    string `xml:"type,attr"`
	Context string `xml:"context,attr"`
	Unit    string `xml:"unit,attr,omitempty"`
	Name    string `xml:"name"`
	Value   string `xml:"value"`
}

type document struct {
	XMLName xml.Name `xml:"metrics"`
	Metrics []metric `xml:"metric"`
}

// The contexts of a metric.
const (
	contextHost = "host"
	contextVM   = "vm"
)

func text(context, name, value string) metric {
	return metric{Type: "string", Context: context, Name: name, Value: value}
}

func whole(context, name, unit string, value uint64) metric {
	return metric{Type: "uint64", Context: context, Unit: unit, Name: name, Value: strconv.FormatUint(value, 10)}
}

func signed(name, unit string, value int64) metric {
	return metric{Type: "int64", Context: contextHost, Unit: unit, Name: name, Value: strconv.FormatInt(value, 10)}
}

func seconds(context, name string, value time.Duration) metric {
	return metric{Type: "real64", Context: context, Unit: "s", Name: name, Value: strconv.FormatFloat(value.Seconds(), 'f', 6, 64)}
}

// Document returns the figures in vhostmd's XML, with the names, units and types of KubeVirt.
func Document(host Host, guest Guest) ([]byte, error) {
	product := host.Hypervisor
	if product == "" {
		product = "qemu-unknown"
	}
	out, err := xml.MarshalIndent(document{Metrics: []metric{
		text(contextHost, "HostName", host.Name),
		text(contextHost, "HostSystemInfo", "linux"),
		text(contextHost, "VirtualizationVendor", Vendor),
		text(contextHost, "VirtProductInfo", product),
		seconds(contextVM, "TotalCPUTime", guest.CPUTime),
		whole(contextVM, "ResourceProcessorLimit", "", uint64(guest.VCPUs)),
		whole(contextVM, "PhysicalMemoryAllocatedToVirtualSystem", "KiB", guest.MemoryKiB),
		whole(contextVM, "ResourceMemoryLimit", "KiB", guest.MemoryKiB),
		signed("NumberOfPhysicalCPUs", "", int64(host.Sockets)),
		seconds(contextHost, "TotalCPUTime", host.CPUTime),
		whole(contextHost, "FreePhysicalMemory", "KiB", host.FreeKiB),
		whole(contextHost, "FreeVirtualMemory", "KiB", host.FreeVirtualKiB),
		whole(contextHost, "MemoryAllocatedToVirtualServers", "KiB", host.UsedKiB),
		whole(contextHost, "UsedVirtualMemory", "KiB", host.UsedVirtualKiB),
		whole(contextHost, "PagedInMemory", "KiB", host.PagedInKiB),
		whole(contextHost, "PagedOutMemory", "KiB", host.PagedOutKiB),
		signed("Time", "s", host.Time.Unix()),
	}}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("writing metrics: %w", err)
	}
	return append(out, '\n'), nil
}
