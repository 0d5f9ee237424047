package schemas

import (
	"maps"
	"strings"
)

// Adopts returns the name of the domain that the machine takes over (AnnotationAdopt); "" for none.
func (vm *VM) Adopts() string { return vm.Settings.Adopt }

// Previous returns the address that the machine had (AnnotationPreviousName); the zero address for none.
func (vm *VM) Previous() Address {
	return vm.Settings.PreviousName
}

// previousAddress reads NAME or NAMESPACE/NAME, which may be missing.
func previousAddress(of Address, value string) (Address, bool) {
	if value == "" {
		return Address{}, false
	}
	out := Address{Kind: of.Kind, Namespace: of.Namespace, Name: value}
	if namespace, name, ok := strings.Cut(value, "/"); ok {
		out.Namespace, out.Name = namespace, name
	}
	usable := nameProblem(out.Name, 253, true) == "" && labelProblem(out.Namespace) == ""
	if !usable {
		return Address{}, false
	}
	return out, true
}

// withoutTakeover leaves out the annotations that say where a machine comes from: once it is there they mean nothing, and taking them
// away is no change.
func withoutTakeover(annotations map[string]string) map[string]string {
	_, adopts := annotations[AnnotationAdopt]
	_, renamed := annotations[AnnotationPreviousName]
	if !adopts && !renamed {
		return annotations
	}
	out := maps.Clone(annotations)
	delete(out, AnnotationAdopt)
	delete(out, AnnotationPreviousName)
	return out
}
