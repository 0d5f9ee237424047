package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// readSecret reads a core/v1 Secret. Its values are never printed.
func readSecret(d *document, h *header) {
	manifest := &corev1.Secret{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	content := make(Content, len(manifest.Data)+len(manifest.StringData))
	checkKeys(c, "data", manifest.Data)
	checkKeys(c, "stringData", manifest.StringData)
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
	checkKeys(c, "data", manifest.Data)
	checkKeys(c, "binaryData", manifest.BinaryData)
	maps.Copy(content, manifest.Data)
	for _, name := range sortedKeys(manifest.BinaryData) {
		if _, twice := content[name]; twice {
			c.fail(at("binaryData", key(name)), "data has this key too", "keep one")
		}
		content[name] = string(manifest.BinaryData[name])
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

// maxContentKey is Kubernetes' bound of a key, maxFileName that of a file on an ISO image that every guest reads.
const (
	maxContentKey = 253
	maxFileName   = 64
)

// isContentKey tells keys of Kubernetes' alphabet, none of which leads out of the folder that it is a file in.
func isContentKey(name string) bool {
	return isToken(name) && !strings.Contains(name, "+") && !strings.HasPrefix(name, "..") && name != "."
}

// checkKeys checks the names in a Secret or ConfigMap as Kubernetes does.
func checkKeys[V any](c *checker, field string, values map[string]V) {
	for _, name := range sortedKeys(values) {
		switch {
		case len(name) > maxContentKey:
			c.fail(at(field, key(name)), fmt.Sprintf("the key is %d characters long, at most %d are allowed", len(name), maxContentKey), "shorten it")
		case !isContentKey(name):
			c.fail(at(field, key(name)), quoteValue(name)+" is not a key", "use letters, digits, dashes, dots and underscores, as in the name of a file")
		}
	}
}

// longName returns a key that is too long for the name of a file; "" for none.
func (c Content) longName() string {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if len(name) > maxFileName {
			return name
		}
	}
	return ""
}
