package domainxml

import (
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// PlannedAssignment stands in for what a host would assign, for showing a domain without a host: CPUs from 0 on, and
// devices numbered from 1 on. selectors are VM.HostDevices; a device that they do not name counts as a PCI one, unless its
// resource is named kubevirt.io/..., as KubeVirt's documentation names those of USB devices.
func PlannedAssignment(spec *kubevirtv1.VirtualMachineInstanceSpec, selectors map[string]schemas.HostDeviceSelector) Assignment {
	var out Assignment
	count := 0
	next := func(format string) string {
		count++
		return fmt.Sprintf(format, count)
	}
	add := func(name, resource string) {
		selector, known := selectors[name]
		switch {
		case !known && strings.HasPrefix(resource, "kubevirt.io/"):
			out.Devices = append(out.Devices, HostDevice{Name: name, Type: DeviceUSB, Address: next("0:%d")})
		case len(selector.USB) > 0:
			for range selector.USB {
				out.Devices = append(out.Devices, HostDevice{Name: name, Type: DeviceUSB, Address: next("0:%d")})
			}
		case len(selector.Mediated) > 0:
			out.Devices = append(out.Devices, HostDevice{Name: name, Type: DeviceMDev, Address: next("00000000-0000-0000-0000-%012x")})
		default:
			out.Devices = append(out.Devices, HostDevice{Name: name, Type: DevicePCI, Address: next("0000:%02x:00.0")})
		}
	}
	devices := &spec.Domain.Devices
	for i := range devices.HostDevices {
		add(devices.HostDevices[i].Name, devices.HostDevices[i].DeviceName)
	}
	for i := range devices.GPUs {
		add(devices.GPUs[i].Name, devices.GPUs[i].DeviceName)
	}
	for i := range devices.Interfaces {
		if devices.Interfaces[i].SRIOV != nil {
			add(devices.Interfaces[i].Name, "")
		}
	}
	cpu := spec.Domain.CPU
	if cpu == nil || !cpu.DedicatedCPUPlacement {
		return out
	}
	cpus := int(min(topologyOf(spec).vcpus(), maxThreads))
	out.CPUs = &CPUPlacement{VCPUs: make([]int, cpus)}
	for i := range out.CPUs.VCPUs {
		out.CPUs.VCPUs[i] = i
	}
	if cpu.IsolateEmulatorThread {
		out.CPUs.Emulator = []int{cpus}
	}
	if cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil {
		out.CPUs.Nodes = make([]int, cpus)
	}
	return out
}

// GuestCPUs returns how many vCPUs a guest starts with, and how many of them make a core of the guest.
func GuestCPUs(spec *kubevirtv1.VirtualMachineInstanceSpec) (vcpus, threads int) {
	t := topologyOf(spec)
	return int(min(t.vcpus(), maxThreads)), int(t.threads)
}

// GuestMemory returns the guest's memory in bytes.
func GuestMemory(spec *kubevirtv1.VirtualMachineInstanceSpec) uint64 { return memoryOf(spec) }
