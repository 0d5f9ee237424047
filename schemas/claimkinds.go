package schemas

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// claimSource is what a PersistentVolumeClaim, a DataVolume or a dataVolumeTemplate says of the claim that it makes.
type claimSource struct {
	// claim lacks Namespace and Name, which a set's machines have of their own, and what links resolve to.
	claim Claim
	// links are the objects that it refers to.
	links []reference
	// reaches are known of sources only.
	reaches []reach
}

// volumeSource is what of a PersistentVolume concerns machines.
type volumeSource struct {
	path     string
	block    bool
	shared   bool
	capacity int64
	// namespace and name are those of the claim that it is for; empty for any that names the volume.
	namespace, name string
}

// storageRequest is what PersistentVolumeClaimSpec and CDI's StorageSpec have in common.
type storageRequest struct {
	modes         []corev1.PersistentVolumeAccessMode
	resources     corev1.VolumeResourceRequirements
	volumeName    string
	volumeMode    *corev1.PersistentVolumeMode
	dataSource    *corev1.TypedLocalObjectReference
	dataSourceRef *corev1.TypedObjectReference
}

func requestOf(spec *corev1.PersistentVolumeClaimSpec) storageRequest {
	return storageRequest{spec.AccessModes, spec.Resources, spec.VolumeName, spec.VolumeMode, spec.DataSource, spec.DataSourceRef}
}

// readPersistentVolumeClaim reads a core/v1 PersistentVolumeClaim.
func readPersistentVolumeClaim(d *document, h *header) {
	manifest := &corev1.PersistentVolumeClaim{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	out := &claimSource{}
	c.storage(out, at("spec"), requestOf(&manifest.Spec))
	if len(manifest.Spec.AccessModes) == 0 {
		c.fail(at("spec", "accessModes"), "no access mode", "write accessModes: [ReadWriteOnce]")
	}
	if out.claim.Capacity == 0 && !c.wasGiven(at("spec", "resources", "requests", "storage")) && manifest.Spec.VolumeName == "" {
		c.fail(at("spec", "resources", "requests"), "no size", "write resources.requests.storage, such as 10Gi")
	}
	c.annotationReach(at("metadata", "annotations"), manifest.Annotations)
	out.reaches = c.reached
	d.keep(h, out)
	d.pass(h, manifest)
}

// storage reads what is asked of the storage at path.
func (c *checker) storage(out *claimSource, path []any, request storageRequest) {
	in := func(parts ...any) []any { return slices.Concat(path, parts) }
	for i, mode := range request.modes {
		switch mode {
		case corev1.ReadWriteMany, corev1.ReadOnlyMany:
			out.claim.Shared = true
		default:
			oneOf(c, func() []any { return in("accessModes", i) }, mode, "ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
		}
	}
	if mode := request.volumeMode; mode != nil {
		oneOf(c, func() []any { return in("volumeMode") }, *mode, "Filesystem", "Block", "FromStorageProfile")
		out.claim.Block = *mode == corev1.PersistentVolumeBlock
	}
	if size, ok := request.resources.Requests[corev1.ResourceStorage]; ok {
		out.claim.Capacity = c.capacity(in("resources", "requests", "storage"), &size)
	}
	if request.volumeName != "" {
		out.links = append(out.links, c.link(KindPersistentVolume, DefaultNamespace, request.volumeName, in("volumeName")))
	}
	for _, source := range []struct {
		field, kind, name, namespace string
	}{
		{"dataSource", kindOf(request.dataSource), nameOf(request.dataSource), ""},
		{"dataSourceRef", kindOfRef(request.dataSourceRef), nameOfRef(request.dataSourceRef), namespaceOfRef(request.dataSourceRef)},
	} {
		switch {
		case source.kind == "":
		case source.kind == KindPersistentVolumeClaim:
			from := &cdiv1.DataVolumeSourcePVC{Namespace: source.namespace, Name: source.name}
			c.clone(out, from, in(source.field, "name"))
		default:
			c.fail(in(source.field, "kind"), printable(source.kind)+" is known to Kubernetes, not carried out by gitvirt", "name a PersistentVolumeClaim to clone, or use a DataVolume")
		}
	}
}

func kindOf(ref *corev1.TypedLocalObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind
}

func nameOf(ref *corev1.TypedLocalObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Name
}

func kindOfRef(ref *corev1.TypedObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Kind
}

func nameOfRef(ref *corev1.TypedObjectReference) string {
	if ref == nil {
		return ""
	}
	return ref.Name
}

func namespaceOfRef(ref *corev1.TypedObjectReference) string {
	if ref == nil || ref.Namespace == nil {
		return ""
	}
	return *ref.Namespace
}

// capacity returns a size in bytes, 0 for one that makes no sense.
func (c *checker) capacity(path []any, size *resource.Quantity) int64 {
	before := c.broke
	c.broke = false
	c.checkSize(path, size, "disk space")
	ok := !c.broke
	c.broke = c.broke || before
	if !ok {
		return 0
	}
	return size.Value()
}

// clone makes another claim the source of this one.
func (c *checker) clone(out *claimSource, from *cdiv1.DataVolumeSourcePVC, path []any) {
	if from.Namespace == "" {
		from.Namespace = c.address.Namespace
	}
	out.claim.Source = &cdiv1.DataVolumeSource{PVC: from}
	out.links = append(out.links, c.link(KindPersistentVolumeClaim, from.Namespace, from.Name, path))
}

// link is a reference from one object to another.
func (c *checker) link(kind, namespace, name string, path []any) reference {
	return reference{
		address: Address{Kind: kind, Namespace: namespace, Name: name}, path: pathString(c.prefix, elements(path)), position: c.position(locate(c.root, path)),
	}
}

// readPersistentVolume reads a core/v1 PersistentVolume that is a file or a device of the host.
func readPersistentVolume(d *document, h *header) {
	manifest := &corev1.PersistentVolume{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	spec := &manifest.Spec
	out := &volumeSource{block: spec.VolumeMode != nil && *spec.VolumeMode == corev1.PersistentVolumeBlock}
	where := at("spec")
	switch {
	case spec.HostPath != nil && spec.Local != nil:
		c.fail(at("spec", "local"), "local and hostPath exclude each other", "keep one")
	case spec.HostPath != nil:
		out.path, where = spec.HostPath.Path, at("spec", "hostPath", "path")
		if kind := spec.HostPath.Type; kind != nil {
			oneOf(c, func() []any { return at("spec", "hostPath", "type") }, *kind,
				"DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice")
			out.block = out.block || *kind == corev1.HostPathBlockDev
		}
	case spec.Local != nil:
		out.path, where = spec.Local.Path, at("spec", "local", "path")
	default:
		c.fail(where, "no hostPath and no local: a host can only use what it has itself", "write hostPath.path or local.path")
	}
	if problem := pathProblem(out.path); problem != "" && out.path != "" {
		c.fail(where, problem, "write the absolute path of the file or block device")
	} else if out.path == "" && len(where) == 3 {
		c.fail(where, "no path", "write the absolute path of the file or block device")
	}
	for _, mode := range spec.AccessModes {
		out.shared = out.shared || mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
	}
	if size, ok := spec.Capacity[corev1.ResourceStorage]; ok {
		out.capacity = c.capacity(at("spec", "capacity", "storage"), &size)
	}
	if ref := spec.ClaimRef; ref != nil {
		out.namespace, out.name = ref.Namespace, ref.Name
		if out.namespace == "" {
			out.namespace = DefaultNamespace
		}
	}
	d.keep(h, out)
}
