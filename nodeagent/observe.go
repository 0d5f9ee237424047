package nodeagent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// facts are what was read of a domain. Of its definitions only the digests are kept: thousands of them would be most of
// the agent's memory.
type facts struct {
	Name         string // empty for a domain that is missing
	UUID         string
	State        hypervisor.State
	StopReason   hypervisor.StopReason
	config, live [sha256.Size]byte
	// ID tells one run of the guest from the next; empty while it is off.
	ID string
	// refused is what this run of the guest could not be given.
	refused refusal
}

func factsOf(domain hypervisor.Domain) facts {
	return facts{
		Name: domain.Name, UUID: domain.UUID, State: domain.State, StopReason: domain.StopReason,
		config: sha256.Sum256([]byte(domain.Config)), live: sha256.Sum256([]byte(domain.Live)), ID: runID(domain.Live),
	}
}

// runID returns the id in the root element of a running domain's XML, which libvirt gives to each run.
func runID(live string) string {
	root, _, _ := strings.Cut(live, ">")
	_, id, found := strings.Cut(root, " id='")
	if !found {
		return ""
	}
	id, _, _ = strings.Cut(id, "'")
	return id
}

// seen is one domain as it was read last, with what was concluded from it.
type seen struct {
	domain facts
	// record is nil for the domains of others; running is the record of the running guest.
	record  *domainxml.Record
	running *domainxml.Record
	problem string
	// conclusions are what was found by reading the XML itself.
	conclusions
	// message is what watchers get: a *api.Domain or a *api.Foreign.
	message proto.Message
}

// observe concludes from a domain what watchers are told. before is what was seen last time and may be nil; what did
// not change is taken over from it.
func (a *Agent) observe(domain hypervisor.Domain, before *seen) *seen {
	read := factsOf(domain)
	read.refused = a.refusals.of(domain.Name, read.ID)
	if before != nil && before.domain == read {
		return before
	}
	now := &seen{domain: read}
	definition := domain.Config
	if definition == "" {
		definition = domain.Live
	}
	record, err := domainxml.ParseRecord(definition)
	switch {
	case errors.Is(err, domainxml.ErrForeign):
		now.message = foreignMessage(domain, definition)
		return now
	case err != nil:
		// What its guest has of the host is not for others, whatever became of the definition.
		if running, err := domainxml.ParseRecord(domain.Live); err == nil {
			now.running = running
		}
		return a.damaged(now, err)
	case !record.IsFor(domain.Name, domain.UUID):
		// A copy or a domain that was renamed by hand (virt-clone, domrename) carries the record of another one: nobody touches it.
		now.message = foreignMessage(domain, definition)
		return now
	}
	now.record = record
	var started *domainxml.Record
	if domain.Live != "" {
		started, err = domainxml.ParseRecord(domain.Live)
		if errors.Is(err, domainxml.ErrForeign) {
			started, err = record, nil // somebody took it out; what the guest has is compared with what is defined
		}
		now.running = cmp.Or(started, record)
	}
	now.conclusions = a.conclude(record, started, domain, read, before)
	now.problem = now.failure
	if err != nil {
		now.problem = "what the running guest was started from cannot be read (" + err.Error() + "); shut the guest down, and it starts from its definition"
	}
	message := &api.Domain{
		Address: record.Address.String(), Name: domain.Name, Uuid: domain.UUID, Fleet: record.Fleet,
		Revision: record.Revision, Source: record.Source, State: stateName(domain.State), Stop: stopReason(domain, record),
		Ran: record.Ran, Transient: domain.Config == "", Hash: record.Hash, Record: record.Spec,
		Fingerprint: fingerprint(now, domain.Config), Former: formerNames(record), RetiredSinceUnix: record.Retired,
	}
	if now.running != nil {
		message.RunningHash = now.running.Hash
		if now.running.Hash != record.Hash {
			message.RunningRecord, message.PendingSinceUnix = now.running.Spec, record.Pending
		}
	}
	if before != nil && domain.State.Active() {
		if old, ok := before.message.(*api.Domain); ok {
			message.Addresses = old.GetAddresses()
		}
	}
	for _, volume := range record.Volumes {
		if volume.Name == domainxml.KernelBootVolume {
			continue
		}
		message.Disks = append(message.Disks, &api.Disk{
			Volume: volume.Name, Kind: volume.Kind, Path: volume.Path, CapacityBytes: volume.Capacity, Keep: keeps(volume.Kind),
		})
	}
	message.Drift, message.RunningDrift, message.Unread = now.changes, now.conclusions.running, now.unread()
	message.Problem = now.problem
	if read.refused.hash != "" {
		message.LiveRefused = &api.LiveRefusal{Hash: read.refused.hash, Reason: read.refused.reason}
	}
	if headroom := now.headroom; headroom != nil {
		message.Headroom = headroom
	}
	now.message = message
	return now
}

// damaged reports a domain that carries gitvirt's mark but cannot be understood: it is told by its name, and nobody
// touches it.
func (a *Agent) damaged(now *seen, err error) *seen {
	now.problem = err.Error()
	namespace, name, ok := strings.Cut(now.domain.Name, "_")
	if !ok {
		namespace, name = schemas.DefaultNamespace, now.domain.Name
	}
	address := schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: namespace, Name: name}
	now.message = &api.Domain{
		Address: address.String(), Name: now.domain.Name, Uuid: now.domain.UUID, State: stateName(now.domain.State),
		Problem: now.problem, Fingerprint: hex.EncodeToString(now.domain.config[:]),
	}
	return now
}

// missing tells of a domain that was applied here and is gone without gitvirt having removed it.
func missing(record *domainxml.Record) *seen {
	now := &seen{record: record}
	message := &api.Domain{
		Address: record.Address.String(), Name: record.DomainName(), Fleet: record.Fleet,
		Revision: record.Revision, Source: record.Source, State: stateMissing, Hash: record.Hash, Record: record.Spec,
		Fingerprint: "missing " + record.Hash + " " + record.Revision, Former: formerNames(record),
	}
	if record.Replacing {
		message.Stop = stopReplaced
	}
	for _, volume := range record.Volumes {
		if keeps(volume.Kind) {
			message.Disks = append(message.Disks, &api.Disk{
				Volume: volume.Name, Kind: volume.Kind, Path: volume.Path, CapacityBytes: volume.Capacity, Keep: true,
			})
		}
	}
	now.message = message
	return now
}

func formerNames(record *domainxml.Record) (names []string) {
	for _, address := range record.Former {
		names = append(names, address.String())
	}
	return names
}

// fingerprint changes with everything that a plan depends on: the definition, what was applied, the power state, and
// what the running guest was started with and how it differs from that. Of the record only what gitvirt applied counts, not what it noted since.
//
// Approvals are bound to it, and are for once: a machine that became the same again, by another commit or in another run
// of its guest, is not the one that was looked at.
func fingerprint(now *seen, config string) string {
	h := sha256.New()
	running, applied := "", ""
	if now.running != nil {
		running = now.running.Hash
	}
	if now.record != nil {
		applied = now.record.Hash + now.record.Fleet + "\x00" + now.record.Revision
	}
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00", now.domain.UUID, stateName(now.domain.State), running, applied)
	before, metadata, _ := strings.Cut(config, "<metadata>")
	_, after, _ := strings.Cut(metadata, "</metadata>")
	fmt.Fprintf(h, "%s\x00%s\x00%s", before, after, now.domain.refused.hash)
	for _, change := range now.conclusions.running {
		fmt.Fprintf(h, "\x00%s\x00%s\x00%s", change.GetPath(), change.GetBefore(), change.GetAfter())
	}
	if pending := now.running != nil && now.record != nil && now.running.Hash != now.record.Hash; pending || len(now.conclusions.running) > 0 {
		fmt.Fprintf(h, "\x00run %s", now.domain.ID)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// nobody is the address of a domain that is described and not adopted.
var nobody = schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: schemas.DefaultNamespace, Name: "domain"} //nolint:gochecknoglobals // a constant

// foreignMessage tells of a domain of others what an adoption of it would need to know.
func foreignMessage(domain hypervisor.Domain, definition string) *api.Foreign {
	out := &api.Foreign{Name: domain.Name, Uuid: domain.UUID, Macs: domainxml.MACs(definition), State: stateName(domain.State)}
	out.Fingerprint = fingerprint(&seen{domain: factsOf(domain)}, domain.Config)
	manifest, err := describe(nobody, domain)
	var vm *schemas.VM
	if err == nil {
		vm, _, err = manifest.VM()
	}
	if err == nil {
		out.Record = vm.Record
		out.Unexpressed, err = manifest.Unexpressed(vm)
	}
	if err != nil {
		out.Problem = err.Error()
	}
	return out
}

// The states of a domain in the API's words, package plan's.
const (
	stateRunning = "running"
	statePaused  = "paused"
	stateStopped = "stopped"
	stateMissing = "missing"
)

// stopReplaced is why a domain is missing that gitvirt was making anew, in package plan's word.
const stopReplaced = "replaced"

func stateName(state hypervisor.State) string {
	switch state {
	case hypervisor.StateRunning, hypervisor.StateShutdown, hypervisor.StateStarting:
		return stateRunning
	case hypervisor.StatePaused, hypervisor.StatePMSuspended:
		return statePaused
	case hypervisor.StateShutoff, hypervisor.StateCrashed:
	}
	return stateStopped
}

// stopReason prefers what libvirt knows now; after its daemon restarted, what the record kept. A guest that the agent
// switched off because its liveness probe failed has crashed, as the record says.
func stopReason(domain hypervisor.Domain, record *domainxml.Record) string {
	switch {
	case domain.State.Active():
		return ""
	case killed(domain.StopReason, record):
		return record.Stop
	case domain.StopReason != hypervisor.StopUnknown:
		return string(domain.StopReason)
	}
	return record.Stop
}

// keeps reports whether the data of a kind of volume outlives the VM.
func keeps(kind string) bool {
	switch kind {
	case "emptyDisk", "hostDisk", "persistentVolumeClaim", "dataVolume":
		return true
	}
	return false
}
