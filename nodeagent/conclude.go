package nodeagent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// conclusions are what is found by reading a domain's XML. It costs far more than all else that is done about a domain,
// and so is done anew only for what changed.
type conclusions struct {
	// definition is a digest of the persistent definition, but for its metadata, and of all that it is compared with.
	definition [sha256.Size]byte
	changes    []*api.Change
	// running is how the running guest differs from what its own record tells of.
	running []*api.Change
	failure string
	// unreadConfig and unreadLive are the paths of what is unknown in the definition and in the running guest's XML.
	unreadConfig, unreadLive []string
	// headroom is what the running guest can be changed to; nil when it is off.
	headroom *api.Headroom
}

func (c *conclusions) unread() []string {
	all := slices.Concat(c.unreadConfig, c.unreadLive)
	slices.Sort(all)
	return slices.Compact(all)
}

// conclude reads a domain's XML, as far as it changed since before, which may be nil. started is the record in the running
// guest's XML, nil without one.
func (a *Agent) conclude(record, started *domainxml.Record, domain hypervisor.Domain, read facts, before *seen) conclusions {
	now := conclusions{definition: definitionDigest(record, domain.Config)}
	switch {
	case domain.Config == "":
	case before != nil && before.definition == now.definition:
		now.changes, now.failure, now.unreadConfig = before.changes, before.failure, before.unreadConfig
	default:
		var err error
		now.changes, now.unreadConfig, err = a.inspect(record, domain.Config, (*domainxml.Reader).Inspect)
		if err != nil {
			now.failure = err.Error()
		}
	}
	switch {
	case domain.Live == "":
	case before != nil && before.domain.live == read.live:
		now.running, now.unreadLive, now.headroom = before.conclusions.running, before.unreadLive, before.headroom
	case started == nil:
		now.unreadLive, now.headroom = a.reader.Unread(domain.Live), headroomOf(domain.Live)
	default:
		// A guest that cannot be compared has no difference that could be undone; that it was not compared is told.
		var err error
		now.running, now.unreadLive, err = a.inspect(started, domain.Live, (*domainxml.Reader).InspectRunning)
		now.running = foreignTo(started, now.running)
		if err != nil && len(now.unreadLive) == 0 {
			now.unreadLive = []string{"running guest: " + err.Error()}
		}
		now.headroom = headroomOf(domain.Live)
	}
	return now
}

// headroomOf is nil for a guest whose XML cannot be read.
func headroomOf(live string) *api.Headroom {
	found, err := domainxml.HeadroomOf(live)
	if err != nil {
		return nil
	}
	return &api.Headroom{
		MaxVcpus: uint32(found.MaxVCPUs), MaxMemoryBytes: found.MaxMemory, BalloonBytes: found.Balloon, //nolint:gosec // libvirt bounds them
		FreePciSlots: uint32(max(found.FreeSlots, 0)), //nolint:gosec // at most a few hundred
	}
}

// definitionDigest changes with everything that decides about drift. What the record notes since it was written (that the
// guest ran, why it stopped) does not.
func definitionDigest(record *domainxml.Record, config string) [sha256.Size]byte {
	applied, err := json.Marshal([]any{record.Made(), record.Domain, record.UUID, record.Volumes, record.Assignment, record.Kept})
	if err != nil {
		applied = []byte(err.Error()) // they always have a JSON form
	}
	h := sha256.New()
	for _, part := range [][]byte{record.Spec, applied, []byte(domainxml.WithoutMetadata(config))} {
		fmt.Fprintf(h, "%d\x00%s", len(part), part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// comparison compares a document of a domain with its machine, and tells what of it is unread.
type comparison func(*domainxml.Reader, domainxml.Machine, string) ([]domainxml.Difference, []string, error)

// inspect compares a document of a domain with what its own record renders to, and tells what of it is unknown.
func (a *Agent) inspect(record *domainxml.Record, document string, compare comparison) (drift []*api.Change, unread []string, err error) {
	object, _, err := schemas.ParseRecord(record.Spec, true)
	if err != nil {
		return nil, a.reader.Unread(document), fmt.Errorf("reading the record: %w", err)
	}
	spec := &object.Spec.Template.Spec
	machine := record.Machine(spec, a.host(record.Made(), spec))
	machine.Record = record
	differences, unread, err := compare(a.reader, machine, document)
	if err != nil {
		return nil, unread, err
	}
	for _, one := range machine.Attribute(differences) {
		drift = append(drift, &api.Change{Path: one.Path, Before: jsonValue(one.Want), After: jsonValue(one.Have)})
	}
	return drift, unread, nil
}

// jsonValue encodes a fact; nil means that it is not there.
func jsonValue(fact any) []byte {
	if fact == nil {
		return nil
	}
	encoded, err := json.Marshal(fact)
	if err != nil {
		return nil // strings, numbers and booleans always have a JSON form
	}
	return encoded
}
