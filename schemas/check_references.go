package schemas

import (
	"fmt"
	"path"
	"strings"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// maxVolumeLabel bounds the label of a disk that is made of files: a volume identifier of ISO 9660.
const maxVolumeLabel = 32

// claimOf returns the name of the claim that a volume writes to; "" for other volumes.
func claimOf(v *kubevirtv1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.DataVolume != nil:
		return v.DataVolume.Name
	}
	return ""
}

// checkVolumeReference checks volumes that are made of another object.
func (c *checker) checkVolumeReference(i int, v *kubevirtv1.Volume) {
	in := func(parts ...any) []any { return c.in(append(at("volumes", i), parts...)...) }
	switch {
	case v.PersistentVolumeClaim != nil:
		c.checkNamed("PersistentVolumeClaim", v.PersistentVolumeClaim.ClaimName, func() []any { return in("persistentVolumeClaim", "claimName") })
	case v.DataVolume != nil:
		c.checkNamed("DataVolume", v.DataVolume.Name, func() []any { return in("dataVolume", "name") })
	case v.Ephemeral != nil:
		if v.Ephemeral.PersistentVolumeClaim == nil {
			c.fail(in("ephemeral", "persistentVolumeClaim"), "no claim", "name the claim whose changes are dropped: {claimName: NAME}")
			return
		}
		c.checkNamed("PersistentVolumeClaim", v.Ephemeral.PersistentVolumeClaim.ClaimName, func() []any { return in("ephemeral", "persistentVolumeClaim", "claimName") })
	case v.ConfigMap != nil:
		c.checkNamed("ConfigMap", v.ConfigMap.Name, func() []any { return in("configMap", "name") })
		c.checkVolumeLabel(v.ConfigMap.VolumeLabel, func() []any { return in("configMap", "volumeLabel") })
	case v.Secret != nil:
		c.checkNamed("Secret", v.Secret.SecretName, func() []any { return in("secret", "secretName") })
		c.checkVolumeLabel(v.Secret.VolumeLabel, func() []any { return in("secret", "volumeLabel") })
	case v.ServiceAccount != nil:
		c.checkNamed("service account", v.ServiceAccount.ServiceAccountName, func() []any { return in("serviceAccount", "serviceAccountName") })
		c.warn(in("serviceAccount"), "the volume holds the file namespace and no token: a host has no Kubernetes API that one would be for", "put a token for another API into a secret volume")
	case v.Sysprep != nil:
		switch {
		case v.Sysprep.Secret == nil && v.Sysprep.ConfigMap == nil:
			c.fail(in("sysprep"), "no answer file", "add secret or configMap with autounattend.xml or unattend.xml")
		case v.Sysprep.Secret != nil && v.Sysprep.ConfigMap != nil:
			c.fail(in("sysprep"), "secret and configMap exclude each other", "keep one")
		case v.Sysprep.Secret != nil:
			c.checkNamed("Secret", v.Sysprep.Secret.Name, func() []any { return in("sysprep", "secret", "name") })
		default:
			c.checkNamed("ConfigMap", v.Sysprep.ConfigMap.Name, func() []any { return in("sysprep", "configMap", "name") })
		}
	}
}

// checkNamed wants the name of another object.
func (c *checker) checkNamed(kind, name string, path func() []any) {
	if name == "" {
		c.fail(path(), "no name", "name the "+kind)
		return
	}
	c.checkReference(path, kind, name)
}

func (c *checker) checkVolumeLabel(label string, path func() []any) {
	switch {
	case len(label) > maxVolumeLabel:
		c.fail(path(), fmt.Sprintf("%d characters long, at most %d are allowed", len(label), maxVolumeLabel), "shorten it")
	case label != "" && (!isToken(label) || strings.Contains(label, "+")):
		c.fail(path(), quoteValue(label)+" is not a label of a volume", "use letters, digits, dashes, dots and underscores")
	}
}

func (c *checker) checkDownwardAPI(i int, source *kubevirtv1.DownwardAPIVolumeSource) {
	c.checkVolumeLabel(source.VolumeLabel, func() []any { return c.in("volumes", i, "downwardAPI", "volumeLabel") })
	for f := range source.Fields {
		field := &source.Fields[f]
		in := func(parts ...any) []any {
			return c.in(append(at("volumes", i, "downwardAPI", "fields", f), parts...)...)
		}
		if field.Path == "" || strings.HasPrefix(field.Path, "/") || path.Clean(field.Path) != field.Path || hasDotDot(field.Path) {
			c.fail(in("path"), quoteValue(field.Path)+" is not the name of a file in the volume", "write it as labels or info/labels")
		} else {
			for name := range strings.SplitSeq(field.Path, "/") {
				if !isContentKey(name) || len(name) > maxFileName {
					c.fail(in("path"), quoteValue(name)+" is not the name of a file", fmt.Sprintf("use up to %d letters, digits, dashes, dots and underscores", maxFileName))
					break
				}
			}
		}
		for other := range f {
			if source.Fields[other].Path == field.Path && field.Path != "" {
				c.fail(in("path"), "two files are named "+quoteValue(field.Path), "rename one")
				break
			}
		}
		if (field.FieldRef == nil) == (field.ResourceFieldRef == nil) {
			c.fail(in(), "exactly one of fieldRef and resourceFieldRef says what the file holds", "write fieldRef: {fieldPath: metadata.labels}")
		}
		if field.FieldRef != nil && field.FieldRef.FieldPath == "" {
			c.fail(in("fieldRef", "fieldPath"), "no field", "write metadata.name, metadata.namespace, metadata.uid, metadata.labels or metadata.annotations")
		}
		if field.ResourceFieldRef != nil && field.ResourceFieldRef.Resource == "" {
			c.fail(in("resourceFieldRef", "resource"), "no resource", "write limits.cpu, limits.memory, requests.cpu or requests.memory")
		}
		if mode := field.Mode; mode != nil && (*mode < 0 || *mode > 0o777) {
			c.fail(in("mode"), fmt.Sprintf("%d is not the mode of a file", *mode), "use a number from 0 to 0777")
		}
	}
}

// checkSingleVolumes checks volumes of which a machine has one, and claims that two volumes would write to.
func (c *checker) checkSingleVolumes(spec *kubevirtv1.VirtualMachineInstanceSpec) {
	metrics, seed, account := -1, -1, -1
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		switch {
		case v.DownwardMetrics == nil:
		case metrics >= 0:
			c.fail(c.in("volumes", i), fmt.Sprintf("a second downwardMetrics volume; the first is %s", quoteValue(spec.Volumes[metrics].Name)), "keep one")
		default:
			metrics = i
		}
		switch {
		case v.ServiceAccount == nil:
		case account >= 0:
			c.fail(c.in("volumes", i), fmt.Sprintf("a second serviceAccount volume; the first is %s", quoteValue(spec.Volumes[account].Name)), "keep one")
		default:
			account = i
		}
		if v.CloudInitNoCloud != nil || v.CloudInitConfigDrive != nil {
			if seed >= 0 {
				c.warn(c.in("volumes", i), fmt.Sprintf("a second cloud-init volume: a guest reads only one, and the first is %s", quoteValue(spec.Volumes[seed].Name)), "keep one")
			} else {
				seed = i
			}
		}
		name := claimOf(v)
		for j := range i {
			if name != "" && claimOf(&spec.Volumes[j]) == name {
				c.fail(c.in("volumes", i), fmt.Sprintf("the volume %s writes to the claim %s already", quoteValue(spec.Volumes[j].Name), quoteValue(name)), "use one volume")
				break
			}
		}
	}
}
