package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sys/unix"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/guestmetrics"
	"github.com/gitvirt/gitvirt/nodeagent/images"
	"github.com/gitvirt/gitvirt/nodeagent/imports"
	"github.com/gitvirt/gitvirt/schemas"
)

// hostVolumes makes the volumes of the VMs of a host.
type hostVolumes struct {
	store      *disks.Store
	files      layout.Layout
	images     *images.Cache
	imports    *imports.Importer
	domainType string
	// owner is asked for the user that QEMU runs as; nil when nobody knows.
	owner ownerReader
}

func openVolumes(dir, domainType string, s settings) (*hostVolumes, error) {
	store, err := disks.NewStore(dir, disks.Options{HostDiskRoots: s.hostDiskRoots})
	if err != nil {
		return nil, fmt.Errorf("opening the disk store: %w", err)
	}
	cache, err := images.Open(filepath.Join(dir, "images"), images.Options{Insecure: s.insecureRegistries, Keychain: authn.DefaultKeychain})
	if err != nil {
		return nil, fmt.Errorf("opening the image cache: %w", err)
	}
	return &hostVolumes{
		store: store, files: store.Files(), images: cache, imports: imports.New(cache, store, imports.Options{AllowLocal: s.localImports}), domainType: domainType,
	}, nil
}

func (v *hostVolumes) host(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) domainxml.Host {
	return v.files.Host(address, spec, v.domainType)
}

func (v *hostVolumes) planned(m *machine, source kubevirtv1.Volume) domainxml.Volume {
	return v.files.Volume(m.made, m.spec(), source, m.claim(source.Name))
}

func (v *hostVolumes) same(planned, recorded string) bool { return samePath(planned, recorded) }

func (v *hostVolumes) grown(ctx context.Context, path string, capacity int64) error {
	return v.store.NoteCapacity(ctx, path, capacity)
}

func (v *hostVolumes) drop(_ context.Context, address schemas.Address, path string) error {
	if filepath.Dir(path) != v.files.VM(address) {
		return nil
	}
	return os.RemoveAll(path)
}

// samePath reports whether a manifest's path leads to the file that a record names, whose symbolic links are resolved. A
// claim's path may be the directory of that file.
func samePath(manifest, recorded string) bool {
	resolved, err := filepath.EvalSymlinks(manifest)
	if err != nil {
		resolved = manifest
	}
	return manifest == recorded || resolved == recorded || resolved == filepath.Dir(recorded)
}

// ensure implements volumeStore.
func (v *hostVolumes) ensure(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record, progress func(string)) (domainxml.Volume, error) {
	volume, err := v.find(ctx, m, source, live, progress)
	if err != nil {
		return volume, err
	}
	volume.Cached = volume.Format != "" && !volume.Block && !directIO(volume.Path)
	return volume, nil
}

// find makes or finds what one volume is made of.
func (v *hostVolumes) find(ctx context.Context, m *machine, source kubevirtv1.Volume, live []*domainxml.Record, progress func(string)) (domainxml.Volume, error) {
	volume := v.planned(m, source)
	var err error
	switch {
	case source.ContainerDisk != nil:
		err = v.containerDisk(ctx, m, source, &volume, progress)
	case source.EmptyDisk != nil:
		var disk disks.Ensured
		disk, err = v.store.EnsureEmptyDisk(ctx, m.made, source.Name, source.EmptyDisk.Capacity.Value())
		fill(&volume, disk)
	case source.HostDisk != nil:
		var disk disks.Ensured
		want := hostDisk(m.spec(), source)
		want.Shared = want.Shared || opened(live, volume.Path)
		disk, err = v.store.EnsureHostDisk(ctx, m.made, source.Name, want)
		fill(&volume, disk)
	case source.PersistentVolumeClaim != nil, source.DataVolume != nil:
		err = v.claim(ctx, m, source, live, &volume, progress)
	case source.Ephemeral != nil:
		err = v.ephemeral(ctx, m, source, &volume, progress)
	case source.DownwardMetrics != nil:
		volume.Capacity = guestmetrics.DiskSize
		err = v.store.MakeVolatile(m.made, source.Name)
	case volume.Kind == "unknown":
		err = fmt.Errorf("%w: this kind of volume is not carried out", ErrInvalid)
	default:
		// What cannot be written is said before anything is defined.
		var made volumeContent
		made, err = content(m, source)
		err = errors.Join(err, v.store.MakeVolatile(m.made, source.Name))
		if err == nil && exchangeable(m.spec(), source) {
			volume.Content = m.digest(made.image)
		}
	}
	return volume, err
}

// fill takes over what was found of a disk.
func fill(volume *domainxml.Volume, disk disks.Ensured) {
	volume.Path, volume.Format, volume.Capacity, volume.Block = disk.Path, string(disk.Format), disk.CapacityBytes, disk.Block
	volume.LogicalBlock, volume.PhysicalBlock = disk.LogicalBlock, disk.PhysicalBlock
}

// containerDisk fetches the image; its overlay is refresh's.
func (v *hostVolumes) containerDisk(ctx context.Context, m *machine, source kubevirtv1.Volume, volume *domainxml.Volume, progress func(string)) error {
	keychain, err := m.keychain(source.ContainerDisk.ImagePullSecret)
	if err != nil {
		return err
	}
	options := imageOptions(source.ContainerDisk, progress)
	options.Keychain = keychain
	image, err := v.images.Get(ctx, source.ContainerDisk.Image, options)
	if err != nil {
		return err
	}
	volume.Path, err = v.store.OverlayPath(m.made, layout.OverlayName(source.Name, image.Digest))
	volume.Format, volume.Capacity = string(diskfile.QCOW2), image.VirtualSize
	volume.Backing, volume.BackingFormat = image.Path, string(image.Format)
	return err
}

// renew implements volumeStore.
func (v *hostVolumes) renew(ctx context.Context, m *machine, source kubevirtv1.Volume, volume domainxml.Volume, off bool) error {
	switch {
	case source.ContainerDisk != nil, source.Ephemeral != nil:
		name := strings.TrimSuffix(filepath.Base(volume.Path), ".overlay.qcow2")
		_, err := v.store.NewOverlay(ctx, m.made, name, disks.Backing{
			Path: volume.Backing, Format: diskfile.Format(volume.BackingFormat), VirtualSize: volume.Capacity,
		})
		if err != nil || !off {
			return err
		}
		return removeOverlays(source.Name, volume.Path)
	case source.DownwardMetrics != nil:
		return guestmetrics.CreateDisk(volume.Path)
	case madeOfFiles(source):
		return v.writeContent(ctx, m, source, volume.Path)
	default:
		_, err := v.find(ctx, m, source, nil, func(string) {})
		return err
	}
}

// firmware implements volumeStore.
func (v *hostVolumes) firmware(_ context.Context, m *machine, off bool) error {
	if layout.PersistentNVRAM(m.spec()) {
		return v.store.MakeData(m.made)
	}
	if !off {
		return nil
	}
	if err := os.Remove(v.files.NVRAM(m.made, m.spec())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the UEFI variables of the last power-on: %w", err)
	}
	return nil
}

// removeOverlays removes the overlays that a volume had over other images than its present one.
func removeOverlays(volume, present string) error {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(present), volume+".*.overlay.qcow2"))
	if err != nil {
		return err
	}
	for _, path := range found {
		if path == present {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("removing the overlay of an earlier image: %w", err)
		}
	}
	return nil
}

// kernelContainer is the image with the kernel of a VM that boots it directly; nil when it boots from a disk.
func kernelContainer(spec *kubevirtv1.VirtualMachineInstanceSpec) *kubevirtv1.KernelBootContainer {
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil {
		return firmware.KernelBoot.Container
	}
	return nil
}

// kernelBoot implements volumeStore.
func (v *hostVolumes) kernelBoot(ctx context.Context, m *machine) (*domainxml.Volume, error) {
	container := kernelContainer(m.spec())
	if container == nil {
		return nil, nil //nolint:nilnil // a VM without kernelBoot is the usual case
	}
	var paths []string
	for _, path := range []string{container.KernelPath, container.InitrdPath} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	keychain, err := m.keychain(container.ImagePullSecret)
	if err != nil {
		return nil, err
	}
	files, err := v.images.GetFiles(ctx, container.Image, images.GetOptions{PullPolicy: images.PullPolicy(container.ImagePullPolicy), Keychain: keychain}, paths...)
	if err != nil {
		return nil, err
	}
	return &domainxml.Volume{
		Name: domainxml.KernelBootVolume, Kind: "kernelBoot", Path: files.Paths[container.KernelPath], Initrd: files.Paths[container.InitrdPath],
	}, nil
}

func (v *hostVolumes) remove(_ context.Context, address schemas.Address) error {
	return v.store.RemoveVolatile(address)
}

// directIO reports whether the file system of a file, which need not be there yet, can bypass the page cache, which cache=none
// needs (tmpfs cannot).
func directIO(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // a file that is made for this and never seen takes far longer
		fd, err = unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return !errors.Is(err, unix.EINVAL)
	}
	_ = unix.Close(fd)
	return true
}
