package schemas

import (
	"time"

	"go.yaml.in/yaml/v3"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// readVM reads a VirtualMachine or a VirtualMachineInstance.
func readVM(d *document, h *header) {
	vm, spec := decodeVM(d, h)
	if d.broke && vm.Spec.Template == nil {
		return
	}
	w := &draft{address: h.address(), position: d.position(h.nameNode), object: vm, spec: spec, source: d.source, item: d.item}
	w.read(d, h)
}

// decodeVM reads the object in the form of a VirtualMachine and returns it with the path of its instance spec.
func decodeVM(d *document, h *header) (*kubevirtv1.VirtualMachine, []any) {
	if h.kind == KindVirtualMachine {
		vm := &kubevirtv1.VirtualMachine{}
		d.decodeInto(vm, h.kind)
		return vm, at("spec", "template", "spec")
	}
	vmi := &kubevirtv1.VirtualMachineInstance{}
	d.decodeInto(vmi, h.kind)
	once := kubevirtv1.RunStrategyOnce
	return &kubevirtv1.VirtualMachine{
		ObjectMeta: vmi.ObjectMeta,
		Spec: kubevirtv1.VirtualMachineSpec{
			RunStrategy: &once,
			Template:    &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: vmi.Spec},
		},
	}, at("spec")
}

// TerminationGracePeriod is how long the guest may take to shut down before it is switched off.
func (vm *VM) TerminationGracePeriod() time.Duration {
	seconds := kubevirtv1.DefaultGracePeriodSeconds
	if s := vm.Spec().TerminationGracePeriodSeconds; s != nil {
		seconds = *s
	}
	return time.Duration(seconds) * time.Second
}

// at is a field path: names and list indices.
func at(parts ...any) []any { return parts }

// locate walks down from the root to the node at path; where the manifest ends earlier, the last node on the way is
// returned, so that a mistake in something that was left out points at what should hold it.
func locate(root *yaml.Node, path []any) *yaml.Node {
	n, _ := locateAll(root, path)
	return n
}

// locateAll is locate, and reports whether it got to the end of path.
func locateAll(root *yaml.Node, path []any) (n *yaml.Node, all bool) {
	n = resolve(root)
	for _, part := range path {
		var next *yaml.Node
		switch p := part.(type) {
		case string:
			next = lookup(n, p)
		case key:
			next = lookup(n, string(p))
		case int:
			if n.Kind == yaml.SequenceNode && p < len(n.Content) {
				next = resolve(n.Content[p])
			}
		}
		if next == nil {
			return n, false
		}
		n = next
	}
	return n, true
}

// key is the name of an entry of a map, which is written in brackets in a path.
type key string

func elements(path []any) []pathElement {
	out := make([]pathElement, len(path))
	for i, part := range path {
		switch p := part.(type) {
		case string:
			out[i] = pathElement{name: p}
		case key:
			out[i] = pathElement{name: string(p), key: true}
		case int:
			out[i] = pathElement{index: p}
		}
	}
	return out
}
