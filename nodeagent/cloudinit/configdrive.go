package cloudinit

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
)

// The names that cloud-init and cloudbase-init look for on a config drive.
const (
	DriveLabel           = "config-2"
	driveFolder          = "openstack/latest/"
	DriveMetaDataFile    = driveFolder + "meta_data.json"
	DriveUserDataFile    = driveFolder + "user_data"
	DriveNetworkDataFile = driveFolder + "network_data.json"
)

// Drive is what a guest is told through a config drive. User data and network data are secret: nothing here prints them.
type Drive struct {
	// InstanceID is required; KubeVirt's is NAME.NAMESPACE.
	InstanceID string
	// UUID is the machine's firmware UUID, which cloud-init takes for the instance-id.
	UUID string
	// Hostname is spec.hostname, or else the name of the VM.
	Hostname string
	// InstanceType is the name of the instancetype; empty for none.
	InstanceType string
	// UserData and NetworkData are left out when empty.
	UserData    []byte
	NetworkData []byte
	// PublicKeys are SSH keys that may log in, a line each.
	PublicKeys []string
	// Devices are those that the manifest tags.
	Devices []Device
}

// Device tells a guest which of its devices has a tag.
type Device struct {
	// Type is nic, disk or hostdev.
	Type string `json:"type"`
	// Bus is pci, scsi, usb and so on; Address is the place on it, empty when it is not known.
	Bus     string `json:"bus,omitempty"`
	Address string `json:"address,omitempty"`
	// MAC belongs to a nic, Serial to a disk.
	MAC    string   `json:"mac,omitempty"`
	Serial string   `json:"serial,omitempty"`
	Tags   []string `json:"tags"`
}

// Files returns what belongs on the config drive.
func (d Drive) Files() ([]isofs.File, error) {
	if d.InstanceID == "" {
		return nil, errors.New("config drive: the instance-id is empty")
	}
	metaData, err := json.Marshal(struct {
		InstanceType  string            `json:"instance_type,omitempty"`
		InstanceID    string            `json:"instance_id"`
		LocalHostname string            `json:"local_hostname,omitempty"`
		Hostname      string            `json:"hostname,omitempty"`
		UUID          string            `json:"uuid,omitempty"`
		Devices       []Device          `json:"devices,omitempty"`
		PublicKeys    map[string]string `json:"public_keys,omitempty"`
	}{d.InstanceType, d.InstanceID, d.Hostname, d.Hostname, d.UUID, d.Devices, numbered(d.PublicKeys)})
	if err != nil {
		return nil, fmt.Errorf("config drive: encoding the meta-data: %w", err)
	}
	files := []isofs.File{{Name: DriveMetaDataFile, Data: metaData}}
	if len(d.UserData) > 0 {
		files = append(files, isofs.File{Name: DriveUserDataFile, Data: d.UserData})
	}
	if len(d.NetworkData) > 0 {
		files = append(files, isofs.File{Name: DriveNetworkDataFile, Data: d.NetworkData})
	}
	return files, checkSize(files)
}
