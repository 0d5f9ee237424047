package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// addVolumes makes the volumes and their disks, in the order in which firmware looks for something to boot.
func (b *vmBuilder) addVolumes() error {
	for _, kind := range []struct {
		flag  string
		given []string
		known []string
		add   func(*params, int) error
	}{
		{"volume-containerdisk", b.containerDisks, []string{"src"}, b.addContainerDisk},
		{"volume-hostdisk", b.hostDisks, []string{"src", "size"}, b.addHostDisk},
		{"volume-pvc", b.claims, []string{"src"}, b.addClaim},
		{"volume-import", b.imports, importParams(), b.addImport},
		{"volume-blank", b.blanks, []string{"size"}, b.addImport},
		{"volume-emptydisk", b.emptyDisks, []string{"size"}, b.addEmptyDisk},
	} {
		for i, text := range kind.given {
			p, err := parseParams(kind.flag, text, append(kind.known, "name", "bootorder")...)
			if err != nil {
				return err
			}
			if err := kind.add(p, i); err != nil {
				return err
			}
		}
	}
	return b.addSysprep()
}

// volumeName is the name that was given, or one that is the same each time.
func volumeName(p *params, kind string, i int) string {
	if name := p.get("name"); name != "" {
		return name
	}
	return fmt.Sprintf("%s-%d", kind, i+1)
}

// addVolume adds a volume with the disk that shows it.
func (b *vmBuilder) addVolume(p *params, name, source string, of *mapping) error {
	if other, taken := b.named[name]; taken {
		return p.errorf("a volume named %s is there already, from %s", name, other)
	}
	b.named[name] = p.origin()
	order, err := p.bootOrder()
	if err != nil {
		return err
	}
	disk := newMapping().set("name", name)
	if order != 0 {
		if other, taken := b.orders[order]; taken {
			return p.errorf("bootorder %d is taken by %s", order, other)
		}
		b.orders[order] = p.origin()
		disk.set("bootOrder", order)
	}
	target := newMapping().flow()
	if b.preference == "" { // else it says the bus
		target.set("bus", "virtio")
	}
	disk.set("disk", target)
	b.addPair(p.origin(), name, disk, newMapping().set("name", name).set(source, of))
	return nil
}

// addPair adds a disk and a volume of one name.
func (b *vmBuilder) addPair(flag, name string, disk, volume *mapping) {
	b.named[name] = flag
	b.from(fmt.Sprintf("spec.template.spec.volumes[%d]", len(b.volumes)), flag)
	b.from(fmt.Sprintf("spec.template.spec.domain.devices.disks[%d]", len(b.disks)), flag)
	b.volumes, b.disks = append(b.volumes, volume), append(b.disks, disk)
}

func (b *vmBuilder) addContainerDisk(p *params, i int) error {
	image, err := p.need("src", "src:IMAGE")
	if err != nil {
		return err
	}
	return b.addVolume(p, volumeName(p, "containerdisk", i), "containerDisk", newMapping().set("image", image))
}

func (b *vmBuilder) addHostDisk(p *params, i int) error {
	path, err := p.need("src", "src:/PATH/TO/IMAGE")
	if err != nil {
		return err
	}
	disk := newMapping().set("path", path)
	if size := p.get("size"); size != "" {
		disk.set("type", "DiskOrCreate").set("capacity", size)
	} else {
		disk.set("type", "Disk")
	}
	return b.addVolume(p, volumeName(p, "hostdisk", i), "hostDisk", disk)
}

func (b *vmBuilder) addClaim(p *params, _ int) error {
	claim, err := p.local("src")
	if err != nil {
		return err
	}
	name := p.get("name")
	if name == "" {
		name = claim
	}
	return b.addVolume(p, name, "persistentVolumeClaim", newMapping().set("claimName", claim))
}

func (b *vmBuilder) addEmptyDisk(p *params, i int) error {
	size, err := p.need("size", "size:10Gi")
	if err != nil {
		return err
	}
	return b.addVolume(p, volumeName(p, "emptydisk", i), "emptyDisk", newMapping().set("capacity", size))
}

// importParams are all parameters of --volume-import.
func importParams() []string {
	return []string{"type", "size", "url", "src", "secretref", "extraheaders", "pullmethod"}
}

// importSource says how a type of source is written: its field, and the fields of its parameters.
type importSource struct {
	field    string
	params   map[string]string
	optional bool // the size
}

func importSources() map[string]importSource {
	return map[string]importSource{
		"blank":    {field: "blank"},
		"http":     {field: "http", params: map[string]string{"url": "url", "secretref": "secretRef", "extraheaders": "extraHeaders"}},
		"registry": {field: "registry", params: map[string]string{"url": "url", "secretref": "secretRef", "pullmethod": "pullMethod"}},
		"pvc":      {field: "pvc", params: map[string]string{"src": "src"}, optional: true},
	}
}

// addImport makes a claim that is filled from a source: a dataVolumeTemplate, and a volume with it.
func (b *vmBuilder) addImport(p *params, i int) error {
	kind, prefix := "blank", "blank"
	if p.flag == "volume-import" {
		prefix = "import"
		var err error
		if kind, err = importType(p); err != nil {
			return err
		}
	}
	of := importSources()[kind]
	source := newMapping().flow()
	for _, name := range importParams() {
		value := p.get(name)
		if value == "" || name == "type" || name == "size" {
			continue
		}
		field, known := of.params[name]
		switch {
		case !known:
			return p.errorf("type:%s has no parameter %s", kind, name)
		case name == "src":
			namespace, claim, ok := strings.Cut(value, "/")
			if !ok {
				namespace, claim = cmp.Or(b.namespace, schemas.DefaultNamespace), value
			}
			source.set("namespace", namespace).set("name", claim)
		case name == "extraheaders":
			source.set(field, strings.Split(value, ";"))
		default:
			source.set(field, value)
		}
	}
	for _, needed := range []string{"url", "src"} {
		if _, known := of.params[needed]; known && p.get(needed) == "" {
			return p.errorf("%s is missing", needed)
		}
	}
	if p.get("size") == "" && !of.optional {
		return p.errorf("size is missing; write size:10Gi")
	}
	name := volumeName(p, prefix, i)
	claim := b.name + "-" + name // another machine made with the same flags gets a claim of its own
	source.Style = 0
	if len(source.Content) == 0 {
		source.flow()
	}
	storage := newMapping()
	if size := p.get("size"); size != "" {
		storage.set("resources", newMapping().set("requests", newMapping().set("storage", size)))
	} else {
		storage.flow()
	}
	b.from(fmt.Sprintf("spec.dataVolumeTemplates[%d]", len(b.templates)), p.origin())
	b.from("spec.dataVolumeTemplates", "--"+p.flag)
	b.templates = append(b.templates, newMapping().set("metadata", newMapping().set("name", claim)).
		set("spec", newMapping().set("source", newMapping().set(of.field, source)).set("storage", storage)))
	return b.addVolume(p, name, "dataVolume", newMapping().set("name", claim))
}

// importType returns the type of source, and refuses by name those of virtctl that are not carried out.
func importType(p *params) (string, error) {
	kind := strings.ToLower(p.get("type"))
	instead := map[string]string{
		"ds":       "use type:http or type:registry with the source's URL",
		"snapshot": "copy the claim with type:pvc",
		"s3":       "use type:http with a signed or public URL",
		"gcs":      "use type:http with a signed or public URL",
		"imageio":  "export the disk and use type:http",
		"vddk":     "convert the disk with virt-v2v and use type:http",
	}[kind]
	switch {
	case instead != "":
		return "", p.errorf("type %s is known to virtctl, not carried out by gitvirt; %s", kind, instead)
	case kind == "":
		return "", p.errorf("type is missing; want one of blank, http, registry, pvc")
	}
	if _, known := importSources()[kind]; !known {
		return "", p.errorf("type is %q; want one of blank, http, registry, pvc", p.get("type"))
	}
	return kind, nil
}

// addSysprep adds the answer file of Windows, as a CD-ROM.
func (b *vmBuilder) addSysprep() error {
	if b.sysprep == "" {
		return nil
	}
	p, err := parseParams("volume-sysprep", b.sysprep, "src", "type")
	if err != nil {
		return err
	}
	name, err := p.local("src")
	if err != nil {
		return err
	}
	kind, err := p.oneOf("type", "configmap", "secret")
	if err != nil {
		return err
	}
	field := map[string]string{"configmap": "configMap", "secret": "secret"}[kind]
	const volume = "sysprepdisk"
	if other, taken := b.named[volume]; taken {
		return p.errorf("a volume named %s is there already, from %s", volume, other)
	}
	b.addPair(p.origin(), volume, newMapping().set("name", volume).set("cdrom", newMapping().set("bus", "sata").flow()),
		newMapping().set("name", volume).set("sysprep", newMapping().set(field, newMapping().set("name", name))))
	return nil
}
