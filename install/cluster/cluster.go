// Package cluster brings objects into a cluster, by server-side apply, and waits until what runs of them runs.
package cluster

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

// FieldManager is who owns the fields of what is installed. The controller's own objects have another.
const FieldManager = "gitvirt-install"

// resources are those of the kinds that are installed; the API server need not be asked.
func resources(kind string) (name string, namespaced bool, err error) {
	switch kind {
	case "Namespace", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicyBinding":
		return strings.ToLower(kind) + "s", false, nil
	case "ValidatingAdmissionPolicy":
		return "validatingadmissionpolicies", false, nil
	case "NetworkPolicy":
		return "networkpolicies", true, nil
	case "ServiceAccount", "ConfigMap", "Role", "RoleBinding", "Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "ServiceMonitor":
		return strings.ToLower(kind) + "s", true, nil
	}
	return "", false, fmt.Errorf("nobody installs a %s", kind)
}

// client speaks of the objects of one kind, where one of them is.
func client(all dynamic.Interface, object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	name, namespaced, err := resources(object.GetKind())
	if err != nil {
		return nil, err
	}
	group := all.Resource(object.GroupVersionKind().GroupVersion().WithResource(name))
	if namespaced {
		return group.Namespace(object.GetNamespace()), nil
	}
	return group, nil
}

// Name is how people call an object.
func Name(object *unstructured.Unstructured) string {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	return object.GetKind() + " " + name
}

// Outcome is what applying did to an object.
type Outcome string

// The outcomes.
const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
)

// Apply applies objects in their order and says what became of each. Fields that somebody else has set are taken over: what is installed is as this version wants it.
func Apply(ctx context.Context, all dynamic.Interface, objects []*unstructured.Unstructured, said func(object *unstructured.Unstructured, outcome Outcome)) error {
	for _, object := range objects {
		outcome, err := apply(ctx, all, object)
		if err != nil {
			return fmt.Errorf("applying the %s: %w", Name(object), err)
		}
		said(object, outcome)
	}
	return nil
}

func apply(ctx context.Context, all dynamic.Interface, object *unstructured.Unstructured) (Outcome, error) {
	one, err := client(all, object)
	if err != nil {
		return "", err
	}
	before, err := one.Get(ctx, object.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return "", err
	}
	outcome := Changed
	if err != nil {
		outcome = Created
	}
	after, err := one.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	if err != nil {
		return "", err
	}
	if outcome == Changed && reflect.DeepEqual(content(before), content(after)) {
		outcome = Unchanged
	}
	return outcome, nil
}

// content is what people wrote of an object: who wrote it, and what a controller says of it, may change meanwhile.
func content(object *unstructured.Unstructured) map[string]any {
	out := object.DeepCopy()
	delete(out.Object, "status")
	out.SetManagedFields(nil)
	out.SetResourceVersion("")
	return out.Object
}

// period is how often Wait looks.
const period = time.Second

// Wait waits until the Deployments and DaemonSets among the objects run as they are written, and tells how far they are whenever that changes.
func Wait(ctx context.Context, all dynamic.Interface, objects []*unstructured.Unstructured, said func(object *unstructured.Unstructured, state string)) error {
	for _, object := range objects {
		if kind := object.GetKind(); kind != "Deployment" && kind != "DaemonSet" {
			continue
		}
		one, err := client(all, object)
		if err != nil {
			return err
		}
		last := ""
		err = wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
			found, err := one.Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return false, nil //nolint:nilerr // the API server may be away for a moment; the context ends the wait
			}
			state, done := rollout(found)
			if state != last {
				said(object, state)
				last = state
			}
			return done, nil
		})
		if err != nil {
			return fmt.Errorf("the %s is not ready (%s): %w; kubectl -n %s describe pods tells why", Name(object), last, context.Cause(ctx), object.GetNamespace())
		}
	}
	return nil
}

// rollout tells how far a Deployment or a DaemonSet is.
func rollout(found *unstructured.Unstructured) (state string, done bool) {
	number := func(path ...string) int64 {
		value, _, _ := unstructured.NestedInt64(found.Object, path...)
		return value
	}
	want, updated, available := number("spec", "replicas"), number("status", "updatedReplicas"), number("status", "availableReplicas")
	if found.GetKind() == "DaemonSet" {
		want, updated, available = number("status", "desiredNumberScheduled"), number("status", "updatedNumberScheduled"), number("status", "numberAvailable")
	}
	if number("status", "observedGeneration") < found.GetGeneration() {
		return "not seen yet", false
	}
	return fmt.Sprintf("%d of %d ready", min(updated, available), want), updated >= want && available >= want
}
