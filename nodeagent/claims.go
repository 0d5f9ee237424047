package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/imports"
	"github.com/gitvirt/gitvirt/schemas"
)

// claim is the claim that a volume names, without its source; zero for a volume that names none.
func (m *machine) claim(volume string) schemas.Claim { return claimOf(m.wire.GetClaims()[volume]) }

func claimOf(wire *api.Claim) schemas.Claim {
	return schemas.Claim{
		Namespace: wire.GetNamespace(), Name: wire.GetName(), Capacity: wire.GetCapacityBytes(), Path: wire.GetPath(),
		Block: wire.GetBlock(), Shared: wire.GetShared(),
	}
}

// claimSource is what fills a new claim; nil when it begins empty.
func claimSource(wire *api.Claim) (*cdiv1.DataVolumeSource, error) {
	if len(wire.GetSource()) == 0 {
		return nil, nil //nolint:nilnil // a claim without a source is the usual case
	}
	source := &cdiv1.DataVolumeSource{}
	if err := json.Unmarshal(wire.GetSource(), source); err != nil {
		return nil, fmt.Errorf("%w: reading the source of claim %s: %w", ErrInvalid, wire.GetName(), err)
	}
	return source, nil
}

// copiesClaim reports whether a volume's claim is made as a copy of another claim.
func (m *machine) copiesClaim(volume string) bool {
	source, err := claimSource(m.wire.GetClaims()[volume])
	return err == nil && source != nil && source.PVC != nil
}

// wantedClaim is what the store is asked for.
func (v *hostVolumes) wantedClaim(wire *api.Claim, progress func(string)) (disks.Claim, error) {
	if wire.GetName() == "" {
		return disks.Claim{}, fmt.Errorf("%w: nothing says which claim this is", ErrInvalid)
	}
	claim := claimOf(wire)
	source, err := claimSource(wire)
	if err != nil {
		return disks.Claim{}, err
	}
	plan, err := v.imports.Plan(imports.Request{
		Source: source, Secret: wire.GetSourceContent().GetValues(), Namespace: claim.Namespace, Capacity: claim.Capacity, Progress: progress,
	})
	if err != nil {
		return disks.Claim{}, fmt.Errorf("%w: claim %s: %w", ErrInvalid, claim.Name, err)
	}
	fill := plan.Fill
	if from := wire.GetCopyOf(); from != nil {
		fill = func(ctx context.Context, dir string) (string, error) {
			if err := v.makeSource(ctx, from, progress); err != nil {
				return "", fmt.Errorf("making claim %s, which is to be copied: %w", from.GetName(), err)
			}
			return plan.Fill(ctx, dir)
		}
	}
	return disks.Claim{
		Namespace: claim.Namespace, Name: claim.Name, Capacity: claim.Capacity, Path: claim.Path, Block: claim.Block, Shared: claim.Shared,
		Origin: plan.Origin, Fill: fill,
	}, nil
}

// makeSource makes the image of a claim that is to be copied and that no VM has used yet.
func (v *hostVolumes) makeSource(ctx context.Context, wire *api.Claim, progress func(string)) error {
	want, err := v.wantedClaim(wire, progress)
	if err != nil {
		return err
	}
	_, err = v.store.EnsureClaim(ctx, want)
	return err
}

// claim makes or finds the image or the folder of a claim.
func (v *hostVolumes) claim(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record, volume *domainxml.Volume, progress func(string)) error {
	want, err := v.wantedClaim(m.wire.GetClaims()[source.Name], progress)
	if err != nil {
		return err
	}
	if layout.UseOf(m.spec(), source.Name) == layout.UseFilesystem {
		volume.Path, err = v.store.EnsureClaimFolder(ctx, want)
		return err
	}
	want.Shared = want.Shared || shareable(m.spec(), source) || opened(live, volume.Path)
	want.ReadOnly = onlyReads(m.spec(), source)
	disk, err := v.store.EnsureClaim(ctx, want)
	fill(volume, disk)
	return err
}

// live returns the records of a domain whose guest runs: what the guest has first, then what is defined. Without a guest
// there are none.
func (e *execution) live() []*domainxml.Record {
	if !e.active() {
		return nil
	}
	if e.now.running == nil {
		return []*domainxml.Record{e.now.record}
	}
	return []*domainxml.Record{e.now.running, e.now.record}
}

// opened reports whether the guest of these records, the running one's first, has the file or device open, be it as another
// volume.
func opened(live []*domainxml.Record, path string) bool {
	return len(live) > 0 && slices.ContainsFunc(live[0].Volumes, func(volume domainxml.Volume) bool {
		return samePath(path, volume.Path) || volume.Backing == path
	})
}

// ephemeral makes or finds the image below an ephemeral volume, which the guest never writes to; its overlay is refresh's. Several
// guests may have it below them; QEMU itself refuses one that is being written.
func (v *hostVolumes) ephemeral(ctx context.Context, m *machine, source kubevirtv1.Volume, volume *domainxml.Volume, progress func(string)) error {
	want, err := v.wantedClaim(m.wire.GetClaims()[source.Name], progress)
	if err != nil {
		return err
	}
	want.ReadOnly = true
	disk, err := v.store.EnsureClaim(ctx, want)
	if err != nil {
		return err
	}
	volume.Backing, volume.BackingFormat, volume.Capacity = disk.Path, string(disk.Format), disk.CapacityBytes
	volume.Path, err = v.store.OverlayPath(m.made, layout.OverlayName(source.Name, layout.ClaimDigest(m.claim(source.Name))))
	return err
}

// reservations keep a claim from being deleted while a step that will use it is on its way, and the other way around: the VM of
// such a step may not exist yet.
type reservations struct {
	mu   sync.Mutex
	held map[string]int // by claim; -1 while it is being deleted
}

func newReservations() *reservations { return &reservations{held: map[string]int{}} }

// use reserves the claims of a VM until release is called.
func (r *reservations) use(m *machine) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for _, claim := range m.wire.GetClaims() {
		for ; claim != nil; claim = claim.GetCopyOf() {
			name := claim.GetNamespace() + "/" + claim.GetName()
			if r.held[name] < 0 {
				r.release(names)
				return nil, fmt.Errorf("claim %s is being deleted", name)
			}
			r.held[name]++
			names = append(names, name)
		}
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.release(names)
	}, nil
}

func (r *reservations) release(names []string) {
	for _, name := range names {
		if r.held[name]--; r.held[name] == 0 {
			delete(r.held, name)
		}
	}
}

// remove reserves a claim for its deletion; false says that a step uses it.
func (r *reservations) remove(name string) (release func(), free bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[name] != 0 {
		return nil, false
	}
	r.held[name] = -1
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.held, name)
	}, true
}
