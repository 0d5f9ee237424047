package libvirt

import (
	"context"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	lv "libvirt.org/go/libvirt"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/internal/devicexml"
)

// readAttempts is how often a domain is read anew because it went on or off in the middle of it.
const readAttempts = 5

// Names implements hypervisor.Hypervisor.
func (h *Hypervisor) Names(ctx context.Context) ([]string, error) {
	names, err := call(ctx, h, quick, func(c *lv.Connect) ([]string, error) {
		handles, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range handles {
			name, nameErr := handles[i].GetName()
			free(&handles[i])
			if nameErr != nil {
				err = nameErr
				continue
			}
			names = append(names, name)
		}
		return names, err
	})
	if err != nil {
		return nil, doing(err, "list domains", "")
	}
	slices.Sort(names)
	return names, nil
}

// Domain implements hypervisor.Hypervisor.
func (h *Hypervisor) Domain(ctx context.Context, name string) (hypervisor.Domain, error) {
	domain, err := call(ctx, h, quick, func(c *lv.Connect) (hypervisor.Domain, error) {
		dom, err := c.LookupDomainByName(name)
		if err != nil {
			return hypervisor.Domain{}, err
		}
		defer free(dom)
		return read(dom)
	})
	return domain, doing(err, "read", name)
}

// read reads a domain so that its parts belong together: libvirt has no call that returns state and both definitions.
func read(dom *lv.Domain) (hypervisor.Domain, error) {
	var domain hypervisor.Domain
	var err error
	if domain.Name, err = dom.GetName(); err != nil {
		return hypervisor.Domain{}, err
	}
	if domain.UUID, err = dom.GetUUIDString(); err != nil {
		return hypervisor.Domain{}, err
	}
	for range readAttempts {
		consistent, err := readState(dom, &domain)
		if err != nil {
			return hypervisor.Domain{}, err
		}
		if consistent {
			return domain, nil
		}
	}
	return hypervisor.Domain{}, fmt.Errorf("domain %q changed while it was read, %d times", domain.Name, readAttempts)
}

// readState reads what changes about a domain, and reports whether it was on, or off, all the time.
func readState(dom *lv.Domain, domain *hypervisor.Domain) (bool, error) {
	state, reason, err := dom.GetState()
	if err != nil {
		return false, err
	}
	domain.State, domain.StopReason = stateOf(state, reason)
	domain.Config, domain.Live = "", ""
	if !domain.State.Active() {
		// Only what has a persistent definition exists while it is off. Neither read is made with SECURE, so passwords
		// stay in libvirt.
		domain.Config, err = dom.GetXMLDesc(lv.DOMAIN_XML_INACTIVE)
		return true, err
	}
	persistent, err := dom.IsPersistent()
	if err != nil {
		return false, err
	}
	if persistent {
		if domain.Config, err = dom.GetXMLDesc(lv.DOMAIN_XML_INACTIVE); err != nil {
			return false, err
		}
	}
	if domain.Live, err = dom.GetXMLDesc(0); err != nil {
		return false, err
	}
	after, reason, err := dom.GetState()
	if err != nil {
		return false, err
	}
	domain.State, domain.StopReason = stateOf(after, reason)
	return domain.State.Active(), nil
}

// stateOf translates virDomainState and the reason that belongs to it.
func stateOf(state lv.DomainState, reason int) (hypervisor.State, hypervisor.StopReason) {
	switch state {
	case lv.DOMAIN_SHUTOFF:
		return hypervisor.StateShutoff, stopReasonOf(lv.DomainShutoffReason(reason))
	case lv.DOMAIN_CRASHED:
		return hypervisor.StateCrashed, hypervisor.StopCrashed
	case lv.DOMAIN_SHUTDOWN:
		return hypervisor.StateShutdown, hypervisor.StopUnknown
	case lv.DOMAIN_PMSUSPENDED:
		return hypervisor.StatePMSuspended, hypervisor.StopUnknown
	case lv.DOMAIN_PAUSED:
		if lv.DomainPausedReason(reason) == lv.DOMAIN_PAUSED_STARTING_UP {
			return hypervisor.StateStarting, hypervisor.StopUnknown
		}
		return hypervisor.StatePaused, hypervisor.StopUnknown
	default: // running; blocked and nostate are Xen's ways to say so
		return hypervisor.StateRunning, hypervisor.StopUnknown
	}
}

func stopReasonOf(reason lv.DomainShutoffReason) hypervisor.StopReason {
	switch reason {
	case lv.DOMAIN_SHUTOFF_SHUTDOWN:
		return hypervisor.StopShutdown
	case lv.DOMAIN_SHUTOFF_DESTROYED, lv.DOMAIN_SHUTOFF_FROM_SNAPSHOT: // reverted to a snapshot of a domain that was off
		return hypervisor.StopDestroyed
	case lv.DOMAIN_SHUTOFF_CRASHED, lv.DOMAIN_SHUTOFF_DAEMON: // libvirtd killed what it could no longer talk to
		return hypervisor.StopCrashed
	case lv.DOMAIN_SHUTOFF_FAILED:
		return hypervisor.StopFailed
	case lv.DOMAIN_SHUTOFF_SAVED:
		return hypervisor.StopSaved
	case lv.DOMAIN_SHUTOFF_MIGRATED:
		return hypervisor.StopMigrated
	default:
		return hypervisor.StopUnknown
	}
}

// identity is the part of a domain's XML that says whose it is.
type identity struct {
	Name string `xml:"name"`
	UUID string `xml:"uuid"`
}

// Define implements hypervisor.Hypervisor.
func (h *Hypervisor) Define(ctx context.Context, definition string) error {
	err := do(ctx, h, func(c *lv.Connect) error {
		whole, err := withPasswords(c, definition)
		if err != nil {
			return err
		}
		return define(c, whole)
	})
	return doing(err, "define", nameIn(definition))
}

// nameIn returns the name in a definition, for a report; what cannot be read has none.
func nameIn(definition string) string {
	var id identity
	_ = xml.Unmarshal([]byte(definition), &id)
	return id.Name
}

func define(c *lv.Connect, whole string) error {
	dom, err := c.DomainDefineXMLFlags(whole, lv.DOMAIN_DEFINE_VALIDATE)
	switch {
	case err == nil:
		free(dom)
		return nil
	case hasCode(err, lv.ERR_OPERATION_FAILED) && conflicts(c, whole):
		// libvirt has no number of its own for this: virDomainObjListAdd reports OPERATION_FAILED.
		return &Error{Kind: hypervisor.ErrConflict, Cause: err}
	}
	return definitionError(err)
}

// Replace implements hypervisor.Hypervisor.
func (h *Hypervisor) Replace(ctx context.Context, definition string) error {
	err := do(ctx, h, func(c *lv.Connect) error { return replace(c, definition) })
	return doing(err, "replace", nameIn(definition))
}

func replace(c *lv.Connect, definition string) error {
	dom, err := c.LookupDomainByName(nameIn(definition))
	if hasCode(err, lv.ERR_NO_DOMAIN) {
		return define(c, definition)
	}
	if err != nil {
		return err
	}
	defer free(dom)
	before, err := secret(dom)
	if err != nil {
		return err
	}
	whole, err := devicexml.KeepPasswords(definition, before)
	if err != nil {
		return err
	}
	if err := undefine(dom); err != nil {
		return err
	}
	if err := define(c, whole); err != nil {
		// Without DOMAIN_DEFINE_VALIDATE: libvirt took this one already, and an older libvirt may have.
		old, restoring := c.DomainDefineXML(before)
		if restoring != nil {
			return fmt.Errorf("%w; its old definition cannot be put back: %w", err, restoring)
		}
		free(old)
		return err
	}
	return nil
}

// HasPasswords implements hypervisor.Hypervisor.
func (h *Hypervisor) HasPasswords(ctx context.Context, name string) (bool, error) {
	has := false
	err := withDomain(ctx, h, name, func(dom *lv.Domain) error {
		definition, err := secret(dom)
		if err != nil {
			return err
		}
		has, err = devicexml.HasPasswords(definition)
		return err
	})
	if hasCode(err, lv.ERR_NO_DOMAIN) {
		return false, nil
	}
	return has, doing(err, "read the screens of", name)
}

// secret is the one read with SECURE: passwords go from libvirt to libvirt, and nowhere else.
func secret(dom *lv.Domain) (string, error) {
	return dom.GetXMLDesc(lv.DOMAIN_XML_INACTIVE | lv.DOMAIN_XML_SECURE)
}

// withPasswords gives the screens of a definition the passwords that they have.
func withPasswords(c *lv.Connect, definition string) (string, error) {
	if !strings.Contains(definition, "<graphics") {
		return definition, nil
	}
	var id identity
	if err := xml.Unmarshal([]byte(definition), &id); err != nil {
		return definition, nil //nolint:nilerr // libvirt says better what is wrong with it
	}
	dom, err := c.LookupDomainByName(id.Name)
	if hasCode(err, lv.ERR_NO_DOMAIN) {
		return definition, nil
	}
	if err != nil {
		return "", err
	}
	defer free(dom)
	before, err := secret(dom)
	if err != nil {
		return "", err
	}
	return devicexml.KeepPasswords(definition, before)
}

// definitionError gives what is wrong with a definition the kind that it has only there.
func definitionError(err error) error {
	if hasCode(err, lv.ERR_INVALID_ARG) {
		return &Error{Kind: hypervisor.ErrInvalid, Cause: err}
	}
	return err
}

// conflicts reports whether a definition has the name or the UUID of another domain.
func conflicts(c *lv.Connect, definition string) bool {
	var id identity
	if err := xml.Unmarshal([]byte(definition), &id); err != nil {
		return false
	}
	wanted, err := uuid.Parse(strings.TrimSpace(id.UUID))
	known := err == nil // without one libvirt makes one up, which is another by certainty
	if dom, err := c.LookupDomainByName(id.Name); err == nil {
		defer free(dom)
		has, err := dom.GetUUIDString()
		return err == nil && (!known || has != wanted.String())
	}
	if !known {
		return false
	}
	dom, err := c.LookupDomainByUUIDString(wanted.String())
	if err != nil {
		return false
	}
	free(dom)
	return true
}

// SetMetadata implements hypervisor.Hypervisor.
func (h *Hypervisor) SetMetadata(ctx context.Context, name, prefix, uri, element string) error {
	err := withDomain(ctx, h, name, func(dom *lv.Domain) error {
		var err error
		for range readAttempts {
			var impact lv.DomainModificationImpact
			impact, err = definitions(dom)
			if err != nil {
				return err
			}
			err = dom.SetMetadata(lv.DOMAIN_METADATA_ELEMENT, element, prefix, uri, impact)
			if !hasCode(err, lv.ERR_OPERATION_INVALID) {
				break
			}
			// It went off, or was undefined, in between: look again.
		}
		if element == "" && hasCode(err, lv.ERR_NO_DOMAIN_METADATA) {
			return nil
		}
		return err
	})
	return doing(err, "set metadata of", name)
}

// definitions returns the flags of the definitions that a domain has: the persistent one, the running one, or both.
func definitions(dom *lv.Domain) (lv.DomainModificationImpact, error) {
	persistent, err := dom.IsPersistent()
	if err != nil {
		return 0, err
	}
	active, err := dom.IsActive()
	if err != nil {
		return 0, err
	}
	var impact lv.DomainModificationImpact
	if persistent {
		impact |= lv.DOMAIN_AFFECT_CONFIG
	}
	if active {
		impact |= lv.DOMAIN_AFFECT_LIVE
	}
	return impact, nil
}

// undefineFlags are tried in order: a driver refuses the flags that it does not know, as the test driver does with NVRAM.
var undefineFlags = []lv.DomainUndefineFlagsValues{
	lv.DOMAIN_UNDEFINE_MANAGED_SAVE | lv.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | lv.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA |
		lv.DOMAIN_UNDEFINE_KEEP_NVRAM,
	lv.DOMAIN_UNDEFINE_MANAGED_SAVE | lv.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA | lv.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA,
	0,
}

// Undefine implements hypervisor.Hypervisor.
func (h *Hypervisor) Undefine(ctx context.Context, name string) error {
	err := withDomain(ctx, h, name, undefine)
	if hasCode(err, lv.ERR_NO_DOMAIN) {
		return nil
	}
	return doing(err, "undefine", name)
}

func undefine(dom *lv.Domain) error {
	var err error
	for _, flags := range undefineFlags {
		if err = dom.UndefineFlags(flags); !unsupported(err) {
			break
		}
	}
	if hasCode(err, lv.ERR_OPERATION_INVALID) {
		if persistent, perr := dom.IsPersistent(); perr == nil && !persistent {
			return nil // transient: there is no persistent definition to remove
		}
	}
	return err
}
