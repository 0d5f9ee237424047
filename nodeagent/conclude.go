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
	failure    string
	// unreadConfig and unreadLive are the paths of what is unknown in the definition and in the running guest's XML.
	unreadConfig, unreadLive []string
}

func (c *conclusions) unread() []string {
	all := slices.Concat(c.unreadConfig, c.unreadLive)
	slices.Sort(all)
	return slices.Compact(all)
}

// conclude reads a domain's XML, as far as it changed since before, which may be nil. live is the digest of the running
// guest's XML.
func (a *Agent) conclude(record *domainxml.Record, domain hypervisor.Domain, live [sha256.Size]byte, before *seen) conclusions {
	now := conclusions{definition: definitionDigest(record, domain.Config)}
	switch {
	case domain.Config == "":
	case before != nil && before.definition == now.definition:
		now.changes, now.failure, now.unreadConfig = before.changes, before.failure, before.unreadConfig
	default:
		var err error
		if now.changes, now.unreadConfig, err = a.inspect(record, domain.Config); err != nil {
			now.failure = err.Error()
		}
	}
	switch {
	case domain.Live == "":
	case before != nil && before.domain.live == live:
		now.unreadLive = before.unreadLive
	default:
		now.unreadLive = a.reader.Unread(domain.Live)
	}
	return now
}

// definitionDigest changes with everything that decides about drift. What the record notes since it was written (that the
// guest ran, why it stopped) does not.
func definitionDigest(record *domainxml.Record, config string) [sha256.Size]byte {
	applied, err := json.Marshal([]any{record.Address, record.Volumes, record.Assignment})
	if err != nil {
		applied = []byte(err.Error()) // they always have a JSON form
	}
	h := sha256.New()
	for _, part := range [][]byte{record.Spec, applied, []byte(domainxml.WithoutMetadata(config))} {
		fmt.Fprintf(h, "%d\x00%s", len(part), part)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// inspect compares the persistent definition with what its own record renders to, and tells what of it is unknown.
func (a *Agent) inspect(record *domainxml.Record, config string) (drift []*api.Change, unread []string, err error) {
	object, _, err := schemas.ParseRecord(record.Spec, true)
	if err != nil {
		return nil, a.reader.Unread(config), fmt.Errorf("reading the record: %w", err)
	}
	host := a.host(record.Address, &object.Spec.Template.Spec)
	host.Assignment = record.Assignment
	differences, unread, err := a.reader.Inspect(domainxml.Machine{
		Address: record.Address, Spec: &object.Spec.Template.Spec, Host: host, Volumes: record.Volumes,
	}, config)
	if err != nil {
		return nil, unread, err
	}
	for _, difference := range differences {
		drift = append(drift, &api.Change{
			Path: difference.Path, Before: jsonValue(difference.Want), After: jsonValue(difference.Have),
		})
	}
	return drift, unread, nil
}

// jsonValue encodes a fact; the empty one means that it is not there.
func jsonValue(fact string) []byte {
	if fact == "" {
		return nil
	}
	encoded, err := json.Marshal(fact)
	if err != nil {
		return nil // a string always has a JSON form
	}
	return encoded
}
