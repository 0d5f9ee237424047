package pods

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

// The Pod's volumes that are no volumes of the machine. Names of volumes of a machine are DNS labels and have no dots.
const (
	volumeRuntime = protocol.RuntimeVolume
	volumeDisks   = "gitvirt-disks"
	volumeLock    = "gitvirt-lock"
	volumeSecret  = "gitvirt-secret"
)

// markerPath is where the empty file of the Secret is mounted.
const markerPath = "/run/gitvirt-for-the-agent"

// lockPath is where libvirt notes who has a console (/var/lock): on the image's read-only root it would refuse every console.
const lockPath = "/run/lock"

// volumes gives the Pod what the machine's volumes need. What the agent makes of Secrets, ConfigMaps and user data lies among the disks:
// the Secret of the machine is a volume of which the container mounts an empty file and nothing else, so that the kubelet hands the rest to the
// agent of its node, which needs no right to read Secrets.
func volumes(pod *corev1.PodSpec, vm *schemas.VM, options Options) {
	compute := &pod.Containers[0]
	add := func(volume corev1.Volume, mount corev1.VolumeMount) {
		mount.Name = volume.Name
		pod.Volumes = append(pod.Volumes, volume)
		compute.VolumeMounts = append(compute.VolumeMounts, mount)
	}
	spec := vm.Spec()
	add(corev1.Volume{Name: volumeRuntime, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.VolumeMount{MountPath: protocol.Dir})
	add(corev1.Volume{Name: volumeDisks, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.VolumeMount{MountPath: protocol.DisksDir})
	add(corev1.Volume{Name: volumeSecret, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: Name(vm.Address)}}},
		corev1.VolumeMount{MountPath: markerPath, SubPath: podapi.SecretMarker, ReadOnly: true})
	add(corev1.Volume{Name: volumeLock, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		corev1.VolumeMount{MountPath: lockPath})
	disks := &images{pod: pod, options: options}
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		switch {
		case volume.ContainerDisk != nil:
			disk := volume.ContainerDisk
			disks.add(volume.Name, disk.Image, disk.ImagePullPolicy)
			pullSecret(pod, disk.ImagePullSecret)
		case volume.PersistentVolumeClaim != nil, volume.DataVolume != nil, volume.Ephemeral != nil:
			claim(pod, vm, volume, add)
		}
	}
	if boot := kernelBoot(spec); boot != nil {
		disks.add(protocol.KernelBoot, boot.Image, boot.ImagePullPolicy)
		pullSecret(pod, boot.ImagePullSecret)
	}
	disks.finish()
}

func kernelBoot(spec *kubevirtv1.VirtualMachineInstanceSpec) *kubevirtv1.KernelBootContainer {
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil {
		return firmware.KernelBoot.Container
	}
	return nil
}

// pullSecret names a Secret with credentials of a registry, once.
func pullSecret(pod *corev1.PodSpec, name string) {
	for _, known := range pod.ImagePullSecrets {
		if known.Name == name {
			return
		}
	}
	if name != "" {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
}

// claim gives the Pod a claim: as a device, or as a folder. An ephemeral volume only reads it.
func claim(pod *corev1.PodSpec, vm *schemas.VM, volume *kubevirtv1.Volume, add func(corev1.Volume, corev1.VolumeMount)) {
	found := vm.Claims[volume.Name]
	readOnly := volume.Ephemeral != nil
	source := corev1.Volume{Name: volume.Name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(volume), ReadOnly: readOnly},
	}}
	if found.Block {
		pod.Volumes = append(pod.Volumes, source)
		pod.Containers[0].VolumeDevices = append(pod.Containers[0].VolumeDevices, corev1.VolumeDevice{
			Name: volume.Name, DevicePath: path.Join(protocol.DevicesDir, volume.Name),
		})
		return
	}
	add(source, corev1.VolumeMount{MountPath: path.Join(protocol.ClaimsDir, volume.Name), ReadOnly: readOnly})
}

func claimName(volume *kubevirtv1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.DataVolume != nil:
		return volume.DataVolume.Name
	case volume.Ephemeral.PersistentVolumeClaim != nil:
		return volume.Ephemeral.PersistentVolumeClaim.ClaimName
	}
	return ""
}
