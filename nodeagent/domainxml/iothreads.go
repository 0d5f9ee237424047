package domainxml

import (
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// ioThreads are the threads of QEMU that serve disks.
type ioThreads struct {
	// count is how many there are: first those that disks share, then those of one disk each.
	count, shared uint
	// policy says that the manifest names one, so that SCSI disks have a share in them too.
	policy bool

	nextShared, nextOwn uint
}

// ioThreadsOf follows KubeVirt (pkg/virt-launcher/virtwrap/converter/iothreads): without a policy, and with "shared", one
// thread for all disks but those with dedicatedIOThread; with "auto" as many as disks, at most two for each CPU.
func ioThreadsOf(spec *kubevirtv1.VirtualMachineInstanceSpec) ioThreads {
	policy := spec.Domain.IOThreadsPolicy
	var own, others uint
	for i := range spec.Domain.Devices.Disks {
		if isTrue(spec.Domain.Devices.Disks[i].DedicatedIOThread) {
			own++
		} else {
			others++
		}
	}
	if policy == nil && own == 0 {
		return ioThreads{}
	}
	limit := uint(1)
	if policy != nil {
		switch *policy {
		case kubevirtv1.IOThreadsPolicySupplementalPool:
			count := uint(1)
			if threads := spec.Domain.IOThreads; threads != nil && threads.SupplementalPoolThreadCount != nil {
				count = uint(*threads.SupplementalPoolThreadCount)
			}
			// Every disk could use all of these threads. libvirt can say that from version 10 on only, so they are dealt out.
			return ioThreads{count: count, shared: count, policy: true, nextShared: 1}
		case kubevirtv1.IOThreadsPolicyAuto:
			limit = autoThreads(spec)
		}
	}
	shared := others
	if own+others > limit {
		shared = 1
		if limit > own {
			shared = limit - own
		}
	}
	return ioThreads{count: shared + own, shared: shared, policy: policy != nil, nextShared: 1, nextOwn: shared + 1}
}

func autoThreads(spec *kubevirtv1.VirtualMachineInstanceSpec) uint {
	if cpu := spec.Domain.CPU; cpu != nil && cpu.DedicatedCPUPlacement && cpu.IsolateEmulatorThread {
		return 1 // it runs where the emulator does
	}
	cpus := int64(1)
	resources := spec.Domain.Resources
	if request := resources.Requests.Cpu(); !request.IsZero() {
		cpus = request.Value()
	} else if limit := resources.Limits.Cpu(); !limit.IsZero() {
		cpus = limit.Value()
	}
	return 2 * uint(min(max(cpus, 1), maxThreads))
}

// next returns the thread of the next virtio disk; 0 for none.
func (t *ioThreads) next(dedicated bool) uint {
	switch {
	case t.count == 0:
		return 0
	case dedicated && t.nextOwn != 0:
		t.nextOwn++
		return t.nextOwn - 1
	case t.shared == 0: // only disks with a thread of their own, and this one is not among them
		return 1
	}
	thread := t.nextShared
	t.nextShared = thread%t.shared + 1
	return thread
}
