package domainxml

import (
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// memoryOf returns the guest's memory in bytes: memory.guest, or the request, or the limit.
func memoryOf(spec *kubevirtv1.VirtualMachineInstanceSpec) uint64 {
	if memory := spec.Domain.Memory; memory != nil && memory.Guest != nil {
		return bytesOf(memory.Guest)
	}
	if request := spec.Domain.Resources.Requests.Memory(); !request.IsZero() {
		return bytesOf(request)
	}
	return bytesOf(spec.Domain.Resources.Limits.Memory())
}

// bytesOf leaves fractions of a byte out, as KubeVirt does: 0.1Gi are 107374182 bytes.
func bytesOf(quantity *resource.Quantity) uint64 {
	bytes, whole := quantity.AsInt64()
	if !whole {
		bytes = quantity.Value() - 1
	}
	return uint64(max(bytes, 0))
}

// memorySlots is how many pieces of memory a running guest can be given.
const memorySlots = "16"

// mostMemory is what the running guest can grow to, in bytes; 0 for no more than it has.
func (r *renderer) mostMemory() uint64 {
	memory := r.spec.Domain.Memory
	if memory == nil || memory.MaxGuest == nil || memory.Guest == nil {
		return 0
	}
	if most := bytesOf(memory.MaxGuest); most > r.memory {
		return most
	}
	return 0
}

func (r *renderer) hugepages() *kubevirtv1.Hugepages {
	if r.spec.Domain.Memory == nil {
		return nil
	}
	return r.spec.Domain.Memory.Hugepages
}

// sharedMemory reports whether another process than QEMU uses the guest's memory: virtiofsd, or passt.
func (r *renderer) sharedMemory() bool {
	for i := range r.spec.Domain.Devices.Filesystems {
		if r.spec.Domain.Devices.Filesystems[i].Virtiofs != nil {
			return true
		}
	}
	for i := range r.spec.Domain.Devices.Interfaces {
		if r.spec.Domain.Devices.Interfaces[i].PasstBinding != nil {
			return true
		}
	}
	return false
}

// memories writes how much memory there is and what it is made of. reservedOverhead.memLock needs nothing here: it allows
// QEMU to lock memory, and libvirt raises that limit by itself for every device that does.
func (r *renderer) memories() {
	r.text("memory", decimal(r.memory), "unit", "b")
	if most := r.mostMemory(); most != 0 {
		r.text("maxMemory", decimal(most), "slots", memorySlots, "unit", "b")
	}
	huge, shared := r.hugepages(), r.sharedMemory()
	if huge == nil && !shared {
		return
	}
	mapped := r.mapsNodes()
	r.start("memoryBacking")
	if huge != nil {
		r.hugePages(huge, mapped)
	}
	if mapped && r.realtime() != nil {
		r.leaf("nosharepages")
	}
	r.leaf("source", "type", "memfd")
	if shared {
		r.leaf("access", "mode", "shared")
	}
	if mapped {
		r.leaf("allocation", "mode", "immediate")
	}
	r.end("memoryBacking")
}

// hugePages names the size of the pages: without it libvirt takes the host's default, which may be another.
func (r *renderer) hugePages(huge *kubevirtv1.Hugepages, mapped bool) {
	size := pageSize(huge)
	if size == 0 {
		r.leaf("hugepages")
		return
	}
	r.start("hugepages")
	kib := decimal(size >> 10)
	if !mapped {
		r.leaf("page", "size", kib, "unit", "KiB")
	} else {
		for id := range r.cells() {
			r.leaf("page", "size", kib, "unit", "KiB", "nodeset", decimal(id))
		}
	}
	r.end("hugepages")
}

// pageSize is in bytes, 0 for one that cannot be read.
func pageSize(huge *kubevirtv1.Hugepages) uint64 {
	quantity, err := resource.ParseQuantity(huge.PageSize)
	if err != nil {
		return 0
	}
	return bytesOf(&quantity)
}

// mapsNodes reports whether the guest's NUMA cells are those of the host that its CPUs belong to.
func (r *renderer) mapsNodes() bool {
	placement := r.host.Assignment.CPUs
	cpu := r.spec.Domain.CPU
	return r.dedicatedCPUs() && cpu.NUMA != nil && cpu.NUMA.GuestMappingPassthrough != nil &&
		placement != nil && uint(len(placement.Nodes)) >= r.topology.vcpus()
}

// cell is a NUMA cell of the guest.
type cell struct {
	cpus   string
	memory uint64 // bytes
	// node is the host's, -1 for any.
	node int
}

// cells returns the guest's NUMA cells: those of the host with guestMappingPassthrough; one of everything where libvirt
// wants one, for memory that is shared, on huge pages or to grow; else none.
func (r *renderer) cells() []cell {
	if !r.mapsNodes() {
		if r.hugepages() == nil && !r.sharedMemory() && r.mostMemory() == 0 {
			return nil
		}
		return []cell{{cpus: "0-" + strconv.FormatUint(uint64(r.topology.most()-1), 10), memory: r.memory, node: -1}}
	}
	of := r.host.Assignment.CPUs.Nodes[:r.topology.vcpus()]
	nodes := slices.Compact(slices.Sorted(slices.Values(of)))
	page := uint64(1 << 20)
	if huge := r.hugepages(); huge != nil {
		page = max(pageSize(huge), 1)
	}
	// Whole pages for each cell; the first ones have what is left over.
	pages, count := r.memory/page, uint64(len(nodes))
	out := make([]cell, 0, len(nodes))
	for i, node := range nodes {
		var cpus []string
		for vcpu, its := range of {
			if its == node {
				cpus = append(cpus, strconv.Itoa(vcpu))
			}
		}
		share := pages / count
		if uint64(i) < pages%count {
			share++
		}
		out = append(out, cell{cpus: strings.Join(cpus, ","), memory: share * page, node: node})
	}
	out[0].memory += r.memory % page
	return out
}
