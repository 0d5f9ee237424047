package plan

import (
	"cmp"
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// judge gives changes of one machine their consequences. It knows what the host can do for running guests, what this one
// was started with, and both sides of the changes with their defaults.
type judge struct {
	live LiveSet
	room *Headroom
	// off says that the guest does not run.
	off bool
	// refused is why the host could not make these very changes in this run of the guest; empty when it did not try.
	refused       string
	before, after *machine

	// slots is how many PCI slots the devices that are plugged in take so far.
	slots uint32
	// plugged remembers what was found about the devices that come and go.
	plugged []plugged
}

// plugged is what was found about a device.
type plugged struct {
	list, name string
	found      verdict
}

// machine is a record with its defaults filled in.
type machine struct {
	spec   *kubevirtv1.VirtualMachineInstanceSpec
	claims map[string]schemas.Claim
}

// verdict is what a condition found: which of its row's needs a change has, or why the row's consequence does not hold.
type verdict struct {
	need LiveChange
	// fails says that the row's consequence does not hold, reason why; empty where the row says it already.
	fails  bool
	reason string
	// note is worth saying although the consequence holds.
	note string
	// loses says that data goes with the change.
	loses bool
	// nothing says that the host does nothing about the change.
	nothing bool
}

func no(format string, args ...any) verdict {
	return verdict{fails: true, reason: fmt.Sprintf(format, args...)}
}

// asTheRowSays is a change that the row's condition does not name.
var asTheRowSays = verdict{fails: true}

// consequences fills in the consequences of changes and, where they are worse than their row's, why.
func (j *judge) consequences(changes []Change) {
	live, nextBoot := false, false
	for i := range changes {
		row := j.one(&changes[i])
		live = live || changes[i].plugsBy(row)
		nextBoot = nextBoot || changes[i].Consequence == ConsequenceNextBoot
	}
	if j.off {
		return
	}
	if j.refused != "" {
		refuse(changes, j.refused)
		return
	}
	if live && nextBoot {
		// A guest that was changed live has the whole record; one field of it cannot wait.
		for i := range changes {
			if changes[i].Consequence == ConsequenceNextBoot {
				changes[i].worsen(ConsequenceRestart, "alone it would wait for the next boot; together with what is changed live it cannot")
			}
		}
	}
}

// one judges a single change, and returns the row that it judged by.
func (j *judge) one(change *Change) *Row {
	row := rowOf(change.Path)
	change.Consequence = row.Consequence
	if j.off {
		if row.Consequence != ConsequenceReplace && (row.Consequence != ConsequenceNone || row.holds != nil) {
			change.Consequence = ConsequenceNextBoot
		}
		return row
	}
	found := verdict{}
	if row.holds != nil {
		found = row.holds(j, change)
	} else if len(row.Needs) > 0 {
		found.need = row.Needs[0]
	}
	switch {
	case found.loses:
		change.worsen(ConsequenceData, found.reason)
	case found.nothing:
		change.worsen(ConsequenceNone, found.reason)
	case found.fails:
		change.worsen(row.Worst(), cmp.Or(found.reason, row.About))
	case found.need != "" && !j.live.Has(found.need):
		change.worsen(row.Worst(), "this host cannot "+liveWords[found.need])
	default:
		change.Note = found.note
	}
	return row
}

// plugs reports whether the running guest is changed: a live change that does not arrive by itself.
func (c *Change) plugs() bool { return c.plugsBy(rowOf(c.Path)) }

func (c *Change) plugsBy(row *Row) bool {
	return c.Consequence == ConsequenceLive && len(row.Needs) > 0 && !isCredential(c.Path)
}

// isCredential reports whether a path is the content of an access credential, which the host brings into the guest by itself.
func isCredential(path string) bool { return strings.HasPrefix(path, "secrets[accessCredentials/") }

// liveWords say what a host does, after "this host cannot".
var liveWords = map[LiveChange]string{
	LiveCPU:       "plug CPUs into a running guest",
	LiveMemory:    "plug memory into a running guest",
	LiveBalloon:   "change the memory of a running guest with its balloon",
	LiveDisk:      "plug disks into a running guest",
	LiveDiskGrow:  "let a disk of a running guest grow",
	LiveMedia:     "exchange the medium of a CD-ROM of a running guest",
	LiveInterface: "plug interfaces into a running guest",
	LiveLink:      "change the link of an interface of a running guest",
}

// refuse makes a restart of what the host was asked to change live and did not. Where nothing shows that could be to blame,
// everything is.
func refuse(changes []Change, reason string) {
	for _, blame := range []func(*Change) bool{
		(*Change).plugs,
		func(c *Change) bool { return c.Consequence != ConsequenceNone },
		func(*Change) bool { return true },
	} {
		found := false
		for i := range changes {
			if change := &changes[i]; severity[change.Consequence] >= severity[ConsequenceRestart] {
				found = true
			} else if blame(change) {
				change.worsen(ConsequenceRestart, "the host could not do it live: "+reason)
				found = true
			}
		}
		if found {
			return
		}
	}
}

// worsen gives a change another consequence than its row has, and says why.
func (c *Change) worsen(to Consequence, note string) { c.Consequence, c.Note = to, note }

// The lists of a machine's spec.
const (
	pathSpec       = "spec.template.spec."
	pathDisks      = pathSpec + "domain.devices.disks"
	pathInterfaces = pathSpec + "domain.devices.interfaces"
	pathNetworks   = pathSpec + "networks"
	pathVolumes    = pathSpec + "volumes"
	pathClaims     = "claims"
)

// elementOf returns the name of the element of a list that a path is about, and whether it is about the whole element.
func elementOf(path, list string) (name string, whole bool) {
	rest, ok := strings.CutPrefix(path, list)
	if !ok || rest == "" || rest[0] != '[' {
		return "", false
	}
	name, below, _ := strings.Cut(rest[1:], "]")
	return name, below == ""
}

// throughGuestAgent holds for access credentials that arrive while the guest runs.
func throughGuestAgent(j *judge, _ *Change) verdict {
	if agentOnly(j.before.spec) && agentOnly(j.after.spec) {
		return verdict{}
	}
	return no("cloud-init reads it when the guest boots")
}

// agentOnly reports whether no access credential of a machine goes another way than through the guest agent.
func agentOnly(spec *kubevirtv1.VirtualMachineInstanceSpec) bool {
	for _, credential := range spec.AccessCredentials {
		if key := credential.SSHPublicKey; key != nil && key.PropagationMethod.QemuGuestAgent == nil {
			return false
		}
		if password := credential.UserPassword; password != nil && password.PropagationMethod.QemuGuestAgent == nil {
			return false
		}
	}
	return true
}

func secretContent(j *judge, change *Change) verdict {
	if isCredential(change.Path) {
		return throughGuestAgent(j, change)
	}
	return mediumContent(j, change)
}

// resourcesSizeNothing holds where requests and limits have no part in the domain but through what they set.
func resourcesSizeNothing(j *judge, _ *Change) verdict {
	for _, side := range []*machine{j.before, j.after} {
		if policy := side.spec.Domain.IOThreadsPolicy; policy != nil && *policy == kubevirtv1.IOThreadsPolicyAuto {
			return no("with ioThreadsPolicy auto the CPU request decides about threads for I/O")
		}
	}
	return verdict{}
}

// moreSockets holds while the guest has room for the vCPUs.
func moreSockets(j *judge, _ *Change) verdict {
	before, after := j.before.spec, j.after.spec
	devices := &after.Domain.Devices
	vcpus, _ := domainxml.Size(after)
	switch {
	case after.Domain.CPU == nil || before.Domain.CPU == nil || after.Domain.CPU.Sockets < before.Domain.CPU.Sockets:
		return no("CPUs are taken out of a guest only while it is off")
	case after.Domain.CPU.DedicatedCPUPlacement:
		return no("dedicated CPUs are placed when the guest is started")
	case on(devices.BlockMultiQueue) || on(devices.NetworkInterfaceMultiQueue):
		return no("there is a queue for every CPU, and queues are laid out when the guest is started")
	case after.Domain.IOThreadsPolicy != nil:
		return no("queues and threads for I/O follow the CPUs, and they are laid out when the guest is started")
	case j.room == nil:
		return no("nobody knows how many CPUs the guest was started for")
	case uint(j.room.MaxVCPUs) < vcpus:
		if j.before.spec.Domain.CPU.MaxSockets == 0 {
			return no("the guest was started without cpu.maxSockets to grow to")
		}
		return no("the guest was started for %d CPUs at most", j.room.MaxVCPUs)
	}
	return verdict{need: LiveCPU}
}

func on(value *bool) bool { return value != nil && *value }

// memoryPiece is the size of the pieces in which memory is plugged in, in bytes.
const memoryPiece = 2 << 20

// memoryInReach holds for what the balloon or plugged memory can make of the guest.
func memoryInReach(j *judge, _ *Change) verdict {
	_, before := domainxml.Size(j.before.spec)
	_, after := domainxml.Size(j.after.spec)
	if j.room == nil {
		return no("nobody knows how much memory the guest was started for")
	}
	started := cmp.Or(j.room.BalloonBytes, uint64(before)) // without a balloon there was nothing that could have changed it
	memory := j.after.spec.Domain.Memory
	switch {
	case uint64(after) <= j.room.BalloonBytes:
		return verdict{need: LiveBalloon}
	case after < before:
		return no("the guest has no balloon that could give memory back")
	case j.room.MaxMemoryBytes == 0:
		return no("the guest was started without memory.maxGuest to grow to")
	case uint64(after) > j.room.MaxMemoryBytes:
		return no("the guest was started to grow to %s at most", sizeWords(j.room.MaxMemoryBytes))
	case uint64(after) < started || (uint64(after)-started)%memoryPiece != 0:
		return no("memory is plugged in pieces of 2Mi, and the guest was started with %s", sizeWords(started))
	case memory != nil && memory.Hugepages != nil:
		return no("memory on huge pages is only added when the guest is started")
	case j.after.spec.Architecture != "amd64":
		return no("memory is plugged into guests of amd64 only")
	}
	if found := j.slot(); found.fails {
		return found
	}
	return verdict{need: LiveMemory}
}
