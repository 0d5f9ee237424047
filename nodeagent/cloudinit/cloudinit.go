// Package cloudinit builds the disk that a guest's cloud-init reads at boot, in the NoCloud format: an ISO 9660 volume with the label
// "cidata" and the files "user-data", "meta-data" and, when there is one, "network-config"
// (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html). The text of these files is the user's and is passed on
// unread.
//
// The instance-id follows KubeVirt: HOSTNAME.NAMESPACE (see InstanceID). cloud-init runs its per-instance modules once per instance-id, so
// changed user data reaches a guest at its next boot only where cloud-init reads it at every boot (bootcmd, network,
// per-boot scripts), and a disk that is kept does not lose its SSH host keys or users because a comment
// changed. Who wants everything to run again sets another instance-id.
package cloudinit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
	"github.com/gitvirt/gitvirt/nodeagent/disks/diskfile"
)

// The names that cloud-init looks for.
const (
	VolumeLabel       = "cidata"
	UserDataFile      = "user-data"
	MetaDataFile      = "meta-data"
	NetworkConfigFile = "network-config"
)

// MaxSize bounds user data, network data and meta-data together. A Kubernetes Secret holds at most 1 MiB.
const MaxSize = 8 << 20

// Keys of the meta-data that Data's own fields fill.
const (
	keyInstanceID    = "instance-id"
	keyLocalHostname = "local-hostname"
)

// Data is what a guest is told. User data and network data are secret: nothing here prints them.
type Data struct {
	// InstanceID is required; see InstanceID.
	InstanceID string
	// LocalHostname is spec.hostname, or else the name of the VM.
	LocalHostname string
	// UserData may be empty; cloud-init still wants the file.
	UserData []byte
	// NetworkData is left out when empty, so that cloud-init falls back to DHCP.
	NetworkData []byte
	// MetaData holds further keys of the meta-data, such as "public-keys" (a list or a map of strings).
	MetaData map[string]any
}

// InstanceID is KubeVirt's: the hostname and the namespace.
func InstanceID(hostname, namespace string) string { return hostname + "." + namespace }

// Build returns the image. The same Data gives the same bytes.
func Build(data Data) ([]byte, error) {
	if data.InstanceID == "" {
		return nil, errors.New("cloud-init data: the instance-id is empty")
	}
	metaData, err := data.metaData()
	if err != nil {
		return nil, err
	}
	if size := len(data.UserData) + len(data.NetworkData) + len(metaData); size > MaxSize {
		return nil, fmt.Errorf("cloud-init data: %s, and at most %s are allowed; have user-data fetch the rest (#include)",
			diskfile.FormatBytes(int64(size)), diskfile.FormatBytes(MaxSize))
	}
	files := []isofs.File{{Name: MetaDataFile, Data: metaData}, {Name: UserDataFile, Data: data.UserData}}
	if len(data.NetworkData) > 0 {
		files = append(files, isofs.File{Name: NetworkConfigFile, Data: data.NetworkData})
	}
	image, err := isofs.Build(VolumeLabel, files)
	if err != nil {
		return nil, fmt.Errorf("building the cloud-init image: %w", err)
	}
	return image, nil
}

// metaData is JSON, as KubeVirt writes it; cloud-init reads it as YAML. json.Marshal sorts keys.
func (d Data) metaData() ([]byte, error) {
	values := maps.Clone(d.MetaData)
	if values == nil {
		values = map[string]any{}
	}
	for _, key := range []string{keyInstanceID, keyLocalHostname} {
		if _, taken := values[key]; taken {
			return nil, fmt.Errorf("cloud-init data: meta-data key %q is set by its own field", key)
		}
	}
	values[keyInstanceID] = d.InstanceID
	if d.LocalHostname != "" {
		values[keyLocalHostname] = d.LocalHostname
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("cloud-init data: encoding the meta-data: %w", err)
	}
	return encoded, nil
}

// WriteFile writes the image to path, whole or not at all, readable by owner only (mode 0600; a nil owner is the user of this process). A
// file that already holds the same bytes is left alone, with whatever owner libvirt gave it meanwhile.
func WriteFile(path string, data Data, owner *diskfile.Owner) (changed bool, err error) {
	image, err := Build(data)
	if err != nil {
		return false, err
	}
	same, err := holds(path, image)
	if err != nil || same {
		return false, err
	}
	// Volatile: the image is made anew at every power-on.
	err = diskfile.Write(path, diskfile.WriteOptions{Mode: 0o600, Owner: owner, Volatile: true}, func(file *os.File) error {
		_, err := file.Write(image)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cloud-init image: %w", err)
	}
	return true, nil
}

// holds reports whether path is a private regular file with these bytes.
func holds(path string, image []byte) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cloud-init image: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 || info.Size() != int64(len(image)) {
		return false, nil
	}
	present, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("cloud-init image: %w", err)
	}
	return bytes.Equal(present, image), nil
}
