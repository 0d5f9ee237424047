package nodeagent

import (
	"encoding/base64"
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit"
	"github.com/gitvirt/gitvirt/nodeagent/disks"
	"github.com/gitvirt/gitvirt/nodeagent/images"
	"github.com/gitvirt/gitvirt/schemas"
)

// cloudInitData is what a NoCloud volume tells the guest: the manifest's inline data, or what its Secret references
// resolved to.
func cloudInitData(m *machine, source kubevirtv1.Volume) (cloudinit.Data, error) {
	hostname := m.spec().Hostname
	if hostname == "" {
		hostname = m.address.Name
	}
	data := cloudinit.Data{InstanceID: cloudinit.InstanceID(hostname, m.address.Namespace), LocalHostname: hostname}
	in := source.CloudInitNoCloud
	secret := m.wire.GetContents()[schemas.VolumeContent(source.Name)].GetValues()
	var err error
	if data.UserData, err = firstOf(secret[schemas.ContentUserData], in.UserData, in.UserDataBase64); err != nil {
		return data, fmt.Errorf("%w: userDataBase64: %w", ErrInvalid, err)
	}
	if data.NetworkData, err = firstOf(secret[schemas.ContentNetworkData], in.NetworkData, in.NetworkDataBase64); err != nil {
		return data, fmt.Errorf("%w: networkDataBase64: %w", ErrInvalid, err)
	}
	return data, nil
}

// firstOf returns the one that is there of a secret, a plain and a base64 value.
func firstOf(secret []byte, plain, encoded string) ([]byte, error) {
	switch {
	case len(secret) > 0:
		return secret, nil
	case plain != "":
		return []byte(plain), nil
	}
	decoded, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		// The error of the decoder names a position, never the value.
		return nil, err
	}
	return decoded, nil
}

// hostDisk is how a hostDisk is opened. One that is only read, or shareable, may be open elsewhere too.
func hostDisk(spec *kubevirtv1.VirtualMachineInstanceSpec, source kubevirtv1.Volume) disks.HostDisk {
	in := source.HostDisk
	out := disks.HostDisk{
		Path: in.Path, Create: in.Type == kubevirtv1.HostDiskExistsOrCreate, Capacity: in.Capacity.Value(),
		Shared: in.Shared != nil && *in.Shared,
	}
	for _, disk := range spec.Domain.Devices.Disks {
		if disk.Name != source.Name {
			continue
		}
		readOnly := disk.CDRom != nil || (disk.Disk != nil && disk.Disk.ReadOnly) || (disk.LUN != nil && disk.LUN.ReadOnly)
		out.Shared = out.Shared || readOnly || (disk.Shareable != nil && *disk.Shareable)
	}
	return out
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
