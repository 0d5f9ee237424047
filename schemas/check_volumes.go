package schemas

import (
	"fmt"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// maxCloudInit bounds inline cloud-init data, in bytes. KubeVirt stops at 2048 because every object is kept in etcd
// and sent to many watchers; here the data goes from git onto an ISO image, so there is room for real scripts.
const maxCloudInit = 1 << 20

// maxSerial bounds serial numbers, as in KubeVirt.
const maxSerial = 256

func (c *checker) checkSerial(path func() []any, serial string) {
	switch {
	case serial == "":
	case len(serial) > maxSerial:
		c.fail(path(), fmt.Sprintf("%d characters long, at most %d are allowed", len(serial), maxSerial), "shorten it")
	case !isToken(serial):
		c.fail(path(), quoteValue(serial)+" holds characters other than A-Z a-z 0-9 _ . + -", "use only those")
	}
}

func (c *checker) checkVolumes(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	c.checkUnique("volumes", len(spec.Volumes), func(i int) string { return spec.Volumes[i].Name }, labelProblem, "volumes")
	for i := range spec.Volumes {
		volume := &spec.Volumes[i]
		switch sources := volumeSources(volume); len(sources) {
		case 1:
		case 0:
			c.fail(c.in("volumes", i), "the volume has no source", "add one, such as containerDisk or emptyDisk")
		default:
			c.fail(c.in("volumes", i), "the volume has more than one source: "+strings.Join(sources, ", "), "keep one")
		}
		switch {
		case volume.ContainerDisk != nil:
			c.checkContainerDisk(i, volume.ContainerDisk)
		case volume.HostDisk != nil:
			c.checkHostDisk(i, volume.HostDisk, spec)
		case volume.EmptyDisk != nil:
			if capacity := &volume.EmptyDisk.Capacity; capacity.Sign() <= 0 || !wholeBytes(capacity) {
				c.checkSize(c.in("volumes", i, "emptyDisk", "capacity"), capacity, "disk space")
			}
		case volume.CloudInitNoCloud != nil:
			c.checkCloudInit(i, "cloudInitNoCloud", volume.CloudInitNoCloud)
		case volume.CloudInitConfigDrive != nil:
			drive := kubevirtv1.CloudInitNoCloudSource(*volume.CloudInitConfigDrive)
			c.checkCloudInit(i, "cloudInitConfigDrive", &drive)
		case volume.DownwardAPI != nil:
			c.checkDownwardAPI(i, volume.DownwardAPI)
		default:
			c.checkVolumeReference(i, volume)
		}
	}
	c.checkSingleVolumes(spec)
}

// volumeSources lists the sources that a volume names.
func volumeSources(v *kubevirtv1.Volume) []string {
	sources := make([]string, 0, 2)
	add := func(name string, set bool) {
		if set {
			sources = append(sources, name)
		}
	}
	add("cloudInitConfigDrive", v.CloudInitConfigDrive != nil)
	add("cloudInitNoCloud", v.CloudInitNoCloud != nil)
	add("configMap", v.ConfigMap != nil)
	add("containerDisk", v.ContainerDisk != nil)
	add("containerPath", v.ContainerPath != nil)
	add("dataVolume", v.DataVolume != nil)
	add("downwardAPI", v.DownwardAPI != nil)
	add("downwardMetrics", v.DownwardMetrics != nil)
	add("emptyDisk", v.EmptyDisk != nil)
	add("ephemeral", v.Ephemeral != nil)
	add("hostDisk", v.HostDisk != nil)
	add("memoryDump", v.MemoryDump != nil)
	add("persistentVolumeClaim", v.PersistentVolumeClaim != nil)
	add("secret", v.Secret != nil)
	add("serviceAccount", v.ServiceAccount != nil)
	add("sysprep", v.Sysprep != nil)
	return sources
}

// labelProblem says why s is not a DNS label, as which volumes and disks are named in KubeVirt; "" when it is.
func labelProblem(s string) string { return nameProblem(s, 63, false) }

// checkUnique reports entries of a list of the spec that have no name, or one that is wrong or was taken before.
func (c *checker) checkUnique(what string, n int, name func(int) string, wrong func(string) string, path ...any) {
	for i := range n {
		if name(i) == "" {
			c.fail(c.in(append(path, i, "name")...), "no name", "give it a name")
			continue
		}
		if problem := wrong(name(i)); problem != "" && c.wasGiven(c.in(append(path, i)...)) { // not a disk that is named after a volume
			c.fail(c.in(append(path, i, "name")...), problem, "use lower case letters, digits and dashes")
		}
		for j := range i {
			if name(j) == name(i) {
				first := locate(c.root, c.in(append(path, j, "name")...))
				c.fail(c.in(append(path, i, "name")...), fmt.Sprintf("two %s are named %s; the first is at line %d", what, quoteValue(name(i)), c.position(first).Line), "rename one")
				break
			}
		}
	}
}

func (c *checker) checkContainerDisk(i int, disk *kubevirtv1.ContainerDiskSource) {
	in := func(field string) []any { return c.in("volumes", i, "containerDisk", field) }
	if disk.Image == "" {
		c.fail(in("image"), "no image", "name the image that holds the disk")
	} else if problem := imageProblem(disk.Image); problem != "" {
		c.fail(in("image"), problem, "write it as registry/name:tag")
	}
	if disk.Path != "" {
		if problem := pathProblem(disk.Path); problem != "" {
			c.fail(in("path"), problem, "write the absolute path of the file in the image")
		}
	}
	oneOf(c, func() []any { return in("imagePullPolicy") }, disk.ImagePullPolicy, "Always", "IfNotPresent", "Never")
	c.checkReference(func() []any { return in("imagePullSecret") }, "Secret", disk.ImagePullSecret)
}

func (c *checker) checkHostDisk(i int, disk *kubevirtv1.HostDisk, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	in := func(field string) []any { return c.in("volumes", i, "hostDisk", field) }
	if disk.Path == "" {
		c.fail(in("path"), "no path", "write the absolute path of the disk image on the host")
	} else if problem := pathProblem(disk.Path); problem != "" {
		c.fail(in("path"), problem, "write the absolute path of the disk image on the host")
	} else {
		shared := false
		for j := range spec.Domain.Devices.Disks {
			if d := &spec.Domain.Devices.Disks[j]; d.Name == spec.Volumes[i].Name {
				shared = d.Shareable != nil && *d.Shareable || d.Disk != nil && d.Disk.ReadOnly ||
					d.LUN != nil && d.LUN.ReadOnly || d.CDRom != nil && (d.CDRom.ReadOnly == nil || *d.CDRom.ReadOnly)
			}
		}
		for _, other := range c.holdings {
			if other.kind == holdsHostDisk && other.value == disk.Path && !(other.shared && shared) {
				c.fail(in("path"), fmt.Sprintf("two volumes of this machine use %s; the first is at line %d", quoteValue(disk.Path), other.position.Line), "use one volume")
			}
		}
		c.hold(holdsHostDisk, disk.Path, in("path"), shared)
	}
	create := disk.Type == kubevirtv1.HostDiskExistsOrCreate
	switch {
	case disk.Type == "":
		c.fail(in("type"), "no type", "write Disk when the image exists, DiskOrCreate when it may have to be made")
	case !create:
		oneOf(c, func() []any { return in("type") }, disk.Type, "Disk", "DiskOrCreate")
	}
	given := c.wasGiven(in("capacity"))
	switch {
	case create && !given:
		c.fail(in("capacity"), "no capacity: a disk that has to be made needs a size", "write capacity, such as 10Gi")
	case create:
		c.checkSize(in("capacity"), &disk.Capacity, "disk space")
	case disk.Type == kubevirtv1.HostDiskExists && disk.Capacity.Sign() != 0:
		c.fail(in("capacity"), "a disk that exists has its size already", "remove capacity, or use type DiskOrCreate")
	}
}

// checkCloudInit checks the data of a cloud-init volume; the two kinds differ in the format of the disk only.
func (c *checker) checkCloudInit(i int, kind string, source *kubevirtv1.CloudInitNoCloudSource) {
	in := func(field string) []any { return c.in("volumes", i, kind, field) }
	user, network := "", ""
	if source.UserDataSecretRef != nil {
		user = source.UserDataSecretRef.Name
		c.checkSecretRef(in("secretRef"), user)
	}
	if source.NetworkDataSecretRef != nil {
		network = source.NetworkDataSecretRef.Name
		c.checkSecretRef(in("networkDataSecretRef"), network)
	}
	for _, data := range []struct {
		fields []string
		values []string
	}{
		{[]string{"userData", "userDataBase64", "secretRef"}, []string{source.UserData, source.UserDataBase64, user}},
		{[]string{"networkData", "networkDataBase64", "networkDataSecretRef"}, []string{source.NetworkData, source.NetworkDataBase64, network}},
	} {
		first := ""
		for f, value := range data.values {
			if value == "" {
				continue
			}
			if first != "" {
				c.fail(in(data.fields[f]), data.fields[f]+" and "+first+" exclude each other", "keep one")
			}
			first = data.fields[f]
		}
		size := len(data.values[0])
		if data.values[1] != "" {
			decoded, err := decodeBase64(data.values[1])
			if err != nil {
				c.fail(in(data.fields[1]), "is not base64", "encode it (base64 -w0), or write it as it is under "+data.fields[0])
			}
			size = max(size, len(decoded))
		}
		if size > maxCloudInit {
			c.fail(in(first), fmt.Sprintf("%d bytes long, at most %d are allowed", size, maxCloudInit), "fetch the rest from within the guest")
		}
	}
	if source.UserDataSecretRef == nil && source.NetworkDataSecretRef == nil && source.UserData == "" && source.UserDataBase64 == "" && source.NetworkData == "" && source.NetworkDataBase64 == "" {
		c.fail(c.in("volumes", i, kind), "no data", "add userData, networkData or secretRef")
	}
}

func (c *checker) checkSecretRef(path []any, name string) {
	if name == "" {
		c.fail(append(path, "name"), "no name", "name the Secret")
	}
}
