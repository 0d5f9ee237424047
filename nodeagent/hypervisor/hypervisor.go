// Package hypervisor says what the node agent needs of the thing that runs domains. It holds no implementation:
// package libvirt drives a real libvirt (the one place with cgo), package fake keeps domains in memory, and package
// conformance is the suite that both pass.
package hypervisor

import (
	"context"
	"errors"
)

// State is what a domain does, in libvirt's words.
type State string

// The states of a domain.
const (
	StateRunning     State = "running"
	StatePaused      State = "paused"
	StateShutdown    State = "in shutdown"
	StateShutoff     State = "shut off"
	StateCrashed     State = "crashed"
	StatePMSuspended State = "pmsuspended"
	// StateStarting is libvirt's "paused (starting up)": QEMU is there, its CPUs do not run yet. It is a state of
	// its own so that a start in progress is not mistaken for a guest that somebody paused.
	StateStarting State = "starting"
)

// Active reports whether a guest exists: QEMU runs, even if its CPUs do not. A crashed domain counts: libvirt shows
// that state only while <on_crash>preserve</on_crash> keeps QEMU for a post-mortem, and it must be powered off before it
// can start again. A domain whose QEMU died is StateShutoff with StopCrashed.
func (s State) Active() bool { return s != StateShutoff }

// StopReason says why a domain is off.
type StopReason string

// The reasons for a domain to be off. StopUnknown covers a domain that was never started and one whose stop
// libvirt did not see, such as a reboot of the host. libvirtd keeps reasons in its memory only: when it restarts, every
// domain that was off already becomes StopUnknown, whatever stopped it; and one that is stopped in the moment in which
// libvirtd comes back may be StopCrashed although somebody powered it off, without an event.
const (
	StopUnknown   StopReason = ""
	StopShutdown  StopReason = "shutdown"  // the guest powered itself off
	StopDestroyed StopReason = "destroyed" // somebody pulled the plug
	StopCrashed   StopReason = "crashed"   // QEMU or the guest died, also while libvirtd was away
	StopFailed    StopReason = "failed"    // it could not start
	StopSaved     StopReason = "saved"     // its memory was saved (virsh managedsave); the next start resumes it
	StopMigrated  StopReason = "migrated"  // it runs on another host now
)

// Domain is one domain as the hypervisor has it.
type Domain struct {
	Name       string
	UUID       string // canonical lower-case text form
	State      State
	StopReason StopReason
	// Config is the XML of the persistent definition, the one that the next boot uses; empty for a transient domain.
	// Secrets (graphics passwords) are not in it.
	Config string
	// Live is the XML of the running guest; empty when the domain is off.
	Live string
}

// Power is a change of a domain's power.
type Power string

// The changes of power.
const (
	PowerOn       Power = "on"       // start it
	PowerOnPaused Power = "paused"   // start it with its CPUs stopped, until somebody resumes it
	PowerShutdown Power = "shutdown" // ask the guest to power off (ACPI); returns at once
	PowerOff      Power = "off"      // pull the plug
	PowerResume   Power = "resume"   // let the CPUs of a paused guest run again
)

// EventKind says what happened to a domain.
type EventKind string

// The kinds of events.
const (
	EventDefined      EventKind = "defined"
	EventUndefined    EventKind = "undefined"
	EventStarted      EventKind = "started"
	EventStopped      EventKind = "stopped"
	EventChanged      EventKind = "changed"      // anything else about one domain: paused, resumed, device, metadata
	EventConnected    EventKind = "connected"    // the connection is (again) there; Name is empty
	EventDisconnected EventKind = "disconnected" // the connection is gone; nothing is known until EventConnected
)

// Event is a hint to look again; it carries no state, and any may be lost. Not every change makes one: libvirt says nothing
// about `virsh setvcpus --config`, `setmem --config`, `attach-device --config` or `autostart`. Only a periodic look at
// the domains finds those.
type Event struct {
	Kind EventKind
	Name string
	// Stop tells why, for EventStopped. libvirt's events do not tell a guest whose QEMU died from one that failed to
	// start: both are StopCrashed here, and only Domain has the exact reason.
	Stop StopReason
}

// Errors that callers decide on with errors.Is.
var (
	// ErrNotFound: there is no such domain.
	ErrNotFound = errors.New("no such domain")
	// ErrUnavailable: the hypervisor does not answer; nothing is known about any domain.
	ErrUnavailable = errors.New("hypervisor unavailable")
	// ErrInvalid: the hypervisor refuses the definition; trying again changes nothing.
	ErrInvalid = errors.New("definition refused")
	// ErrConflict: the name or UUID belongs to another domain.
	ErrConflict = errors.New("another domain has this name or UUID")
	// ErrRefused: the hypervisor or the guest refuses to be changed while it runs; a restart would do it.
	ErrRefused = errors.New("the running guest cannot be changed")
	// ErrNotRunning: the domain is off, so there is no guest to change; the next start uses the persistent definition.
	ErrNotRunning = errors.New("the domain is not running")
	// ErrNoAgent: no guest agent answers: the guest is off or paused, still boots, has none, or the agent hangs.
	ErrNoAgent = errors.New("no guest agent answers")
)

// Hypervisor runs domains. All methods are safe for concurrent use, end when ctx does, and wrap the errors above. A
// method that ended because of ctx may still take effect: whatever it had asked the hypervisor for goes on.
type Hypervisor interface {
	// Names returns the names of all domains, those of others included, ordered. A partial answer is an error.
	Names(ctx context.Context) ([]string, error)
	// Domain returns one domain, or ErrNotFound.
	Domain(ctx context.Context, name string) (Domain, error)
	// Define makes or replaces the persistent definition, validated against libvirt's schema. A running guest is
	// not touched. Defining another UUID, or none, under a name that exists is ErrConflict, and so is an existing UUID
	// under another name. Screens whose passwords the definition does not say keep those that they have: Domain tells none, and
	// without one a screen is open to everybody.
	Define(ctx context.Context, xml string) error
	// HasPasswords reports whether a screen of the persistent definition has a password, or of the running guest's where there is no
	// such definition. An absent domain has none.
	HasPasswords(ctx context.Context, name string) (bool, error)
	// Replace is Undefine, where there is a domain of this name, and Define in one: the new definition may have another UUID, and
	// its screens keep the passwords as with Define. They are read first; nothing is undefined when that fails. When the new
	// definition is refused the old one is put back. Only a caller, or a hypervisor, that is killed in between leaves neither. An
	// active domain can keep its UUID only: anything else is ErrConflict, and changes nothing.
	Replace(ctx context.Context, xml string) error
	// SetPower changes the power of a domain. What is on already is not started twice, what is off is not stopped
	// twice and what is not paused is not resumed: all succeed. To start a definition that this host cannot run is
	// ErrInvalid. To resume what is off is an error.
	SetPower(ctx context.Context, name string, power Power) error
	// SetMetadata replaces gitvirt's metadata element (namespace URI, prefix and XML) in the persistent definition
	// and, when the domain is active, in the running one. An empty xml removes it. Elements of xml that have no
	// namespace get this one, with the prefix.
	SetMetadata(ctx context.Context, name, prefix, uri, xml string) error
	// Validate checks a definition as Define does, against libvirt's schema and its drivers, and leaves no trace: no domain, no
	// event, no file, also when the caller is killed in the middle. What Define would refuse is ErrInvalid or ErrConflict.
	// Like Define it does not look at what only a start needs, such as files and networks.
	Validate(ctx context.Context, xml string) error
	// AttachDevice gives a running guest a device, named by its element of domain XML. Like all of the following it never
	// touches the persistent definition. It is ErrRefused when this guest cannot be changed so while it runs, with the
	// hypervisor's reason, ErrNotRunning when the domain is off, ErrInvalid when the element is not XML or means nothing. What
	// has no kind may work another time, such as when another change of the domain takes long. When it returns, the
	// hardware is there; the guest's drivers may need another moment.
	AttachDevice(ctx context.Context, name, device string) error
	// DetachDevice takes a device from a running guest and returns when the guest has let go of it. The device is the disk with
	// the same target, the interface with the same MAC address, or otherwise what has the same alias; the rest of the element
	// does not matter then. An element with none of these must match the device as libvirt compares it. A guest that does
	// not let go until the deadline of ctx, or for 30 s, is ErrRefused: it may still do so later. A device that is not there is no
	// error.
	DetachDevice(ctx context.Context, name, device string) error
	// UpdateDevice changes a device of a running guest in place: the medium of a CD-ROM (no source ejects it), the link of an
	// interface, the requested size of a virtio-mem device. The element is that of the running guest (Domain.Live) with the
	// change in it: libvirt refuses when anything else differs. What is not there, or a tray that the guest has locked, is
	// ErrRefused.
	UpdateDevice(ctx context.Context, name, device string) error
	// SetVCPUs gives a running guest vCPUs, at most those it was started for, or takes some away, which most guests and machines do
	// not allow: ErrRefused. A guest that was asked to give one back may still do so later.
	SetVCPUs(ctx context.Context, name string, count uint) error
	// SetMemory sets the target of a running guest's balloon, in KiB, at most all memory that it has (<memory> in its live XML). The
	// guest follows when it can. QEMU's balloon knows nothing of virtio-mem: the target is without what such devices give,
	// while <currentMemory> in the live XML is with it. At a start libvirt makes <currentMemory> of the definition the target,
	// so a definition with both must not count virtio-mem there, or its balloon is empty.
	SetMemory(ctx context.Context, name string, kib uint64) error
	// ResizeDisk lets the disk of a target ("vda") of a running guest grow to a size in bytes; the image grows with it, and
	// stays so. It never shrinks: that is ErrRefused. What has the size already is left alone.
	ResizeDisk(ctx context.Context, name, target string, bytes uint64) error
	// LiveChanges returns what can be done for running guests at all, for domains of a type ("kvm", "qemu"). What is missing is
	// ErrRefused in every guest; what is there may still be, in a guest that was not made for it.
	LiveChanges(ctx context.Context, domainType string) ([]LiveChange, error)
	// Undefine removes the persistent definition with its managed save; an absent domain is no error. Disks, the file of its
	// UEFI variables and the state of a TPM that is persistent are not touched. An active domain becomes transient.
	Undefine(ctx context.Context, name string) error
	// Addresses returns the IP addresses of a running guest that are known without waiting (DHCP leases, guest
	// agent), without loopback and link-local ones, sorted.
	Addresses(ctx context.Context, name string) ([]string, error)
	// GuestAgent sends one command of the QEMU guest agent's protocol, JSON, to the agent of a running guest and returns
	// its reply. It waits for at most the deadline of ctx, or 5 s, and is ErrNoAgent when nobody answers, ErrUnavailable when
	// the agent could not be asked in that time. A command that the agent refuses is another error. Commands and replies may
	// hold secrets: errors quote neither.
	GuestAgent(ctx context.Context, name, command string) (reply string, err error)
	// Monitor gives one command to the human monitor of a running guest's QEMU and returns what it prints, which for a
	// command that failed is why. To ask a domain that is off is an error. libvirt notes in its log, once for each
	// run of a guest, that somebody did so ("tainted: custom-monitor"), because it does not follow what such a command
	// changes: only what libvirt has no notion of is safe.
	Monitor(ctx context.Context, name, command string) (output string, err error)
	// OpenConsole opens the serial console of a running guest, which one at a time has: ErrConsoleBusy, unless force takes it from who has it.
	// It is ErrNotRunning when the domain is off and ErrNoConsole when there is none. ctx is for opening only. The guest notices nothing when
	// the console is closed, or when whoever has it dies.
	OpenConsole(ctx context.Context, name string, force bool) (Console, error)
	// Statistics returns what a running guest uses, or ErrNotRunning.
	Statistics(ctx context.Context, name string) (Statistics, error)
	// Events calls handle for each event until ctx ends; the first call is EventConnected when the hypervisor is
	// there. It reconnects by itself and returns only when ctx has ended (or the implementation was closed). handle is
	// called from one goroutine, in order, and may call the Hypervisor. A handle that is too slow to follow gets
	// one more EventConnected in place of what it missed: look at everything again.
	Events(ctx context.Context, handle func(Event))
}
