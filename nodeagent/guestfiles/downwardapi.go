package guestfiles

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/cloudinit/isofs"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// downwardAPI tells the guest about its own manifest. Kubernetes tells of the Pod around it; here the VM stands in its place.
func (m Machine) downwardAPI(source *kubevirtv1.DownwardAPIVolumeSource) (Set, error) {
	out := Set{Label: source.VolumeLabel}
	if out.Label == "" {
		out.Label = DefaultLabel
	}
	for _, field := range source.Fields {
		var value string
		var err error
		switch {
		case field.FieldRef != nil:
			value, err = m.field(field.FieldRef.FieldPath)
		case field.ResourceFieldRef != nil:
			value, err = m.resource(field.ResourceFieldRef)
		default:
			err = fmt.Errorf("it has neither fieldRef nor resourceFieldRef")
		}
		if err != nil {
			return out, fmt.Errorf("downwardAPI field %s: %w", field.Path, err)
		}
		out.Files = append(out.Files, isofs.File{Name: field.Path, Data: []byte(value)})
	}
	return out, nil
}

// labels and annotations are those that a VirtualMachineInstance has: the template's, unless the manifest is one itself.
func (m Machine) labels() map[string]string {
	if m.Address.Kind == schemas.KindVirtualMachineInstance {
		return m.Object.Labels
	}
	return m.Object.Spec.Template.ObjectMeta.Labels
}

func (m Machine) annotations() map[string]string {
	if m.Address.Kind == schemas.KindVirtualMachineInstance {
		return m.Object.Annotations
	}
	return m.Object.Spec.Template.ObjectMeta.Annotations
}

// field returns the value of a fieldPath.
func (m Machine) field(path string) (string, error) {
	switch path {
	case "metadata.name":
		return m.Address.Name, nil
	case "metadata.namespace":
		return m.Address.Namespace, nil
	case "metadata.uid":
		return m.uuid(), nil
	case "metadata.labels":
		return formatMap(m.labels()), nil
	case "metadata.annotations":
		return formatMap(m.annotations()), nil
	}
	for prefix, values := range map[string]map[string]string{"metadata.labels['": m.labels(), "metadata.annotations['": m.annotations()} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			if key, ok := strings.CutSuffix(rest, "']"); ok {
				return values[key], nil
			}
		}
	}
	return "", fmt.Errorf("fieldPath %q is unknown; use metadata.name, metadata.namespace, metadata.uid, metadata.labels or metadata.annotations", path)
}

// formatMap is Kubernetes's form: a line KEY="VALUE" each, in order, without a newline at the end.
func formatMap(values map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, key+"="+strconv.Quote(values[key]))
	}
	return strings.Join(lines, "\n")
}

// resource returns an amount in units of the divisor, rounded up, as Kubernetes does. A limit that nobody set is what the guest
// has.
func (m Machine) resource(ref *corev1.ResourceFieldSelector) (string, error) {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	resources := m.spec().Domain.Resources
	list := resources.Requests
	switch kind {
	case "limits":
		list = resources.Limits
	case "requests":
	default:
		return "", fmt.Errorf("resource %q is unknown; use limits.cpu, limits.memory, requests.cpu or requests.memory", ref.Resource)
	}
	amount, found := list[corev1.ResourceName(name)]
	vcpus, memory := domainxml.Size(m.spec())
	switch {
	case name != "cpu" && name != "memory" && !found:
		return "", fmt.Errorf("resource %q is not in domain.resources", ref.Resource)
	case found || kind == "requests":
	case name == "cpu":
		amount = *resource.NewQuantity(int64(vcpus), resource.DecimalSI) //nolint:gosec // a few thousand at most
	default:
		amount = *resource.NewQuantity(int64(memory), resource.BinarySI) //nolint:gosec // a guest has fewer than 2^63 bytes
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == "cpu" {
		return ceiling(amount.MilliValue(), divisor.MilliValue()), nil
	}
	return ceiling(amount.Value(), divisor.Value()), nil
}

func ceiling(amount, divisor int64) string {
	if divisor <= 0 {
		divisor = 1
	}
	out := amount / divisor
	if amount%divisor > 0 {
		out++
	}
	return strconv.FormatInt(out, 10)
}
