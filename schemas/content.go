package schemas

import (
	corev1 "k8s.io/api/core/v1"
)

// readSecret reads a core/v1 Secret. Its values are never printed.
func readSecret(d *document, h *header) {
	manifest := &corev1.Secret{}
	d.decodeInto(manifest, h.kind)
	content := make(Content, len(manifest.Data)+len(manifest.StringData))
	for key, value := range manifest.Data {
		content[key] = string(value)
	}
	for key, value := range manifest.StringData { // which wins, as in Kubernetes
		content[key] = value
	}
	d.keep(h, content)
}

// readConfigMap reads a core/v1 ConfigMap.
func readConfigMap(d *document, h *header) {
	manifest := &corev1.ConfigMap{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	content := make(Content, len(manifest.Data)+len(manifest.BinaryData))
	for name, value := range manifest.Data {
		content[name] = value
	}
	for name, value := range manifest.BinaryData {
		if _, twice := content[name]; twice {
			c.fail(at("binaryData", key(name)), "data has this key too", "keep one")
		}
		content[name] = string(value)
	}
	d.keep(h, content)
}

// first returns the value of the first of keys that the content has.
func (c Content) first(keys ...string) (string, bool) {
	for _, key := range keys {
		if value, ok := c[key]; ok {
			return value, true
		}
	}
	return "", false
}
