package pods

import (
	"errors"
	"fmt"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/schemas"
)

// refusals gathers what of a machine cannot be carried out in a Pod, by field.
type refusals struct {
	vm  *schemas.VM
	all []error
}

func (r *refusals) add(field, why string) { r.addFor(reasonField, field, why) }

func (r *refusals) addFor(reason, field, why string) {
	r.all = append(r.all, refusal{fmt.Errorf("%s: spec.template.spec.%s: %s", r.vm.Position.Short(), field, why), reason})
}

// refusal is what of a machine is refused, with a word for the reason.
type refusal struct {
	error
	reason string
}

// The reasons: a path of a node that a Pod would need privileges for, devices of a node, or anything else that Pods do not have.
const (
	reasonHostPath   = "host path"
	reasonHostDevice = "host device"
	reasonField      = "field"
)

// Reasons are the words for what an error of Refused says, each once, in order.
func Reasons(err error) []string {
	many, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	var out []string
	for _, one := range many.Unwrap() {
		if found, ok := one.(refusal); ok && !slices.Contains(out, found.reason) { //nolint:errorlint // as Refused made it
			out = append(out, found.reason)
		}
	}
	return out
}

// Refused says what of a machine cannot be carried out in a Pod; nil when everything can.
func Refused(vm *schemas.VM) error {
	r := &refusals{vm: vm}
	spec := vm.Spec()
	for i := range spec.Volumes {
		r.volume(&spec.Volumes[i])
	}
	r.devices(&spec.Domain.Devices)
	r.domain(&spec.Domain)
	return errors.Join(r.all...)
}

func (r *refusals) volume(volume *kubevirtv1.Volume) {
	field := "volumes[" + volume.Name + "]."
	switch {
	case volume.HostDisk != nil:
		r.addFor(reasonHostPath, field+"hostDisk", "a file of one node ties the machine to it; use a persistentVolumeClaim")
	case volume.ServiceAccount != nil:
		r.add(field+"serviceAccount", "the token expires, and a disk that has it cannot be renewed; have the guest log in by itself")
	case volume.DownwardMetrics != nil:
		r.add(field+"downwardMetrics", "figures of the node are told to guests on a libvirt host only; read them in the guest")
	case volume.DataVolume != nil:
		r.filled(volume.Name, field+"dataVolume")
	case volume.PersistentVolumeClaim != nil:
		r.filled(volume.Name, field+"persistentVolumeClaim")
	case volume.Ephemeral != nil:
		r.filled(volume.Name, field+"ephemeral")
	case volume.ContainerDisk != nil && volume.Name == protocol.KernelBoot && kernelBoot(r.vm.Spec()) != nil:
		r.add(field+"containerDisk", "the image of kernelBoot has this name in the Pod; rename the volume")
	}
}

// filled refuses a claim that gitvirt would have to fill.
func (r *refusals) filled(volume, field string) {
	if source := r.vm.Claims[volume].Source; source != nil && source.Blank == nil {
		r.add(field, "claims of a cluster are filled by the cluster; have CDI or a snapshot fill the claim, and name it by persistentVolumeClaim")
	}
}

func (r *refusals) devices(devices *kubevirtv1.Devices) {
	const field = "domain.devices."
	for i := range devices.Interfaces {
		if device := &devices.Interfaces[i]; device.SRIOV != nil {
			r.add(field+"interfaces["+device.Name+"].sriov", "SR-IOV is carried out on a libvirt host only")
		}
	}
	for i := range devices.GPUs {
		r.addFor(reasonHostDevice, field+"gpus["+devices.GPUs[i].Name+"]", "devices of a node are handed over on a libvirt host only: the Pod has no rights to them")
	}
	for i := range devices.HostDevices {
		r.addFor(reasonHostDevice, field+"hostDevices["+devices.HostDevices[i].Name+"]", "devices of a node are handed over on a libvirt host only: the Pod has no rights to them")
	}
	for i := range devices.Filesystems {
		r.add(field+"filesystems["+devices.Filesystems[i].Name+"]", "virtiofsd needs rights that the Pod has not; make the volume a disk")
	}
	for i := range devices.Disks {
		if lun := devices.Disks[i].LUN; lun != nil && lun.Reservation {
			r.add(field+"disks["+devices.Disks[i].Name+"].lun.reservation", "persistent reservations need rights that the Pod has not")
		}
	}
	if devices.DownwardMetrics != nil {
		r.add(field+"downwardMetrics", "figures of the node are told to guests on a libvirt host only; read them in the guest")
	}
	if vsock := devices.AutoattachVSOCK; vsock != nil && *vsock {
		r.add(field+"autoattachVSOCK", "the Pod has no /dev/vhost-vsock; use the network")
	}
	if tpm := devices.TPM; tpm != nil && tpm.Persistent != nil && *tpm.Persistent {
		r.add(field+"tpm.persistent", "the state of a TPM goes with the Pod; leave persistent out")
	}
}

func (r *refusals) domain(domain *kubevirtv1.DomainSpec) {
	if firmware := domain.Firmware; firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil {
		if persistent := firmware.Bootloader.EFI.Persistent; persistent != nil && *persistent {
			r.add("domain.firmware.bootloader.efi.persistent", "UEFI variables go with the Pod; leave persistent out")
		}
	}
	if memory := domain.Memory; memory != nil && memory.Hugepages != nil {
		r.add("domain.memory.hugepages", "huge pages are carried out on a libvirt host only")
	}
	if cpu := domain.CPU; cpu != nil && cpu.DedicatedCPUPlacement {
		r.add("domain.cpu.dedicatedCpuPlacement", "vCPUs are pinned on a libvirt host only; ask for whole CPUs with equal resources.requests and resources.limits, which the "+
			"kubelet's static CPU policy gives to the Pod alone")
	}
	if domain.LaunchSecurity != nil {
		r.add("domain.launchSecurity", "the Pod has no rights to the node's memory encryption")
	}
}
