package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/images"
	"github.com/gitvirt/gitvirt/schemas"
)

// settings are what the options of New set.
type settings struct {
	insecureRegistries []string
	hostDiskRoots      []string
	reservedCPUs       string
	hostRoot           string
}

// Option adjusts an Agent.
type Option func(*settings)

// WithInsecureRegistries names registries (host:port) that may be spoken to without TLS; loopback always may.
func WithInsecureRegistries(hosts ...string) Option {
	return func(s *settings) { s.insecureRegistries = append(s.insecureRegistries, hosts...) }
}

// WithHostDiskRoots names the folders below which hostDisk files may lie; none means anywhere.
func WithHostDiskRoots(roots ...string) Option {
	return func(s *settings) { s.hostDiskRoots = append(s.hostDiskRoots, roots...) }
}

// volumes makes what the volumes of VMs are made of.
type volumes struct {
	store  *disks.Store
	images *images.Cache
}

func openVolumes(dir string, s settings) (*volumes, error) {
	store, err := disks.NewStore(dir, disks.Options{HostDiskRoots: s.hostDiskRoots})
	if err != nil {
		return nil, fmt.Errorf("opening the disk store: %w", err)
	}
	cache, err := images.Open(filepath.Join(dir, "images"), images.Options{Insecure: s.insecureRegistries, Keychain: authn.DefaultKeychain})
	if err != nil {
		return nil, fmt.Errorf("opening the image cache: %w", err)
	}
	return &volumes{store: store, images: cache}, nil
}

// prepare makes or finds everything that a VM's definition names, in parallel. It leaves alone what a running guest
// has open; that is brought up to date by refresh, when the guest is off. Nothing that holds data is replaced.
func (v *volumes) prepare(ctx context.Context, m *machine, before *domainxml.Record, active bool, progress func(string)) ([]domainxml.Volume, error) {
	sources := m.spec().Volumes
	out := make([]domainxml.Volume, len(sources), len(sources)+1)
	group, groupCtx := errgroup.WithContext(ctx)
	for i, source := range sources {
		group.Go(func() error {
			if kept := running(source, before, active); kept != nil {
				out[i] = *kept
				return nil
			}
			volume, err := v.one(groupCtx, m, source, progress)
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
	boot, err := v.kernelBoot(ctx, m)
	if err != nil {
		return nil, fmt.Errorf("kernelBoot: %w", err)
	}
	if boot != nil {
		out = append(out, *boot)
	}
	return out, nil
}

// running returns the volume as a running guest has it open: disks with data that were there before.
func running(source kubevirtv1.Volume, before *domainxml.Record, active bool) *domainxml.Volume {
	kind, keep := domainxml.VolumeKind(source)
	if !active || !keep || before == nil {
		return nil
	}
	at := slices.IndexFunc(before.Volumes, func(volume domainxml.Volume) bool { return volume.Name == source.Name && volume.Kind == kind })
	if at < 0 || (source.HostDisk != nil && !samePath(source.HostDisk.Path, before.Volumes[at].Path)) {
		return nil
	}
	return &before.Volumes[at]
}

// samePath reports whether a manifest's path leads to the file that a record names, whose symbolic links are resolved.
func samePath(manifest, recorded string) bool {
	resolved, err := filepath.EvalSymlinks(manifest)
	return manifest == recorded || (err == nil && resolved == recorded)
}

// one makes or finds one volume.
func (v *volumes) one(ctx context.Context, m *machine, source kubevirtv1.Volume, progress func(string)) (domainxml.Volume, error) {
	kind, _ := domainxml.VolumeKind(source)
	volume := domainxml.Volume{Name: source.Name, Kind: kind}
	switch {
	case source.ContainerDisk != nil:
		image, err := v.images.Get(ctx, source.ContainerDisk.Image, imageOptions(source.ContainerDisk, progress))
		if err != nil {
			return volume, err
		}
		// The name tells the image: an overlay never meets another image than the one it was made for.
		volume.Path, err = v.store.OverlayPath(m.address, overlayName(source.Name, image.Digest))
		if err != nil {
			return volume, err
		}
		volume.Format, volume.Capacity = string(diskfile.QCOW2), image.VirtualSize
		volume.Backing, volume.BackingFormat = image.Path, string(image.Format)
	case source.EmptyDisk != nil:
		disk, err := v.store.EnsureEmptyDisk(ctx, m.address, source.Name, source.EmptyDisk.Capacity.Value())
		if err != nil {
			return volume, err
		}
		volume.Path, volume.Format, volume.Capacity = disk.Path, string(disk.Format), disk.CapacityBytes
	case source.HostDisk != nil:
		disk, err := v.store.EnsureHostDisk(ctx, m.address, source.Name, hostDisk(m.spec(), source))
		if err != nil {
			return volume, err
		}
		volume.Path, volume.Format, volume.Capacity = disk.Path, string(disk.Format), disk.CapacityBytes
	case source.CloudInitNoCloud != nil:
		path, err := v.store.ISOPath(m.address, source.Name)
		if err != nil {
			return volume, err
		}
		volume.Path, volume.Format = path, string(diskfile.Raw)
	default:
		return volume, fmt.Errorf("%w: this kind of volume is not carried out", ErrInvalid)
	}
	volume.Cached = !directIO(filepath.Dir(volume.Path))
	return volume, nil
}

// overlayName is the name of a container disk's overlay: the volume's and the beginning of its image's digest.
func overlayName(volume, digest string) string {
	_, hex, _ := strings.Cut(digest, ":")
	return volume + "." + hex[:min(12, len(hex))]
}

// refresh makes ready for a power-on what must be new or could not be touched while the guest was running. It leaves
// alone the paths that are open: those of a guest that runs.
func (v *volumes) refresh(ctx context.Context, m *machine, defined []domainxml.Volume, open map[string]bool) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, source := range m.spec().Volumes {
		at := slices.IndexFunc(defined, func(volume domainxml.Volume) bool { return volume.Name == source.Name })
		if at < 0 {
			return fmt.Errorf("volume %s: the domain's record does not name it", source.Name)
		}
		volume := defined[at]
		if open[volume.Path] && source.CloudInitNoCloud == nil {
			continue
		}
		group.Go(func() error {
			if err := v.refreshOne(ctx, m, source, volume, len(open) == 0); err != nil {
				return fmt.Errorf("volume %s: %w", source.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// refreshOne makes one volume ready; off says that no guest runs, so that what earlier images left can go.
func (v *volumes) refreshOne(ctx context.Context, m *machine, source kubevirtv1.Volume, volume domainxml.Volume, off bool) error {
	switch {
	case source.ContainerDisk != nil:
		name := strings.TrimSuffix(filepath.Base(volume.Path), ".overlay.qcow2")
		_, err := v.store.NewOverlay(ctx, m.address, name, disks.Backing{
			Path: volume.Backing, Format: diskfile.Format(volume.BackingFormat), VirtualSize: volume.Capacity,
		})
		if err != nil || !off {
			return err
		}
		return removeOverlays(source.Name, volume.Path)
	case source.CloudInitNoCloud != nil:
		return v.cloudInit(m, source)
	default:
		_, err := v.one(ctx, m, source, func(string) {})
		return err
	}
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

// cloudInit writes the image that the guest reads its data from.
func (v *volumes) cloudInit(m *machine, source kubevirtv1.Volume) error {
	path, err := v.store.ISOPath(m.address, source.Name)
	if err != nil {
		return err
	}
	data, err := cloudInitData(m, source)
	if err != nil {
		return err
	}
	_, err = cloudinit.WriteFile(path, data, nil)
	return err
}

// kernelBoot finds the kernel and the initrd of a VM that boots them directly; nil when it boots from a disk.
func (v *volumes) kernelBoot(ctx context.Context, m *machine) (*domainxml.Volume, error) {
	firmware := m.spec().Domain.Firmware
	if firmware == nil || firmware.KernelBoot == nil || firmware.KernelBoot.Container == nil {
		return nil, nil //nolint:nilnil // a VM without kernelBoot is the usual case
	}
	container := firmware.KernelBoot.Container
	var paths []string
	for _, path := range []string{container.KernelPath, container.InitrdPath} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	files, err := v.images.GetFiles(ctx, container.Image, images.GetOptions{PullPolicy: images.PullPolicy(container.ImagePullPolicy)}, paths...)
	if err != nil {
		return nil, err
	}
	return &domainxml.Volume{
		Name: domainxml.KernelBootVolume, Kind: "kernelBoot", Path: files.Paths[container.KernelPath], Initrd: files.Paths[container.InitrdPath],
	}, nil
}

// remove deletes what goes with a VM; disks with data stay.
func (v *volumes) remove(address schemas.Address) error { return v.store.RemoveVolatile(address) }

// directIO reports whether the file system of a folder can bypass the page cache, which cache=none needs (tmpfs
// cannot).
func directIO(dir string) bool {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_DIRECT, 0o600)
	if err != nil {
		return !errors.Is(err, unix.EINVAL)
	}
	_ = unix.Close(fd)
	return true
}
