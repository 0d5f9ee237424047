package pods

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/gitvirt/gitvirt/schemas"
)

// Difference is one part of a Pod's spec.
type Difference struct {
	// Path is the part as Kubernetes names it: spec.nodeSelector.
	Path string
	// Before and After are its JSON values; nil where it is not there.
	Before, After any
}

// Differences are the parts of a machine's Pod that are others than those of what was applied and that no Pod can be given while it
// lives. Labels and annotations can be changed in a Pod, and so can how much CPU and memory it asks for (Resized). What gitvirt itself
// has otherwise since, such as a newer image of the launcher, is no difference: both are made as this version makes them.
func Differences(applied *schemas.Recorded, vm *schemas.VM, options Options) ([]Difference, error) {
	before, after, err := specs(applied, vm, options)
	if err != nil {
		return nil, err
	}
	if resizes(before, after) {
		before.Containers[0].Resources = after.Containers[0].Resources
	}
	var out []Difference
	old, wanted := reflect.ValueOf(*before), reflect.ValueOf(*after)
	for i := range old.NumField() {
		was, is := old.Field(i).Interface(), wanted.Field(i).Interface()
		if equality.Semantic.DeepEqual(was, is) {
			continue
		}
		name, _, _ := strings.Cut(old.Type().Field(i).Tag.Get("json"), ",")
		if name == "containers" {
			out = append(out, ofContainer(before.Containers[0], after.Containers[0])...)
			continue
		}
		out = append(out, Difference{Path: "spec." + name, Before: value(was), After: value(is)})
	}
	return out, nil
}

// ofContainer names the parts of the launcher's container.
func ofContainer(before, after corev1.Container) (out []Difference) {
	old, wanted := reflect.ValueOf(before), reflect.ValueOf(after)
	for i := range old.NumField() {
		was, is := old.Field(i).Interface(), wanted.Field(i).Interface()
		name, _, _ := strings.Cut(old.Type().Field(i).Tag.Get("json"), ",")
		if !equality.Semantic.DeepEqual(was, is) && name != "volumeMounts" && name != "volumeDevices" { // the volumes say it
			out = append(out, Difference{Path: "spec.containers[" + Container + "]." + name, Before: value(was), After: value(is)})
		}
	}
	return out
}

// value is what JSON has of a part; nil for one that is empty.
func value(part any) any {
	encoded, err := json.Marshal(part)
	var out any
	if err != nil || json.Unmarshal(encoded, &out) != nil || reflect.ValueOf(part).IsZero() {
		return nil
	}
	return out
}

// Resized returns the CPU and memory that a living Pod is to ask for, as the body of a patch of its resources; nil when nothing is to be
// changed.
func Resized(applied *schemas.Recorded, vm *schemas.VM, options Options) (*corev1.ResourceRequirements, error) {
	before, after, err := specs(applied, vm, options)
	if err != nil {
		return nil, err
	}
	wanted := after.Containers[0].Resources
	if equality.Semantic.DeepEqual(before.Containers[0].Resources, wanted) || !resizes(before, after) {
		return nil, nil //nolint:nilnil // nothing to change
	}
	only := func(all corev1.ResourceList) corev1.ResourceList {
		out := corev1.ResourceList{}
		for name, quantity := range all {
			if resizable(name) {
				out[name] = quantity
			}
		}
		return out
	}
	return &corev1.ResourceRequirements{Requests: only(wanted.Requests), Limits: only(wanted.Limits)}, nil
}

func specs(applied *schemas.Recorded, vm *schemas.VM, options Options) (before, after *corev1.PodSpec, err error) {
	old := &schemas.VM{Address: vm.Address, Object: applied.Object, Claims: applied.Claims}
	was, err := Pod(old, options)
	if err != nil {
		return nil, nil, fmt.Errorf("what was applied: %w", err)
	}
	is, err := Pod(vm, options)
	if err != nil {
		return nil, nil, err
	}
	return &was.Spec, &is.Spec, nil
}

// resizes reports whether a Pod can be given other resources while it lives: CPU and memory, within its class of service, and none
// that it had not asked for before.
func resizes(before, after *corev1.PodSpec) bool {
	was, is := before.Containers[0].Resources, after.Containers[0].Resources
	if class(was) != class(is) {
		return false
	}
	for _, lists := range [][2]corev1.ResourceList{{was.Requests, is.Requests}, {was.Limits, is.Limits}} {
		names := func(of corev1.ResourceList) (out []string) {
			for name := range of {
				out = append(out, string(name))
			}
			slices.Sort(out)
			return out
		}
		if !slices.Equal(names(lists[0]), names(lists[1])) {
			return false
		}
		for name, quantity := range lists[0] {
			if other := lists[1][name]; !resizable(name) && quantity.Cmp(other) != 0 {
				return false
			}
		}
	}
	return true
}

func resizable(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory
}

// class reports whether a container has all of its CPU and memory guaranteed, which the kubelet decides once.
func class(resources corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := resources.Limits[name]
		if request := resources.Requests[name]; !limited || request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}
