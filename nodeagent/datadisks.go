package nodeagent

import (
	"context"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// Disks lists the disks that hold data on this host, those included whose VM is gone. A Pod has none of its own: claims are the cluster's.
func (a *Agent) Disks(ctx context.Context) ([]*api.DataDisk, error) {
	if a.local == nil {
		return nil, nil
	}
	found, err := a.local.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []*api.DataDisk
	for _, disk := range found {
		out = append(out, &api.DataDisk{
			Id: disk.ID, Address: disk.Address.String(), Volume: disk.Volume, Kind: string(disk.Kind), Path: disk.Path, Format: string(disk.Format),
			CapacityBytes: disk.CapacityBytes, AllocatedBytes: disk.AllocatedBytes, ModifiedUnix: disk.Modified.Unix(),
			InUse: a.owned(disk),
		})
	}
	return out, nil
}

// owned reports whether the VM of a disk exists, or any VM that uses a claim. While the host cannot be read every disk counts as
// owned.
func (a *Agent) owned(disk disks.Disk) bool {
	if disk.Kind != disks.KindClaim {
		return a.view.blind() || a.view.get(a.view.madeAs(disk.Address)) != nil
	}
	domains, known := a.view.all()
	if !known {
		return true
	}
	for _, now := range domains {
		if now.record == nil && now.problem != "" {
			return true // nobody can tell what a damaged domain needs
		}
		for _, record := range []*domainxml.Record{now.record, now.running} {
			if record == nil {
				continue
			}
			for _, volume := range record.Volumes {
				if volume.Path == disk.Path || volume.Backing == disk.Path {
					return true
				}
			}
		}
	}
	return false
}

// reserve keeps a step from using a disk that is about to be deleted: its VM may not exist yet.
func (a *Agent) reserve(disk disks.Disk, held map[string]func()) error {
	take, owner := a.locks.try, a.view.madeAs(disk.Address)
	if disk.Kind == disks.KindClaim {
		take, owner = a.volumes.reserved.remove, disk.ID
	}
	if held[owner] != nil {
		return nil
	}
	release, free := take(owner)
	if !free {
		return fmt.Errorf("disk %s: a VM that uses it is being worked on; try again when that is done", disk.ID)
	}
	held[owner] = release
	return nil
}

// DeleteDisks deletes exactly the named disks; one whose VM exists is refused before anything is deleted. Who uses them is asked once no
// step can begin to.
func (a *Agent) DeleteDisks(ctx context.Context, ids []string) ([]*api.DeletedDisk, error) {
	if a.local == nil {
		return nil, fmt.Errorf("%w: a Pod has no disks of its own; delete the claim", ErrInvalid)
	}
	found, err := a.local.store.List(ctx)
	if err != nil {
		return nil, err
	}
	locked := map[string]func(){}
	defer func() {
		for _, unlock := range locked {
			unlock()
		}
	}()
	wanted := make([]disks.Disk, 0, len(ids))
	for _, id := range ids {
		at := slices.IndexFunc(found, func(disk disks.Disk) bool { return disk.ID == id })
		if at < 0 {
			return nil, fmt.Errorf("%w: there is no disk %q", ErrInvalid, id)
		}
		if err := a.reserve(found[at], locked); err != nil {
			return nil, err
		}
		wanted = append(wanted, found[at])
	}
	if err := a.refreshAll(ctx); err != nil {
		return nil, err
	}
	for _, disk := range wanted {
		if a.owned(disk) && !disk.Missing {
			return nil, fmt.Errorf("%w: disk %s belongs to a VM that exists", ErrInvalid, disk.ID)
		}
	}
	deleted, err := a.local.store.Delete(ctx, ids...)
	var out []*api.DeletedDisk
	for _, disk := range deleted {
		out = append(out, &api.DeletedDisk{Id: disk.ID, Path: disk.Path, FreedBytes: disk.Freed, Kept: disk.Kept})
	}
	return out, err
}
