package schemas

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// readSecret reads a core/v1 Secret. Its values are never printed.
func readSecret(d *document, h *header) {
	object := &corev1.Secret{}
	d.decodeInto(object, KindSecret)
	if d.broke || !h.nameUsable || d.ambiguous {
		return
	}
	object.TypeMeta = metav1.TypeMeta{APIVersion: APIVersionCore, Kind: KindSecret}
	object.Namespace = h.namespace
	d.file.Secrets = append(d.file.Secrets, &Secret{Address: h.address(), Position: d.position(h.nameNode), Object: object})
}

// Value returns the value of a key; stringData wins over data, as in Kubernetes.
func (s *Secret) Value(key string) (string, bool) {
	if value, ok := s.Object.StringData[key]; ok {
		return value, true
	}
	value, ok := s.Object.Data[key]
	return string(value), ok
}

// firstValue returns the value of the first of keys that the Secret has.
func (s *Secret) firstValue(keys ...string) (string, bool) {
	for _, key := range keys {
		if value, ok := s.Value(key); ok {
			return value, true
		}
	}
	return "", false
}
