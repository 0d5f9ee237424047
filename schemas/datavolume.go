package schemas

import (
	"fmt"
	"slices"
	"strings"

	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

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
	var where string
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
		{"blank", source.Blank != nil},
		{"http", source.HTTP != nil},
		{"pvc", source.PVC != nil},
		{"registry", source.Registry != nil},
		{"s3", source.S3 != nil},
		{"gcs", source.GCS != nil},
		{"imageio", source.Imageio != nil},
		{"vddk", source.VDDK != nil},
		{"snapshot", source.Snapshot != nil},
		{"upload", source.Upload != nil},
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
		before := len(c.reached)
		c.imageReach(address, in("registry", "url"))
		out.reaches = slices.Clone(c.reached[before:])
		c.reached = c.reached[:before] // it is the claim's, not the machine's
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
	shown, _, _ := strings.Cut(address, "?") // signatures are in the query
	switch {
	case address == "":
		c.fail(path, "no URL", fix)
	case !ok || rest == "":
		c.fail(path, quoteValue(shown)+" is not a URL", fix)
	case strings.ContainsAny(address, " \t\r\n\"'<>"):
		c.fail(path, quoteValue(shown)+" holds characters that no URL has", fix)
	case strings.Contains(strings.SplitN(rest, "/", 2)[0], "@") && schemes[0] == "http":
		c.fail(path, "the URL holds a user name or a password, which everybody who reads the repository sees", "put them into a Secret (accessKeyId, secretKey) and name it as secretRef")
	default:
		oneOf(c, func() []any { return path }, scheme, schemes...)
	}
}
