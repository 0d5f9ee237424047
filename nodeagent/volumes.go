package nodeagent

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// volumes sees to what the volumes of VMs are made of.
type volumes struct {
	volumeStore
	reserved *reservations
}

// volumeStore makes and finds what volumes are made of, each for itself: on a host (hostVolumes) or in the Pod of a VM (podVolumes).
type volumeStore interface {
	// host is what rendering a VM needs to know of where it runs.
	host(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) domainxml.Host
	// planned is what is known of a volume without looking.
	planned(m *machine, source kubevirtv1.Volume) domainxml.Volume
	// same reports whether a path that is planned leads to the file that a record names.
	same(planned, recorded string) bool
	// ensure makes or finds what one volume is made of, for a definition. live are the records of a guest that runs.
	ensure(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record, progress func(string)) (domainxml.Volume, error)
	// renew makes one volume ready for a power-on; off says that no guest runs, so that what earlier images left can go.
	renew(ctx context.Context, m *machine, source kubevirtv1.Volume, volume domainxml.Volume, off bool) error
	// firmware sees to the UEFI variables: those that are not persistent are made anew from libvirt's template at every power-on, as
	// KubeVirt's are; the others lie with the data.
	firmware(ctx context.Context, m *machine, off bool) error
	// kernelBoot finds the kernel and the initrd of a VM that boots them directly; nil when it boots from a disk.
	kernelBoot(ctx context.Context, m *machine) (*domainxml.Volume, error)
	// grown notes that a disk has grown while a guest had it open, to capacity bytes.
	grown(ctx context.Context, path string, capacity int64) error
	// drop removes what was made of files for a volume that the running guest has no more, as far as it goes with the VM.
	drop(ctx context.Context, address schemas.Address, path string) error
	// remove deletes what goes with a VM; disks with data stay.
	remove(ctx context.Context, address schemas.Address) error
	// console returns the end of what a guest wrote to its serial console.
	console(ctx context.Context, address schemas.Address) (string, error)
	// check looks whether a volume could be made that is planned so, and the kernel, and whether there is room for all.
	check(ctx context.Context, c *check, source kubevirtv1.Volume, planned domainxml.Volume, had bool)
	checkKernel(ctx context.Context, c *check, container *kubevirtv1.KernelBootContainer)
	checkRoom(c *check)
}

// prepare makes or finds everything that a VM's definition names, in parallel. It leaves alone what a running guest
// has open, as the records of live say; that is brought up to date by refresh, when the guest is off. Nothing that holds data
// is replaced.
func (v *volumes) prepare(ctx context.Context, m *machine, live []*domainxml.Record, progress func(string)) ([]domainxml.Volume, error) {
	sources := m.spec().Volumes
	out := make([]domainxml.Volume, len(sources), len(sources)+1)
	// A claim may be a copy of another one of this VM, which has to be there first.
	for _, copies := range []bool{false, true} {
		group, groupCtx := errgroup.WithContext(ctx)
		for i, source := range sources {
			if m.copiesClaim(source.Name) != copies {
				continue
			}
			group.Go(func() error {
				if kept := v.running(m, source, live); kept != nil {
					var err error
					out[i], err = v.largest(m, *kept, v.planned(m, source))
					return err
				}
				volume, err := v.ensure(groupCtx, m, source, live, progress)
				if err != nil {
					return fmt.Errorf("volume %s: %w", source.Name, err)
				}
				out[i] = volume
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
	}
	boot, err := v.kernelBoot(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("kernelBoot: %w", err)
	}
	if boot != nil {
		out = append(out, *boot)
	}
	return out, nil
}

// running returns the volume as a guest that runs has it open, or is to have it: disks with data that were there before.
func (v *volumes) running(m *machine, source kubevirtv1.Volume, live []*domainxml.Record) *domainxml.Volume {
	if kept := m.adopted(source); kept != nil {
		return kept
	}
	kind, keep := domainxml.VolumeKind(source)
	if !keep || len(live) == 0 {
		return nil
	}
	planned := v.planned(m, source)
	for _, record := range live {
		at := slices.IndexFunc(record.Volumes, func(volume domainxml.Volume) bool { return volume.Name == source.Name && volume.Kind == kind })
		if at >= 0 && v.same(planned.Path, record.Volumes[at].Path) {
			return &record.Volumes[at]
		}
	}
	return nil
}

// refresh makes ready for a power-on what must be new or could not be touched while the guest was running. It leaves
// alone the paths that are open: those of a guest that runs; nil says that none does.
func (v *volumes) refresh(ctx context.Context, m *machine, defined []domainxml.Volume, open map[string]bool) error {
	off := open == nil
	if err := v.firmware(ctx, m, off); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, source := range m.spec().Volumes {
		at := slices.IndexFunc(defined, func(volume domainxml.Volume) bool { return volume.Name == source.Name })
		if at < 0 {
			return fmt.Errorf("volume %s: the domain's record does not name it", source.Name)
		}
		volume := defined[at]
		if m.adopted(source) != nil || (open[volume.Path] && !madeOfFiles(source)) {
			continue
		}
		group.Go(func() error {
			if err := v.renew(ctx, m, source, volume, off); err != nil {
				return fmt.Errorf("volume %s: %w", source.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}
