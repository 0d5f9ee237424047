package nodeagent

import (
	"context"
	"errors"
	"fmt"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// owns reports whether the step may touch the domain: it is the VM's, or the VM's under the name that it had, or it is nobody's
// and to be adopted. No VM has two domains.
func (e *execution) owns() error {
	adopts := e.request.GetAdopt() != ""
	switch {
	case e.now == nil && (adopts || e.request.GetPrevious() != ""):
		return fmt.Errorf("%w: domain %s is not there any more", ErrStale, e.name)
	case e.now == nil && e.name != domainxml.DomainName(e.address) && !e.request.GetDestroy() && !e.request.GetRetire():
		return fmt.Errorf("%w: a new domain of %s is named %s, not %s", ErrInvalid, e.address, domainxml.DomainName(e.address), e.name)
	case e.now != nil && e.now.record == nil && e.now.problem != "":
		return fmt.Errorf("%w: domain %s: %s", ErrInvalid, e.name, e.now.problem)
	case e.now != nil && e.now.record == nil && !adopts:
		return fmt.Errorf("%w: domain %s exists and carries no record of gitvirt", ErrInvalid, e.name)
	case e.now != nil && e.now.record != nil && e.now.record.Address != e.address && e.now.record.Address.String() != e.request.GetPrevious():
		return fmt.Errorf("%w: domain %s belongs to %s", ErrInvalid, e.name, e.now.record.Address)
	}
	if other := e.agent.view.nameOf(e.address); other != e.name && e.agent.view.has(other, e.address) {
		return fmt.Errorf("%w: %s has the domain %s already", ErrStale, e.address, other)
	}
	return nil
}

// adopt makes a domain of others the VM's: it writes the record into the domain's metadata, the running guest's as well, and nothing
// else. The record says what the domain is. Where the manifest means the same, that is the manifest; else it is the one that
// describes the domain, and what the manifest has otherwise is an ordinary change from then on.
func (e *execution) adopt(ctx context.Context) error {
	if e.now.record != nil {
		return nil // a step that was interrupted has come to its end
	}
	domain, err := e.agent.hypervisor.Domain(ctx, e.name)
	if err != nil {
		return fmt.Errorf("reading domain %s: %w", e.name, err)
	}
	manifest, err := describe(e.address, domain)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	described, _, err := manifest.VM()
	if err != nil {
		return fmt.Errorf("%w: domain %s: %w", ErrInvalid, e.name, err)
	}
	record := e.machine.record(manifest.Volumes, nil)
	if volumes, fits := manifest.Fits(described, e.machine.spec()); fits {
		record.Volumes = volumes
	} else {
		record.Spec, record.Hash = described.Record, described.Hash
	}
	record.Kept = manifest.Kept(record.Spec, record.Volumes)
	record.UUID = domain.UUID
	if e.name != domainxml.DomainName(e.address) {
		record.Domain = e.name
	}
	record.Ran = domain.State.Active()
	e.progress("adopting " + e.name)
	if err := e.mark(ctx, record); err != nil {
		return err
	}
	return e.agent.records.put(record)
}

// describe reads a domain as the manifest that describes it. One without a persistent definition has nothing that could be kept.
func describe(address schemas.Address, domain hypervisor.Domain) (*domainxml.Manifest, error) {
	if domain.Config == "" {
		return nil, errors.New("it is transient: libvirt forgets it when it stops; define it first (virsh dumpxml NAME | virsh define /dev/stdin)")
	}
	return domainxml.Describe(address, domain.Config)
}

// ReadDomain returns a domain as the hypervisor has it, gitvirt's or another's.
func (a *Agent) ReadDomain(ctx context.Context, name string) (*api.ReadDomainResponse, error) {
	domain, err := a.hypervisor.Domain(ctx, name)
	if errors.Is(err, hypervisor.ErrNotFound) {
		return nil, fmt.Errorf("%w: there is no domain %q", ErrInvalid, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading domain %s: %w", name, err)
	}
	return &api.ReadDomainResponse{Config: domain.Config, Live: domain.Live, State: stateName(domain.State)}, nil
}
