package pods

import (
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gitvirt/gitvirt/launcher/protocol"
)

// Names of what brings images into the Pod.
const (
	volumeKernel   = "gitvirt-kernel-boot"
	volumeImages   = "gitvirt-images"
	containerSetup = "gitvirt-setup"
	prefixImage    = "gitvirt-image-"
)

// images are the container disks of a Pod, and the image of its kernel: a volume each, where the cluster has such; otherwise a container each,
// which does nothing but hand its file system to the launcher (package launcher/images). Nothing is copied either way.
type images struct {
	pod     *corev1.PodSpec
	options Options
	names   []string
}

// add gives the Pod an image, in the folder name of protocol.ImagesDir.
func (m *images) add(name, reference string, policy corev1.PullPolicy) {
	if m.options.ImageContainers {
		m.names = append(m.names, name)
		m.contain(name, reference, policy)
		return
	}
	volume := name
	if name == protocol.KernelBoot {
		volume = volumeKernel
	}
	m.pod.Volumes = append(m.pod.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
		Image: &corev1.ImageVolumeSource{Reference: reference, PullPolicy: policy},
	}})
	m.mount(&m.pod.Containers[0], volume, path.Join(protocol.ImagesDir, name), true)
}

func (m *images) mount(container *corev1.Container, volume, at string, readOnly bool) {
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: at, ReadOnly: readOnly})
}

// contain adds the container of an image. It is started before the launcher and ends after it.
func (m *images) contain(name, reference string, policy corev1.PullPolicy) {
	if len(m.names) == 1 {
		m.pod.Volumes = append(m.pod.Volumes, corev1.Volume{Name: volumeImages, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		m.mount(&m.pod.Containers[0], volumeImages, protocol.ImagesDir, false)
		setup := m.container(containerSetup, m.options.Image)
		setup.Args = []string{"-install-to=" + path.Join(protocol.ImageShareDir, protocol.ImageProgram)}
		m.pod.InitContainers = append(m.pod.InitContainers, setup)
	}
	always := corev1.ContainerRestartPolicyAlways
	out := m.container(prefixImage+strconv.Itoa(len(m.names)), reference) // the name of a volume may be as long as a container's
	out.ImagePullPolicy, out.RestartPolicy = policy, &always
	out.Command = []string{path.Join(protocol.ImageShareDir, protocol.ImageProgram), "-share-at=" + path.Join(protocol.ImageShareDir, name+protocol.ImageSocket)}
	m.pod.InitContainers = append(m.pod.InitContainers, out)
}

// container is one that needs next to nothing.
func (m *images) container(name, image string) corev1.Container {
	few := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")}
	out := corev1.Container{
		Name: name, Image: image, Resources: corev1.ResourceRequirements{Requests: few, Limits: corev1.ResourceList{corev1.ResourceMemory: few[corev1.ResourceMemory]}},
		SecurityContext: m.pod.Containers[0].SecurityContext,
	}
	m.mount(&out, volumeImages, protocol.ImageShareDir, false)
	return out
}

// finish tells the launcher which images are handed to it.
func (m *images) finish() {
	if len(m.names) > 0 {
		compute := &m.pod.Containers[0]
		compute.Args = append(compute.Args, "-images="+strings.Join(m.names, ","))
	}
}
