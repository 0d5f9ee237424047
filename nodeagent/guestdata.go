package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
	"github.com/gitvirt/gitvirt/nodeagent/disks/layout"
	"github.com/gitvirt/gitvirt/nodeagent/guestfiles"
	"github.com/gitvirt/gitvirt/nodeagent/images"
	"github.com/gitvirt/gitvirt/schemas"
)

// madeOfFiles tells the volumes that are written anew whenever their content changes, also while the guest runs.
func madeOfFiles(source kubevirtv1.Volume) bool {
	return source.CloudInitNoCloud != nil || source.CloudInitConfigDrive != nil || source.ConfigMap != nil || source.Secret != nil ||
		source.Sysprep != nil || source.DownwardAPI != nil || source.ServiceAccount != nil
}

// guestMachine is what files are made of.
func (m *machine) guestMachine() guestfiles.Machine {
	contents := map[string]map[string][]byte{}
	for reference, content := range m.wire.GetContents() {
		contents[reference] = content.GetValues()
	}
	return guestfiles.Machine{Address: m.address, Made: m.made, Object: m.object, Contents: contents, Definition: m.definition}
}

// volumeContent is what a volume that is made of files holds: files, or the content of an ACPI table.
type volumeContent struct {
	use   layout.Use
	set   guestfiles.Set
	table []byte
	image []byte
}

// rememberedContents are contents by volume, with the definition that they were made for. Volumes are made in parallel.
type rememberedContents struct {
	mu   sync.Mutex
	made map[string]rememberedContent
}

type rememberedContent struct {
	definition string
	content    volumeContent
}

// content returns what a volume that is made of files holds.
func content(m *machine, source kubevirtv1.Volume) (volumeContent, error) {
	m.contents.mu.Lock()
	known, ok := m.contents.made[source.Name]
	m.contents.mu.Unlock()
	if ok && known.definition == m.definition {
		return known.content, nil
	}
	made, err := newContent(m, source)
	if err != nil {
		return made, err
	}
	m.contents.mu.Lock()
	defer m.contents.mu.Unlock()
	if m.contents.made == nil {
		m.contents.made = map[string]rememberedContent{}
	}
	m.contents.made[source.Name] = rememberedContent{m.definition, made}
	return made, nil
}

func newContent(m *machine, source kubevirtv1.Volume) (volumeContent, error) {
	out := volumeContent{use: layout.UseOf(m.spec(), source.Name)}
	var err error
	switch out.use {
	case layout.UseTable:
		out.table, err = guestfiles.Table(m.guestMachine(), source)
	case layout.UseFilesystem, layout.UseDisk:
		if out.set, err = guestfiles.Of(m.guestMachine(), source); err == nil {
			out.image, err = out.set.Image()
		}
	}
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return out, nil
}

// exchangeable tells the volumes that are exchanged in a running guest when their files change: ConfigMaps and Secrets in a CD-ROM
// drive. What the others hold is there for the guest's boot.
func exchangeable(spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume) bool {
	if source.ConfigMap == nil && source.Secret == nil {
		return false
	}
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(disk kubevirtv1.Disk) bool { return disk.Name == source.Name && disk.CDRom != nil })
}

// digest is what a record says of an image, salted as the record's other digests of sensitive values are.
func (m *machine) digest(image []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00", m.made)
	h.Write(image)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// ownerReader is a hypervisor that knows which user QEMU runs as.
type ownerReader interface {
	QEMUOwner(ctx context.Context) (uid, gid int, known bool, err error)
}

// qemuOwner is the user that QEMU runs as; nil when it is this one, or nobody knows. libvirt hands over the files that it
// knows of, and not the file of an MSDM table, which it has no element for.
func (v *hostVolumes) qemuOwner(ctx context.Context) (*diskfile.Owner, error) {
	if v.owner == nil || os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // the file stays with the user of this process
	}
	uid, gid, known, err := v.owner.QEMUOwner(ctx)
	if err != nil || !known {
		return nil, err
	}
	return &diskfile.Owner{UID: uid, GID: gid}, nil
}

// writeContent writes a volume that is made of files to path.
func (v *hostVolumes) writeContent(ctx context.Context, m *machine, source kubevirtv1.Volume, path string) error {
	out, err := content(m, source)
	if err != nil {
		return err
	}
	if err := v.store.MakeVolatile(m.made, source.Name); err != nil {
		return err
	}
	switch out.use {
	case layout.UseFilesystem:
		err = out.set.WriteFolder(path)
	case layout.UseTable:
		var owner *diskfile.Owner
		if owner, err = v.qemuOwner(ctx); err == nil {
			_, err = diskfile.WriteSame(path, out.table, owner)
		}
	case layout.UseDisk:
		_, err = diskfile.WriteSame(path, out.image, nil)
	}
	return err
}

// hostDisk is how a hostDisk is opened.
func hostDisk(spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume) disks.HostDisk {
	in := source.HostDisk
	return disks.HostDisk{
		Path: in.Path, Create: in.Type == kubevirtv1.HostDiskExistsOrCreate, Capacity: in.Capacity.Value(),
		Shared: (in.Shared != nil && *in.Shared) || shareable(spec, source), ReadOnly: onlyReads(spec, source),
	}
}

// onlyReads reports whether the guest cannot write to a volume, so that others may have it open.
func onlyReads(spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume) bool {
	if claim := source.PersistentVolumeClaim; claim != nil && claim.ReadOnly {
		return true
	}
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(disk kubevirtv1.Disk) bool {
		return disk.Name == source.Name &&
			(disk.CDRom != nil || (disk.Disk != nil && disk.Disk.ReadOnly) || (disk.LUN != nil && disk.LUN.ReadOnly))
	})
}

// shareable reports whether other guests may write to a volume, too.
func shareable(spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume) bool {
	return slices.ContainsFunc(spec.Domain.Devices.Disks, func(disk kubevirtv1.Disk) bool {
		return disk.Name == source.Name && disk.Shareable != nil && *disk.Shareable
	})
}

// imageOptions are how a container disk is fetched; large transfers are told.
func imageOptions(in *kubevirtv1.ContainerDiskSource, progress func(string)) images.GetOptions {
	return images.GetOptions{
		Path: in.Path, PullPolicy: images.PullPolicy(in.ImagePullPolicy),
		Progress: func(done, total int64) {
			progress(fmt.Sprintf("fetching %s: %d of %d MiB", in.Image, done>>20, total>>20))
		},
	}
}

// keychain holds the credentials of an imagePullSecret, before those of the agent's user; nil when the manifest names none.
func (m *machine) keychain(secret string) (authn.Keychain, error) {
	if secret == "" {
		return nil, nil //nolint:nilnil // the cache's own keychain then
	}
	content := m.wire.GetContents()[schemas.PullSecretContent(secret)].GetValues()
	raw, found := content[corev1.DockerConfigJsonKey]
	if !found {
		return nil, fmt.Errorf("%w: the imagePullSecret %s has no key %s; add it to the repository (type kubernetes.io/dockerconfigjson)",
			ErrInvalid, secret, corev1.DockerConfigJsonKey)
	}
	keychain, err := images.DockerConfig(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: the imagePullSecret %s: %w", ErrInvalid, secret, err)
	}
	return authn.NewMultiKeychain(keychain, authn.DefaultKeychain), nil
}
