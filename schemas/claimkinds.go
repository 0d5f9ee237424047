package schemas

import (
	"fmt"
	"slices"
	"strings"

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
	d.keep(h, out)
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

// readDataVolume reads CDI's DataVolume.
func readDataVolume(d *document, h *header) {
	manifest := &cdiv1.DataVolume{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	d.keep(h, c.dataVolume(at("spec"), &manifest.Spec))
}

// keepTemplates adds the DataVolumes of dataVolumeTemplates to the objects of the file; each machine of a set has its own.
func (w *draft) keepTemplates(c *checker) {
	templates := w.object.Spec.DataVolumeTemplates
	for i := range templates {
		template := &templates[i]
		in := func(parts ...any) []any { return append(at("spec", "dataVolumeTemplates", i), parts...) }
		value := c.dataVolume(in("spec"), &template.Spec)
		if c.broke || template.Name == "" {
			continue
		}
		address := Address{Kind: KindDataVolume, Namespace: w.address.Namespace, Name: template.Name}
		position := c.position(locate(c.root, in("metadata", "name")))
		if w.set == nil {
			c.file.objects = append(c.file.objects, &object{address: address, position: position, value: value})
			continue
		}
		for n := range w.set.replicas {
			address.Name = fmt.Sprintf("%s-%d", template.Name, n)
			c.file.objects = append(c.file.objects, &object{address: address, position: position, value: value})
		}
	}
}

// dataVolume reads the spec of a DataVolume at path.
func (c *checker) dataVolume(path []any, spec *cdiv1.DataVolumeSpec) *claimSource {
	in := func(parts ...any) []any { return slices.Concat(path, parts) }
	out := &claimSource{}
	if spec.ContentType == cdiv1.DataVolumeArchive {
		c.fail(in("contentType"), "archive is known to KubeVirt, not carried out by gitvirt", "use an image of a disk")
	} else {
		oneOf(c, func() []any { return in("contentType") }, spec.ContentType, "kubevirt")
	}
	var request storageRequest
	where := ""
	switch {
	case spec.PVC != nil && spec.Storage != nil:
		c.fail(in("storage"), "storage and pvc exclude each other", "keep storage")
		return out
	case spec.PVC != nil:
		where, request = "pvc", requestOf(spec.PVC)
	case spec.Storage != nil:
		s := spec.Storage
		where = "storage"
		request = storageRequest{s.AccessModes, s.Resources, s.VolumeName, s.VolumeMode, s.DataSource, s.DataSourceRef}
	default:
		c.fail(in("storage"), "no storage", "write storage.resources.requests.storage, such as 10Gi")
		return out
	}
	c.storage(out, in(where), request)
	if where == "pvc" && len(request.modes) == 0 {
		c.fail(in(where, "accessModes"), "no access mode", "write accessModes: [ReadWriteOnce]")
	}
	c.dataSource(out, in("source"), spec)
	cloned := out.claim.Source != nil && out.claim.Source.PVC != nil
	if !cloned && !c.wasGiven(in(where, "resources", "requests", "storage")) {
		c.fail(in(where, "resources", "requests"), "no size", "write resources.requests.storage, such as 10Gi")
	}
	return out
}

// dataSource reads what a DataVolume is filled with.
func (c *checker) dataSource(out *claimSource, path []any, spec *cdiv1.DataVolumeSpec) {
	in := func(parts ...any) []any { return slices.Concat(path, parts) }
	source := spec.Source
	if source == nil {
		if out.claim.Source == nil && !c.misread(path) && spec.SourceRef == nil {
			c.fail(path, "no source", "write source: {blank: {}} for an empty disk")
		}
		return
	}
	var given []string
	for _, one := range []struct {
		name string
		set  bool
	}{
		{"blank", source.Blank != nil}, {"http", source.HTTP != nil}, {"pvc", source.PVC != nil}, {"registry", source.Registry != nil},
		{"s3", source.S3 != nil}, {"gcs", source.GCS != nil}, {"imageio", source.Imageio != nil}, {"vddk", source.VDDK != nil},
		{"snapshot", source.Snapshot != nil}, {"upload", source.Upload != nil},
	} {
		if one.set {
			given = append(given, one.name)
		}
	}
	if len(given) != 1 {
		message, fix := "no source", "write blank, registry, http or pvc"
		if len(given) > 1 {
			message, fix = "more than one source: "+strings.Join(given, ", "), "keep one"
		}
		c.fail(path, message, fix)
		return
	}
	secret := func(name string, where ...any) {
		if name != "" {
			out.links = append(out.links, c.link(KindSecret, c.address.Namespace, name, in(where...)))
		}
	}
	switch {
	case source.HTTP != nil:
		c.checkURL(in("http", "url"), source.HTTP.URL, "http", "https")
		secret(source.HTTP.SecretRef, "http", "secretRef")
	case source.Registry != nil:
		address := ""
		if source.Registry.URL != nil {
			address = *source.Registry.URL
		}
		c.checkURL(in("registry", "url"), address, "docker", "oci-archive")
		if source.Registry.SecretRef != nil {
			secret(*source.Registry.SecretRef, "registry", "secretRef")
		}
	case source.PVC != nil:
		if source.PVC.Name == "" {
			c.fail(in("pvc", "name"), "no name", "name the PersistentVolumeClaim to clone")
			return
		}
		from := *source.PVC
		c.clone(out, &from, in("pvc", "name"))
		return
	}
	out.claim.Source = source
}

// checkURL checks the address of an image.
func (c *checker) checkURL(path []any, address string, schemes ...string) {
	scheme, rest, ok := strings.Cut(address, "://")
	fix := "write it as " + schemes[0] + "://..."
	switch {
	case address == "":
		c.fail(path, "no URL", fix)
	case !ok || rest == "":
		c.fail(path, quoteValue(address)+" is not a URL", fix)
	case strings.ContainsAny(address, " \t\r\n\"'<>"):
		c.fail(path, quoteValue(address)+" holds characters that no URL has", fix)
	case strings.Contains(strings.SplitN(rest, "/", 2)[0], "@") && schemes[0] == "http":
		c.fail(path, "the URL holds a user name or a password, which everybody who reads the repository sees", "put them into a Secret (accessKeyId, secretKey) and name it as secretRef")
	default:
		oneOf(c, func() []any { return path }, scheme, schemes...)
	}
}
