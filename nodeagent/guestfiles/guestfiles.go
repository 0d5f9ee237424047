// Package guestfiles turns the volumes of a manifest that are made of text into files: cloud-init's data, ConfigMaps, Secrets, the
// downward API, sysprep's answers. It decides names and contents as KubeVirt does, and writes them as what the machine
// uses them for: a disk (an ISO image), a shared file system (a folder), or an ACPI table.
//
// The contents are the guest's secrets. They go into files that only their owner can reach, and into no message.
package guestfiles

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit"
	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
	"github.com/gitvirt/gitvirt/schemas"
)

// Labels of volumes.
const (
	// DefaultLabel is KubeVirt's for a volume that names none.
	DefaultLabel = "cfgdata"
	// SysprepLabel is KubeVirt's, too; Windows looks at the files only.
	SysprepLabel = "unattendCD"
)

// Machine is what the files are made of.
type Machine struct {
	Address schemas.Address
	// Made is the address that the domain was made under, which is another one when the machine was renamed; zero for Address. To the guest
	// it is the same instance.
	Made   schemas.Address
	Object *kubevirtv1.VirtualMachine
	// Contents are what references resolved to, by the keys of schemas.VM.Contents.
	Contents map[string]map[string][]byte
	// Definition is the domain's XML, where addresses of devices are read; empty when there is none yet.
	Definition string
}

func (m Machine) spec() *kubevirtv1.VirtualMachineInstanceSpec { return &m.Object.Spec.Template.Spec }

// Set is the content of one volume.
type Set struct {
	// Label is that of the disk.
	Label string
	Files []isofs.File
}

// Of returns the content of a volume that is made of files.
func Of(m Machine, source kubevirtv1.Volume) (Set, error) {
	switch {
	case source.CloudInitNoCloud != nil:
		return m.noCloud(source)
	case source.CloudInitConfigDrive != nil:
		return m.configDrive(source)
	case source.ConfigMap != nil:
		return m.keys(source.Name, "ConfigMap "+source.ConfigMap.Name, source.ConfigMap.VolumeLabel, source.ConfigMap.Optional)
	case source.Secret != nil:
		return m.keys(source.Name, "Secret "+source.Secret.SecretName, source.Secret.VolumeLabel, source.Secret.Optional)
	case source.Sysprep != nil:
		return m.sysprep(source)
	case source.DownwardAPI != nil:
		return m.downwardAPI(source.DownwardAPI)
	case source.ServiceAccount != nil:
		return m.serviceAccount(source.Name)
	}
	return Set{}, errors.New("this kind of volume is not made of files")
}

// keys are the files of a Secret or a ConfigMap. One that is optional and not there gives an empty volume.
func (m Machine) keys(volume, what, label string, optional *bool) (Set, error) {
	out := Set{Label: label}
	if label == "" {
		out.Label = DefaultLabel
	}
	content, found := m.Contents[schemas.VolumeContent(volume)]
	if !found && (optional == nil || !*optional) {
		return out, fmt.Errorf("the %s is not there; add it to the repository, or set optional", what)
	}
	for _, key := range slices.Sorted(maps.Keys(content)) {
		// A key is one name: it never leads into another directory.
		if strings.Contains(key, "/") || strings.Trim(key, ".") == "" {
			return out, fmt.Errorf("the key %q of the %s is no file name", key, what)
		}
		out.Files = append(out.Files, isofs.File{Name: key, Data: content[key]})
	}
	return out, nil
}

// serviceAccount has the file that a host can fill in, the namespace. There is no API server here that a token would be for; a
// token and its authority appear when the content brings them.
func (m Machine) serviceAccount(volume string) (Set, error) {
	optional := true
	out, err := m.keys(volume, "token of the service account", "", &optional)
	for _, file := range out.Files {
		if file.Name == corev1.ServiceAccountNamespaceKey {
			return out, err
		}
	}
	out.Files = append(out.Files, isofs.File{Name: corev1.ServiceAccountNamespaceKey, Data: []byte(m.Address.Namespace)})
	return out, err
}

// sysprep needs one of the names that Windows Setup looks for.
func (m Machine) sysprep(source kubevirtv1.Volume) (Set, error) {
	what := "ConfigMap"
	if source.Sysprep.Secret != nil {
		what = "Secret"
	}
	out, err := m.keys(source.Name, what+" of the sysprep volume", SysprepLabel, nil)
	if err != nil {
		return out, err
	}
	for _, file := range out.Files {
		if name := strings.ToLower(file.Name); name == "autounattend.xml" || name == "unattend.xml" {
			return out, nil
		}
	}
	return out, fmt.Errorf("the %s has neither a key autounattend.xml nor unattend.xml", what)
}

// Table returns the content of an ACPI table, slic or msdm: that of the key slic.bin or msdm.bin, or of the only key.
func Table(m Machine, source kubevirtv1.Volume) ([]byte, error) {
	acpi := m.spec().Domain.Firmware.ACPI
	if source.Secret == nil {
		return nil, errors.New("an ACPI table needs a secret volume")
	}
	if acpi.SlicNameRef == acpi.MsdmNameRef {
		return nil, errors.New("slicNameRef and msdmNameRef name the same volume; use a Secret for each table")
	}
	key := "slic.bin"
	if acpi.MsdmNameRef == source.Name {
		key = "msdm.bin"
	}
	content := m.Contents[schemas.VolumeContent(source.Name)]
	table, found := content[key]
	if !found && len(content) == 1 {
		for _, table = range content {
			found = true
		}
	}
	if !found || len(table) == 0 {
		return nil, fmt.Errorf("the Secret %s needs a key %s that holds the table", source.Secret.SecretName, key)
	}
	return table, nil
}

// made is the address that everything derives from that must stay as it is.
func (m Machine) made() schemas.Address {
	if m.Made.IsZero() {
		return m.Address
	}
	return m.Made
}

// instance is the name that cloud-init's instance-id of a NoCloud disk is made of.
func (m Machine) instance() string { return cmp.Or(m.spec().Hostname, m.made().Name) }

// hostname is spec.hostname, or else the name of the VM.
func (m Machine) hostname() string {
	if name := m.spec().Hostname; name != "" {
		return name
	}
	return m.Address.Name
}

func (m Machine) noCloud(source kubevirtv1.Volume) (Set, error) {
	in := source.CloudInitNoCloud
	data := cloudinit.Data{InstanceID: cloudinit.InstanceID(m.instance(), m.made().Namespace), LocalHostname: m.hostname()}
	var err error
	if data.UserData, data.NetworkData, err = m.cloudInit(source.Name, in.UserData, in.UserDataBase64, in.NetworkData, in.NetworkDataBase64); err != nil {
		return Set{}, err
	}
	data.PublicKeys = m.publicKeys(func(method kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod) bool {
		return method.NoCloud != nil
	})
	files, err := data.Files()
	return Set{Label: cloudinit.VolumeLabel, Files: files}, err
}

func (m Machine) configDrive(source kubevirtv1.Volume) (Set, error) {
	in := source.CloudInitConfigDrive
	drive := cloudinit.Drive{
		InstanceID: cloudinit.InstanceID(m.made().Name, m.made().Namespace), UUID: m.uuid(), Hostname: m.hostname(),
		InstanceType: m.instancetype(), Devices: m.taggedDevices(),
	}
	var err error
	if drive.UserData, drive.NetworkData, err = m.cloudInit(source.Name, in.UserData, in.UserDataBase64, in.NetworkData, in.NetworkDataBase64); err != nil {
		return Set{}, err
	}
	drive.PublicKeys = m.publicKeys(func(method kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod) bool {
		return method.ConfigDrive != nil
	})
	files, err := drive.Files()
	return Set{Label: cloudinit.DriveLabel, Files: files}, err
}

// uuid is that of the machine's firmware.
func (m Machine) uuid() string {
	if firmware := m.spec().Domain.Firmware; firmware != nil && firmware.UUID != "" {
		return strings.ToLower(string(firmware.UUID))
	}
	return schemas.FirmwareUUID(m.made())
}

func (m Machine) instancetype() string {
	if m.Object.Spec.Instancetype != nil {
		return m.Object.Spec.Instancetype.Name
	}
	return ""
}

// publicKeys are the keys of the accessCredentials that reach the guest in a certain way, a line each.
func (m Machine) publicKeys(reaches func(kubevirtv1.SSHPublicKeyAccessCredentialPropagationMethod) bool) []string {
	var out []string
	for i, credential := range m.spec().AccessCredentials {
		if credential.SSHPublicKey == nil || !reaches(credential.SSHPublicKey.PropagationMethod) {
			continue
		}
		content := m.Contents[schemas.CredentialContent(i)]
		for _, name := range slices.Sorted(maps.Keys(content)) {
			for line := range strings.Lines(string(content[name])) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					out = append(out, line)
				}
			}
		}
	}
	return out
}
