// Package cloudinit builds the disk that a guest's cloud-init reads at boot, in the NoCloud format: an ISO 9660 volume with the label
// "cidata" and the files "user-data", "meta-data" and, when there is one, "network-config"
// (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html); or as a config drive, labelled "config-2", with the files
// of OpenStack (https://docs.openstack.org/nova/latest/user/metadata.html). The text of these files is the user's and is passed on
// unread.
//
// The instance-id follows KubeVirt: HOSTNAME.NAMESPACE (see InstanceID). cloud-init runs its per-instance modules once per instance-id, so
// changed user data reaches a guest at its next boot only where cloud-init reads it at every boot (bootcmd, network,
// per-boot scripts), and a disk that is kept does not lose its SSH host keys or users because a comment
// changed. Who wants everything to run again sets another instance-id.
package cloudinit

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

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
	keyPublicKeys    = "public-keys"
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
	// PublicKeys are SSH keys that may log in, a line each.
	PublicKeys []string
	// MetaData holds further keys of the meta-data.
	MetaData map[string]any
}

// InstanceID is KubeVirt's: the hostname and the namespace.
func InstanceID(hostname, namespace string) string { return hostname + "." + namespace }

// Build returns the image. The same Data gives the same bytes.
func Build(data Data) ([]byte, error) {
	files, err := data.Files()
	if err != nil {
		return nil, err
	}
	image, err := isofs.Build(VolumeLabel, files)
	if err != nil {
		return nil, fmt.Errorf("building the cloud-init image: %w", err)
	}
	return image, nil
}

// Files returns what belongs on the NoCloud volume.
func (d Data) Files() ([]isofs.File, error) {
	if d.InstanceID == "" {
		return nil, errors.New("cloud-init data: the instance-id is empty")
	}
	metaData, err := d.metaData()
	if err != nil {
		return nil, err
	}
	files := []isofs.File{{Name: MetaDataFile, Data: metaData}, {Name: UserDataFile, Data: d.UserData}}
	if len(d.NetworkData) > 0 {
		files = append(files, isofs.File{Name: NetworkConfigFile, Data: d.NetworkData})
	}
	return files, checkSize(files)
}

func checkSize(files []isofs.File) error {
	size := 0
	for _, file := range files {
		size += len(file.Data)
	}
	if size > MaxSize {
		return fmt.Errorf("cloud-init data: %s, and at most %s are allowed; have user-data fetch the rest (#include)",
			diskfile.FormatBytes(int64(size)), diskfile.FormatBytes(MaxSize))
	}
	return nil
}

// metaData is JSON, as KubeVirt writes it; cloud-init reads it as YAML. json.Marshal sorts keys.
func (d Data) metaData() ([]byte, error) {
	values := maps.Clone(d.MetaData)
	if values == nil {
		values = map[string]any{}
	}
	for _, key := range []string{keyInstanceID, keyLocalHostname, keyPublicKeys} {
		if _, taken := values[key]; taken {
			return nil, fmt.Errorf("cloud-init data: meta-data key %q is set by its own field", key)
		}
	}
	values[keyInstanceID] = d.InstanceID
	if d.LocalHostname != "" {
		values[keyLocalHostname] = d.LocalHostname
	}
	if len(d.PublicKeys) > 0 {
		values[keyPublicKeys] = numbered(d.PublicKeys)
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		return nil, fmt.Errorf("cloud-init data: encoding the meta-data: %w", err)
	}
	return encoded, nil
}

// numbered names each key by its place, the form that all of cloud-init's sources take.
func numbered(keys []string) map[string]string {
	out := make(map[string]string, len(keys))
	for i, key := range keys {
		out[strconv.Itoa(i)] = key
	}
	return out
}

// WriteFile writes the image to path, whole or not at all, readable by owner only (mode 0600; a nil owner is the user of this process). A
// file that already holds the same bytes is left alone, with whatever owner libvirt gave it meanwhile.
func WriteFile(path string, data Data, owner *diskfile.Owner) (changed bool, err error) {
	image, err := Build(data)
	if err != nil {
		return false, err
	}
	changed, err = diskfile.WriteSame(path, image, owner)
	if err != nil {
		return false, fmt.Errorf("cloud-init image: %w", err)
	}
	return changed, nil
}
