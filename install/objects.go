package install

import (
	"bytes"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// part is a group of objects: a file of the kustomize base and of the chart.
type part struct {
	file    string
	objects []any
}

// parts are all objects but those that depend on an option, in the order in which they are applied.
func parts(o *Options) []part {
	return []part{
		{"rbac", rights(o)},
		{"policies", policies(o)},
		{"settings", configMaps(o)},
		{"controller", append([]any{deployment(o)}, around(o)...)},
		{"agent", []any{daemonSet(o)}},
	}
}

// Objects are everything that is installed, in the order in which it is applied.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	all := []any{namespace(&o)}
	for _, p := range parts(&o) {
		all = append(all, p.objects...)
		if p.file != "rbac" {
			continue
		}
		if o.ClusterWide {
			all = append(all, clusterWideRights(&o)...)
			continue
		}
		for _, name := range o.VMNamespaces {
			all = append(all, namespaceRights(&o, name)...)
		}
	}
	if o.Webhooks {
		all = append(all, webhookService(&o)...)
	}
	if o.ServiceMonitor {
		all = append(all, serviceMonitor(&o))
	}
	return convert(all)
}

// convert makes plain objects of typed ones.
func convert(typed []any) ([]*unstructured.Unstructured, error) {
	out := make([]*unstructured.Unstructured, 0, len(typed))
	for _, object := range typed {
		if plain, ok := object.(*unstructured.Unstructured); ok {
			out = append(out, plain)
			continue
		}
		kinded, ok := object.(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object of Kubernetes", object)
		}
		kinds, _, err := scheme.Scheme.ObjectKinds(kinded)
		if err != nil {
			return nil, fmt.Errorf("naming an object: %w", err)
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("writing a %s: %w", kinds[0].Kind, err)
		}
		plain := &unstructured.Unstructured{Object: content}
		plain.SetGroupVersionKind(kinds[0])
		delete(plain.Object, "status")
		for _, empty := range [][]string{
			{"metadata", "creationTimestamp"},
			{"spec", "template", "metadata", "creationTimestamp"},
			{"spec", "strategy"},
			{"spec", "template", "spec", "containers", "resources"},
		} {
			if value, found, _ := unstructured.NestedFieldNoCopy(plain.Object, empty...); found && isEmpty(value) {
				unstructured.RemoveNestedField(plain.Object, empty...)
			}
		}
		out = append(out, plain)
	}
	return out, nil
}

func isEmpty(value any) bool {
	m, ok := value.(map[string]any)
	return value == nil || (ok && len(m) == 0)
}

// YAML writes objects as one document each.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var out bytes.Buffer
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("writing the %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
