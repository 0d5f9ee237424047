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
	r := renderer{address: address, spec: spec}
	identity := Identity{Name: DomainName(address), UUID: strings.ToLower(r.uuid())}
	for i := range spec.Domain.Devices.Interfaces {
		identity.MACs = append(identity.MACs, r.mac(&spec.Domain.Devices.Interfaces[i]))
	}
	return identity
}

// mac returns an interface's address: the manifest's, or one derived from the VM's identity.
func (r *renderer) mac(in *kubevirtv1.Interface) string {
	if in.MacAddress == "" {
		return schemas.MACAddress(r.address, in.Name)
	}
	return strings.ToLower(strings.ReplaceAll(in.MacAddress, "-", ":"))
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
	case volume.CloudInitNoCloud != nil:
		return "cloudInitNoCloud", false
	}
	return "unknown", true
}

// Size returns the number of vCPUs and the memory in bytes that a guest gets.
func Size(spec *kubevirtv1.VirtualMachineInstanceSpec) (vcpus, memory uint) {
	r := renderer{spec: spec}
	return r.vcpus(), r.memory()
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
