package hypervisor

import "time"

// Usage is what a running guest has and has used.
type Usage struct {
	VCPUs     uint
	MemoryKiB uint64
	// CPUTime is what its vCPUs have used since it was started.
	CPUTime time.Duration
	// Hypervisor is what runs it, with its version: "qemu-7.2.22".
	Hypervisor string
}
