package domainxml

import (
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// Identity is what must be unique on a host.
type Identity struct {
	Name string
	UUID string
	MACs []string
}

// IdentityOf returns the name, UUID and MAC addresses that a VM's domain has, in canonical lower-case form.
func IdentityOf(address schemas.Address, spec *kubevirtv1.VirtualMachineInstanceSpec) Identity {
	identity := Identity{Name: DomainName(address), UUID: uuidOf(address, spec)}
	for i := range spec.Domain.Devices.Interfaces {
		if in := &spec.Domain.Devices.Interfaces[i]; in.State != kubevirtv1.InterfaceStateAbsent && in.SRIOV == nil {
			identity.MACs = append(identity.MACs, macOf(address, in))
		}
	}
	return identity
}

// macOf returns an interface's address: the manifest's, or one derived from the VM's identity.
func macOf(address schemas.Address, in *kubevirtv1.Interface) string {
	if in.MacAddress == "" {
		return schemas.MACAddress(address, in.Name)
	}
	return strings.ToLower(strings.ReplaceAll(in.MacAddress, "-", ":"))
}

// cardOf returns the address that an interface's card has in the guest: that of its tap device in a Pod, or macOf.
func (h *Host) cardOf(address schemas.Address, in *kubevirtv1.Interface) string {
	if tap := h.Assignment.tap(in.Name); tap != nil {
		return tap.MAC
	}
	return macOf(address, in)
}

// tap returns the device of an interface in the VM's Pod, nil where there is none.
func (a *Assignment) tap(name string) *Tap {
	for i := range a.Taps {
		if a.Taps[i].Name == name {
			return &a.Taps[i]
		}
	}
	return nil
}

// VolumeKind returns the name of a volume's source in the manifest, and whether its data outlives the VM.
func VolumeKind(volume kubevirtv1.Volume) (kind string, keep bool) {
	switch {
	case volume.ContainerDisk != nil:
		return "containerDisk", false
	case volume.EmptyDisk != nil:
		return "emptyDisk", true
	case volume.HostDisk != nil:
		return "hostDisk", true
	case volume.PersistentVolumeClaim != nil:
		return "persistentVolumeClaim", true
	case volume.DataVolume != nil:
		return "dataVolume", true
	case volume.Ephemeral != nil:
		return "ephemeral", false
	case volume.CloudInitNoCloud != nil:
		return "cloudInitNoCloud", false
	case volume.CloudInitConfigDrive != nil:
		return "cloudInitConfigDrive", false
	case volume.ConfigMap != nil:
		return "configMap", false
	case volume.Secret != nil:
		return "secret", false
	case volume.ServiceAccount != nil:
		return "serviceAccount", false
	case volume.DownwardAPI != nil:
		return "downwardAPI", false
	case volume.DownwardMetrics != nil:
		return "downwardMetrics", false
	case volume.Sysprep != nil:
		return "sysprep", false
	}
	return "unknown", true
}

// Size returns the number of vCPUs and the memory in bytes that a guest gets.
func Size(spec *kubevirtv1.VirtualMachineInstanceSpec) (vcpus, memory uint) {
	return topologyOf(spec).vcpus(), uint(memoryOf(spec))
}

// MACs returns the MAC addresses of a domain's interfaces, in lower case; none for a document that is not readable.
func MACs(document string) []string {
	domain, err := parseFast(document)
	if err != nil {
		return nil
	}
	devices := domain.child("devices")
	if devices == nil {
		return nil
	}
	var out []string
	for _, device := range devices.children {
		if mac := device.child("mac").get("address"); device.name == "interface" && mac != "" {
			out = append(out, strings.ToLower(mac))
		}
	}
	return out
}
