package domainxml

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/schemas"
)

// Manifest is a domain in the words of a manifest, as far as it has words for it.
type Manifest struct {
	// Object is the VirtualMachine, with the annotation that adopts the domain.
	Object *kubevirtv1.VirtualMachine
	// Volumes are the disks of Object as the domain has them, Targets their names in the domain ("hdc"), in the order of Object's.
	Volumes []Volume
	Targets []string

	definition string
	domainType string
}

// Describe reads the definition of any domain as a manifest for a VM at address. It says of the domain only what the
// manifest's fields mean without doubt; everything else is left to Manifest.Unexpressed. An error means that the domain is of a
// kind that no manifest describes.
func Describe(address schemas.Address, definition string) (*Manifest, error) {
	domain, err := parseFast(definition)
	if err != nil {
		return nil, fmt.Errorf("reading domain XML: %w", err)
	}
	d := describer{domain: domain, spec: &kubevirtv1.VirtualMachineInstanceSpec{}}
	if err := d.machine(); err != nil {
		return nil, fmt.Errorf("domain %s: %w", domain.childText("name"), err)
	}
	d.cpu()
	if err := d.memory(); err != nil {
		return nil, fmt.Errorf("domain %s: %w", domain.childText("name"), err)
	}
	d.firmware()
	d.features()
	d.clock()
	d.disks()
	d.interfaces()
	d.devices()
	grace := int64(importedGraceSeconds)
	d.spec.TerminationGracePeriodSeconds = &grace
	strategy := kubevirtv1.RunStrategyManual
	object := &kubevirtv1.VirtualMachine{
		TypeMeta: metav1.TypeMeta{APIVersion: kubevirtv1.GroupVersion.String(), Kind: schemas.KindVirtualMachine},
		ObjectMeta: metav1.ObjectMeta{
			Name: address.Name, Namespace: address.Namespace,
			Annotations: map[string]string{schemas.AnnotationAdopt: domain.childText("name")},
		},
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: &strategy, Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: *d.spec},
		},
	}
	return &Manifest{Object: object, Volumes: d.volumes, Targets: d.targets, definition: definition, domainType: domain.get("type")}, nil
}

// importedGraceSeconds is how long an adopted guest may take to shut down: as long as KubeVirt's own examples give guests that nobody
// knows.
const importedGraceSeconds = 180

// VM returns what git holds when the manifest is committed as it is, and JSON of the manifest without what is empty.
func (m *Manifest) VM() (*schemas.VM, []byte, error) {
	encoded, err := json.Marshal(m.Object)
	if err != nil {
		return nil, nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(encoded, &tree); err != nil {
		return nil, nil, err
	}
	if encoded, err = json.Marshal(withoutNothing(tree)); err != nil {
		return nil, nil, err
	}
	file := schemas.Parse("domain.yaml", encoded)
	desired := schemas.Assemble([]*schemas.File{file}, schemas.AllowMissing())
	if len(desired.VMs) == 1 {
		return desired.VMs[0], encoded, nil
	}
	for _, diagnostic := range desired.Diagnostics {
		if diagnostic.Severity == schemas.SeverityError {
			return nil, nil, fmt.Errorf("no manifest describes it: %s: %s", diagnostic.Path, diagnostic.Message)
		}
	}
	return nil, nil, errors.New("no manifest describes it")
}

// withoutNothing leaves out what encoding/json writes of what is not there.
func withoutNothing(value any) any {
	switch v := value.(type) {
	case []any:
		for i := range v {
			v[i] = withoutNothing(v[i])
		}
	case map[string]any:
		for name, child := range v {
			child = withoutNothing(child)
			empty, isObject := child.(map[string]any)
			nothing := isObject && len(empty) == 0 && slices.Contains([]string{"metadata", "resources", "status"}, name)
			if child == nil || nothing || name == "creationTimestamp" || name == "capacity" && child == "0" {
				delete(v, name)
				continue
			}
			v[name] = child
		}
	}
	return value
}

// Kept is what the domain's record keeps of it when it is adopted. spec is the record of a manifest that describes it, volumes are its
// disks under the names that they have there.
func (m *Manifest) Kept(spec []byte, volumes []Volume) *Kept {
	return &Kept{Definition: WithoutRecord(m.definition), Spec: spec, Volumes: volumes, Targets: m.Targets}
}

// Fits reports whether a manifest means the same hardware as the one that VM returned, whatever it calls its parts, and returns the
// disks under the names that they have in it.
func (m *Manifest) Fits(described *schemas.VM, spec *kubevirtv1.VirtualMachineInstanceSpec) (volumes []Volume, fits bool) {
	for _, source := range spec.Volumes {
		at := slices.IndexFunc(m.Volumes, func(volume Volume) bool { return source.HostDisk != nil && source.HostDisk.Path == volume.Path })
		if at < 0 {
			return nil, false
		}
		volume := m.Volumes[at]
		volume.Name = source.Name
		volumes = append(volumes, volume)
	}
	render := func(spec *kubevirtv1.VirtualMachineInstanceSpec, volumes []Volume) *node {
		tree, err := Machine{Address: described.Address, Spec: spec, Host: Host{DomainType: m.domainType}, Volumes: volumes}.rendered()
		if err != nil {
			return nil
		}
		for _, device := range tree.child("devices").children {
			device.removeChild(device.child("alias")) // made of the names
		}
		return tree
	}
	ours, theirs := render(described.Spec(), m.Volumes), render(spec, volumes)
	return volumes, ours != nil && theirs != nil && same(ours, theirs)
}

// Unexpressed returns the paths of what the domain has and the manifest does not say, ordered. It stays in the domain.
func (m *Manifest) Unexpressed(vm *schemas.VM) ([]string, error) {
	want, err := Machine{Address: vm.Address, Spec: vm.Spec(), Host: Host{DomainType: m.domainType}, Volumes: m.Volumes}.rendered()
	if err != nil {
		return nil, err
	}
	have, err := raw(m.definition)
	if err != nil {
		return nil, err
	}
	paths := loose(have)
	disks := 0
	for _, device := range want.child("devices").children {
		if device.name == "disk" && disks < len(m.Targets) {
			device.child("target").set("dev", m.Targets[disks])
			disks++
		}
	}
	for _, difference := range compare(want, have) {
		virtio := strings.HasPrefix(difference.Want, "virtio") && strings.HasPrefix(difference.Have, "virtio")
		if difference.Have != "" && !virtio && difference.Path != "name" && difference.Path != "uuid" {
			paths = append(paths, difference.Path)
		}
	}
	return topmost(paths), nil
}

// loose are the parts of a definition that a comparison of machines passes over.
func loose(have *node) (paths []string) {
	for _, child := range have.children {
		switch child.name {
		case "title", "description":
			paths = append(paths, child.name)
		case "metadata":
			for _, element := range child.children {
				if element.space != MetadataPrefix {
					paths = append(paths, "metadata/"+prefixed(element.space, element.name))
				}
			}
		}
	}
	return paths
}

// WithoutRecord returns a definition without gitvirt's record in its metadata.
func WithoutRecord(definition string) string {
	tree, err := raw(definition)
	if err != nil {
		return definition
	}
	metadata := tree.child("metadata")
	if metadata == nil {
		return definition
	}
	before := len(metadata.children)
	metadata.children = slices.DeleteFunc(metadata.children, func(child *node) bool { return child.space == MetadataPrefix })
	if len(metadata.children) == before {
		return definition
	}
	if len(metadata.children) == 0 {
		tree.removeChild(metadata)
	}
	var out strings.Builder
	tree.writeRaw(&out)
	return out.String()
}
