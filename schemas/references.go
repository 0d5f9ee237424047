package schemas

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// reference is something a machine names that other objects hold. References are gathered when the machine is checked, so
// that Assemble need not look into it.
type reference struct {
	// address is that of the object; the kind of a claim is that of the volume, PersistentVolumeClaim or DataVolume, and
	// each may be what the other makes. A device has the kind kindDevice and the name of its resource.
	address  Address
	path     string
	position Position
	// use is the key in VM.Contents, VM.Claims or VM.HostDevices.
	use string
	// keys are those of which the content must have one; empty for all of it. The value is then kept as the key as.
	keys []string
	as   string
	// anyOf are keys of which the content must have one, although all of it is used.
	anyOf []string
	// files says that the guest sees the keys as files.
	files bool
	// optional content may be missing.
	optional bool
	// shared says that the machine takes part with others in a claim: it only reads, or its disk is shareable.
	shared bool
	// device says that a network is that of an SR-IOV interface, whose device comes from the network's resource.
	device bool
}

// kindDevice stands for the kind in references to resources that the Fleet permits.
const kindDevice = "hostDevice"

// references gathers what a machine refers to.
func (c *checker) references(spec *kubevirtv1.VirtualMachineInstanceSpec) []reference {
	g := gatherer{checker: c, disks: spec.Domain.Devices.Disks}
	for i := range spec.Volumes {
		g.volume(&spec.Volumes[i], i)
	}
	for i := range spec.AccessCredentials {
		credential := &spec.AccessCredentials[i]
		if ssh := credential.SSHPublicKey; ssh != nil && ssh.Source.Secret != nil {
			g.secret(ssh.Source.Secret.SecretName, CredentialContent(i), "accessCredentials", i, "sshPublicKey", "source", "secret", "secretName")
		}
		if password := credential.UserPassword; password != nil && password.Source.Secret != nil {
			g.secret(password.Source.Secret.SecretName, CredentialContent(i), "accessCredentials", i, "userPassword", "source", "secret", "secretName")
		}
	}
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		g.pullSecret(firmware.KernelBoot.Container.ImagePullSecret, "domain", "firmware", "kernelBoot", "container", "imagePullSecret")
	}
	devices := &spec.Domain.Devices
	for i := range devices.GPUs {
		g.device(devices.GPUs[i].DeviceName, devices.GPUs[i].Name, "domain", "devices", "gpus", i, "deviceName")
	}
	for i := range devices.HostDevices {
		g.device(devices.HostDevices[i].DeviceName, devices.HostDevices[i].Name, "domain", "devices", "hostDevices", i, "deviceName")
	}
	for i := range spec.Networks {
		g.network(&spec.Networks[i], i, devices.Interfaces)
	}
	if spec.Subdomain != "" {
		g.add(reference{address: Address{Kind: KindService, Name: spec.Subdomain}}, "subdomain")
	}
	return g.references
}

type gatherer struct {
	*checker
	disks      []kubevirtv1.Disk
	references []reference
}

// mayShare reports whether the disk of a volume only reads it, or says itself that others may write.
func (g *gatherer) mayShare(volume string) bool {
	for i := range g.disks {
		if d := &g.disks[i]; d.Name == volume {
			return d.Shareable != nil && *d.Shareable || d.Disk != nil && d.Disk.ReadOnly ||
				d.LUN != nil && d.LUN.ReadOnly || d.CDRom != nil && (d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly)
		}
	}
	return false
}

func (g *gatherer) add(r reference, path ...any) {
	if r.address.Name == "" {
		return
	}
	if r.address.Namespace == "" {
		r.address.Namespace = g.address.Namespace
	}
	full := g.in(path...)
	r.path, r.position = pathString(g.prefix, elements(full)), g.position(locate(g.root, full))
	g.references = append(g.references, r)
}

func (g *gatherer) secret(name, use string, path ...any) {
	g.add(reference{address: Address{Kind: KindSecret, Name: name}, use: use}, path...)
}

// pullSecret refers to the credentials of a registry; several images may share them.
func (g *gatherer) pullSecret(name string, path ...any) {
	for i := range g.references {
		if g.references[i].use == PullSecretContent(name) {
			return
		}
	}
	g.add(reference{
		address: Address{Kind: KindSecret, Name: name}, use: PullSecretContent(name), anyOf: []string{".dockerconfigjson", ".dockercfg"},
	}, path...)
}

func (g *gatherer) device(resource, name string, path ...any) {
	g.add(reference{address: Address{Kind: kindDevice, Name: resource}, use: name}, path...)
}

func (g *gatherer) volume(v *kubevirtv1.Volume, i int) {
	in := func(parts ...any) []any { return append(at("volumes", i), parts...) }
	claim := func(kind, name string, readOnly bool, path ...any) {
		g.add(reference{address: Address{Kind: kind, Name: name}, use: v.Name, shared: readOnly || g.mayShare(v.Name)}, in(path...)...)
	}
	on := func(flag *bool) bool { return flag != nil && *flag }
	switch {
	case v.CloudInitNoCloud != nil:
		source := v.CloudInitNoCloud
		g.cloudInit(v.Name, nameOfLocal(source.UserDataSecretRef), nameOfLocal(source.NetworkDataSecretRef), in("cloudInitNoCloud"))
	case v.CloudInitConfigDrive != nil:
		source := v.CloudInitConfigDrive
		g.cloudInit(v.Name, nameOfLocal(source.UserDataSecretRef), nameOfLocal(source.NetworkDataSecretRef), in("cloudInitConfigDrive"))
	case v.Secret != nil:
		g.add(reference{address: Address{Kind: KindSecret, Name: v.Secret.SecretName}, use: VolumeContent(v.Name), files: true, optional: on(v.Secret.Optional)},
			in("secret", "secretName")...)
	case v.ConfigMap != nil:
		g.add(reference{address: Address{Kind: KindConfigMap, Name: v.ConfigMap.Name}, use: VolumeContent(v.Name), files: true, optional: on(v.ConfigMap.Optional)},
			in("configMap", "name")...)
	case v.Sysprep != nil:
		answers := []string{"autounattend.xml", "unattend.xml", "Autounattend.xml", "Unattend.xml"}
		if ref := v.Sysprep.Secret; ref != nil {
			g.add(reference{address: Address{Kind: KindSecret, Name: ref.Name}, use: VolumeContent(v.Name), files: true, anyOf: answers}, in("sysprep", "secret", "name")...)
		}
		if ref := v.Sysprep.ConfigMap; ref != nil {
			g.add(reference{address: Address{Kind: KindConfigMap, Name: ref.Name}, use: VolumeContent(v.Name), files: true, anyOf: answers}, in("sysprep", "configMap", "name")...)
		}
	case v.PersistentVolumeClaim != nil:
		claim(KindPersistentVolumeClaim, v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly, "persistentVolumeClaim", "claimName")
	case v.DataVolume != nil:
		claim(KindDataVolume, v.DataVolume.Name, false, "dataVolume", "name")
	case v.Ephemeral != nil && v.Ephemeral.PersistentVolumeClaim != nil:
		claim(KindPersistentVolumeClaim, v.Ephemeral.PersistentVolumeClaim.ClaimName, true, "ephemeral", "persistentVolumeClaim", "claimName")
	case v.ContainerDisk != nil:
		g.pullSecret(v.ContainerDisk.ImagePullSecret, in("containerDisk", "imagePullSecret")...)
	}
}

// cloudInit refers to user data and network data in Secrets. The keys are KubeVirt's.
func (g *gatherer) cloudInit(volume, user, network string, path []any) {
	g.add(reference{
		address: Address{Kind: KindSecret, Name: user}, use: VolumeContent(volume), keys: []string{"userdata", "userData"}, as: ContentUserData,
	}, append(path[:len(path):len(path)], "secretRef", "name")...)
	g.add(reference{
		address: Address{Kind: KindSecret, Name: network}, use: VolumeContent(volume), keys: []string{"networkdata", "networkData"}, as: ContentNetworkData,
	}, append(path[:len(path):len(path)], "networkDataSecretRef", "name")...)
}

// network refers to the NetworkAttachmentDefinition of a network, NAME or NAMESPACE/NAME.
func (g *gatherer) network(n *kubevirtv1.Network, i int, interfaces []kubevirtv1.Interface) {
	if n.Multus == nil {
		return
	}
	r := reference{use: n.Name}
	r.address = Address{Kind: KindNetwork, Name: n.Multus.NetworkName}
	if namespace, name, ok := strings.Cut(n.Multus.NetworkName, "/"); ok {
		r.address.Namespace, r.address.Name = namespace, name
	}
	for j := range interfaces {
		r.device = r.device || interfaces[j].Name == n.Name && interfaces[j].SRIOV != nil
	}
	g.add(r, "networks", i, "multus", "networkName")
}

func nameOfLocal(ref *corev1.LocalObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Name
}
