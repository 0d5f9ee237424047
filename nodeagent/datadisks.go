package nodeagent

import (
	"context"
	"fmt"
	"slices"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
)

// Disks lists the disks that hold data on this host, those included whose VM is gone.
func (a *Agent) Disks(ctx context.Context) ([]*api.DataDisk, error) {
	found, err := a.volumes.store.List(ctx)
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

// owned reports whether the VM of a disk exists. While the host cannot be read every disk counts as owned.
func (a *Agent) owned(disk disks.Disk) bool {
	if a.view.blind() {
		return true
	}
	return a.view.get(domainxml.DomainName(disk.Address)) != nil
}

// DeleteDisks deletes exactly the named disks; one whose VM exists is refused before anything is deleted.
func (a *Agent) DeleteDisks(ctx context.Context, ids []string) ([]*api.DeletedDisk, error) {
	if err := a.refreshAll(ctx); err != nil {
		return nil, err
	}
	found, err := a.volumes.store.List(ctx)
	if err != nil {
		return nil, err
	}
	locked := map[string]func(){}
	defer func() {
		for _, unlock := range locked {
			unlock()
		}
	}()
	for _, id := range ids {
		at := slices.IndexFunc(found, func(disk disks.Disk) bool { return disk.ID == id })
		switch {
		case at < 0:
			return nil, fmt.Errorf("%w: there is no disk %q", ErrInvalid, id)
		case a.owned(found[at]) && !found[at].Missing:
			return nil, fmt.Errorf("%w: disk %s belongs to %s, which exists", ErrInvalid, id, found[at].Address)
		}
		// A step may be about to use the disk for a VM that does not exist yet.
		owner := domainxml.DomainName(found[at].Address)
		if locked[owner] != nil {
			continue
		}
		unlock, free := a.locks.try(owner)
		if !free {
			return nil, fmt.Errorf("disk %s: its VM is being worked on; try again when that is done", id)
		}
		locked[owner] = unlock
	}
	deleted, err := a.volumes.store.Delete(ctx, ids...)
	var out []*api.DeletedDisk
	for _, disk := range deleted {
		out = append(out, &api.DeletedDisk{Id: disk.ID, Path: disk.Path, FreedBytes: disk.Freed, Kept: disk.Kept})
	}
	return out, err
}
