package hypervisor

import (
	"errors"
	"io"
	"time"
)

// Errors of OpenConsole.
var (
	// ErrNoConsole: the guest has no serial console that can be opened.
	ErrNoConsole = errors.New("the guest has no serial console")
	// ErrConsoleBusy: somebody else has the console.
	ErrConsoleBusy = errors.New("somebody else has the console")
)

// Console is an open serial console. Read returns what the guest says from now on, and io.EOF when it is off or the console was taken by
// somebody else. Write types. One goroutine may read while another writes, and any may close it, which ends both.
type Console interface{ io.ReadWriteCloser }

// Statistics are what a running guest has used since it was started, and what it has now.
type Statistics struct {
	VCPUs uint
	// CPU is what QEMU has used, devices included; User and System are parts of it.
	CPU, User, System time.Duration
	// Memory is what the guest has, Resident what QEMU has of the host's memory; in KiB.
	MemoryKiB, ResidentKiB uint64
	// GuestTotal and GuestUsable are what the guest's kernel says about its memory, in KiB; nil when it says nothing.
	GuestTotalKiB, GuestUsableKiB *uint64
	Disks                         []DiskStatistics
	Interfaces                    []InterfaceStatistics
}

// DiskStatistics are those of a disk by its target, "vda". Sizes are in bytes.
type DiskStatistics struct {
	Target                        string
	ReadRequests, ReadBytes       uint64
	WriteRequests, WriteBytes     uint64
	CapacityBytes, AllocatedBytes uint64
}

// InterfaceStatistics are those of an interface by the host's device, as the guest sees them. Dropped counts what was dropped or wrong in
// either direction.
type InterfaceStatistics struct {
	Device                         string
	ReceivedBytes, ReceivedPackets uint64
	SentBytes, SentPackets         uint64
	Dropped                        uint64
}
