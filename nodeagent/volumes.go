package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/errgroup"
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

// settings are what the options of New set.
type settings struct {
	redirects          Redirects
	insecureRegistries []string
	hostDiskRoots      []string
	reservedCPUs       string
	hostRoot           string
	localImports       bool
}

// Option adjusts an Agent.
type Option func(*settings)

// WithInsecureRegistries names registries (host:port) that may be spoken to without TLS; loopback always may.
func WithInsecureRegistries(hosts ...string) Option {
	return func(s *settings) { s.insecureRegistries = append(s.insecureRegistries, hosts...) }
}

// WithHostDiskRoots names the folders below which hostDisk files may lie, and directories of the host that guests share; none means
// files anywhere, and no directories.
func WithHostDiskRoots(roots ...string) Option {
	return func(s *settings) { s.hostDiskRoots = append(s.hostDiskRoots, roots...) }
}

// WithLocalImports lets imports fetch from loopback and link-local addresses, where services of the host listen.
func WithLocalImports(allow bool) Option {
	return func(s *settings) { s.localImports = allow }
}

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
