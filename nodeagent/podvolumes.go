package nodeagent

import (
	"context"
	"fmt"
	"path"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/podfiles"
	"github.com/gitvirt/gitvirt/schemas"
)

// podVolumes has the launcher of a VM's Pod make the volumes, as the Pod's user: nothing is written into the Pod from here. Their paths
// are the Pod's, and mean nothing on the node.
type podVolumes struct {
	files  layout.Layout
	client podfiles.Client
	// domainType is "kvm" or "qemu".
	domainType string
}

func (v *podVolumes) host(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) domainxml.Host {
	out := v.files.Host(address, spec, v.domainType)
	out.ConsoleLog = path.Join(protocol.Dir, protocol.ConsolePipe)
	return out
}

// claimOf is a VM's claim where the Pod has it, whatever PersistentVolume of a host the manifest knows for it.
func (v *podVolumes) claimOf(m *machine, source kubevirtv1.Volume) schemas.Claim {
	claim := m.claim(source.Name)
	claim.Path = path.Join(protocol.ClaimsDir, source.Name, protocol.ClaimImage)
	if claim.Block {
		claim.Path = path.Join(protocol.DevicesDir, source.Name)
	}
	return claim
}

func (v *podVolumes) planned(m *machine, source kubevirtv1.Volume) domainxml.Volume {
	return v.files.Volume(m.made, m.spec(), source, v.claimOf(m, source))
}

func (v *podVolumes) same(planned, recorded string) bool { return planned == recorded }

// ensure implements volumeStore. A guest's launcher can tell who has an image open as a host can: QEMU's locks are the kernel's.
func (v *podVolumes) ensure(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record, _ func(string)) (domainxml.Volume, error) {
	volume := v.planned(m, source)
	if layout.UseOf(m.spec(), source.Name) == layout.UseFilesystem {
		return volume, fmt.Errorf("%w: a shared file system is not carried out in a Pod", ErrInvalid)
	}
	var found podfiles.Disk
	var err error
	switch {
	case source.ContainerDisk != nil:
		found, err = v.client.Image(ctx, source.Name, source.ContainerDisk.Path)
		volume.Backing, volume.BackingFormat, volume.Capacity = found.Path, string(found.Format), found.CapacityBytes
		return volume, err
	case source.EmptyDisk != nil:
		found, err = v.client.EmptyDisk(ctx, volume.Path, source.EmptyDisk.Capacity.Value())
	case source.PersistentVolumeClaim != nil, source.DataVolume != nil:
		found, err = v.claim(ctx, m, source, live)
	case source.Ephemeral != nil:
		found, err = v.claim(ctx, m, source, live)
		volume.Backing, volume.BackingFormat, volume.Capacity = found.Path, string(found.Format), found.CapacityBytes
		return volume, err
	case madeOfFiles(source):
		// What cannot be written is said before anything is defined.
		made, err := content(m, source)
		if err == nil && exchangeable(m.spec(), source) {
			volume.Content = m.digest(made.image)
		}
		return volume, err
	default:
		return volume, fmt.Errorf("%w: this kind of volume is not carried out in a Pod", ErrInvalid)
	}
	volume.Path, volume.Format, volume.Capacity, volume.Cached = found.Path, string(found.Format), found.CapacityBytes, found.Cached
	volume.Block, volume.LogicalBlock, volume.PhysicalBlock = found.Block, found.LogicalBlock, found.PhysicalBlock
	return volume, err
}

// claim makes or finds the image of a claim, or its device. What fills a claim of the cluster is the cluster's to do.
func (v *podVolumes) claim(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record) (podfiles.Disk, error) {
	claim := v.claimOf(m, source)
	want := podfiles.Claim{
		Volume: source.Name, Capacity: claim.Capacity,
		Shared:   claim.Shared || shareable(m.spec(), source) || openedAt(live, claim.Path),
		ReadOnly: source.Ephemeral != nil || onlyReads(m.spec(), source),
	}
	if claim.Block {
		return v.client.Device(ctx, want)
	}
	return v.client.Claim(ctx, want)
}

// openedAt is opened for paths that mean nothing here.
func openedAt(live []*domainxml.Record, at string) bool {
	if len(live) == 0 {
		return false
	}
	for _, volume := range live[0].Volumes {
		if volume.Path == at || volume.Backing == at {
			return true
		}
	}
	return false
}

// renew implements volumeStore.
func (v *podVolumes) renew(ctx context.Context, m *machine, source kubevirtv1.Volume, volume domainxml.Volume, _ bool) error {
	switch {
	case source.ContainerDisk != nil, source.Ephemeral != nil:
		return v.client.Overlay(ctx, volume.Path, disks.Backing{
			Path: volume.Backing, Format: diskfile.Format(volume.BackingFormat), VirtualSize: volume.Capacity,
		})
	case madeOfFiles(source):
		out, err := content(m, source)
		if err != nil {
			return err
		}
		bytes := out.image
		if out.use == layout.UseTable {
			bytes = out.table
		}
		return v.client.Write(ctx, volume.Path, bytes)
	}
	_, err := v.ensure(ctx, m, source, nil, func(string) {})
	return err
}

// firmware implements volumeStore. The folder has the sockets of the guest's devices, too.
func (v *podVolumes) firmware(ctx context.Context, m *machine, off bool) error {
	if layout.PersistentNVRAM(m.spec()) {
		return fmt.Errorf("%w: UEFI variables go with the Pod, and are not persistent", ErrInvalid)
	}
	if err := v.client.MakeFolder(ctx, v.files.VM(m.made)); err != nil || !off {
		return err
	}
	return v.client.Remove(ctx, v.files.NVRAM(m.made, m.spec()), "")
}

// kernelBoot implements volumeStore.
func (v *podVolumes) kernelBoot(ctx context.Context, m *machine) (*domainxml.Volume, error) {
	container := kernelContainer(m.spec())
	if container == nil {
		return nil, nil //nolint:nilnil // a VM without kernelBoot is the usual case
	}
	out := &domainxml.Volume{Name: domainxml.KernelBootVolume, Kind: "kernelBoot"}
	for inner, found := range map[string]*string{container.KernelPath: &out.Path, container.InitrdPath: &out.Initrd} {
		if inner == "" {
			continue
		}
		var err error
		if *found, err = v.client.File(ctx, protocol.KernelBoot, inner); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// grown implements volumeStore: a disk of a Pod has no record beside it.
func (v *podVolumes) grown(context.Context, string, int64) error { return nil }

func (v *podVolumes) drop(ctx context.Context, address schemas.Address, name string) error {
	if path.Dir(name) != v.files.VM(address) {
		return nil
	}
	return v.client.Remove(ctx, literally(name), "")
}

// literally is a pattern that one name matches.
func literally(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

func (v *podVolumes) remove(ctx context.Context, address schemas.Address) error {
	return v.client.Remove(ctx, v.files.VM(address), "")
}

func (v *podVolumes) console(ctx context.Context, _ schemas.Address) (string, error) {
	said, err := v.client.Console(ctx)
	return string(said), err
}

// check implements volumeStore: what the Pod could not have, its kubelet has said already.
func (v *podVolumes) check(context.Context, *check, kubevirtv1.Volume, domainxml.Volume, bool) {}

func (v *podVolumes) checkKernel(context.Context, *check, *kubevirtv1.KernelBootContainer) {}

func (v *podVolumes) checkRoom(*check) {}
