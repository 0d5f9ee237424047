package schemas

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// header is what says which object a document is.
type header struct {
	apiVersion, kind     string
	name, namespace      string
	kindNode, nameNode   *yaml.Node
	metadata             *yaml.Node
	nameSaid, nameUsable bool
}

// readObject reads one object, or the objects of a list. itemKind is the kind of an object that does not say its own.
func readObject(d *document, itemKind string) {
	d.root = resolve(d.root)
	if !d.spend(d.root) || isNull(d.root) {
		d.file.Opaque = d.file.Opaque || *d.budget < 0
		return
	}
	if d.root.Kind != yaml.MappingNode {
		d.file.Opaque = true
		d.errorAt(d.root, "wanted a mapping with apiVersion, kind and metadata, found "+found(d.root, true),
			"if the file is not for gitvirt, add it to .gitvirtignore")
		return
	}
	h := readHeader(d, itemKind)
	if h.kind == "" {
		d.file.Opaque = true
		if d.misreadKind() {
			return
		}
		d.errorAt(d.root, "no kind: nobody can tell what this document is", "add apiVersion and kind; if the file is not for gitvirt, add it to .gitvirtignore")
		return
	}
	if item, ok := listOf(h.kind); ok {
		readList(d, item)
		return
	}
	versions := accepts(h.kind)
	if versions == nil {
		message, fix, opaque := refuseKind(h.apiVersion, h.kind)
		d.file.Opaque = d.file.Opaque || opaque
		d.push("kind")
		d.errorAt(h.kindNode, message, fix)
		d.pop()
		return
	}
	first := len(d.file.Diagnostics)
	readKind(d, h, versions)
	if h.nameUsable {
		for i := first; i < len(d.file.Diagnostics); i++ {
			d.file.Diagnostics[i].Address = h.address()
		}
	}
}

// misreadKind reports a kind that is there, and is no text or not written as kind.
func (d *document) misreadKind() bool {
	if n := lookup(d.root, "kind"); n != nil && n.Kind != yaml.ScalarNode {
		d.push("kind")
		d.wrongType(n, shapeString.wanted(), unrendered(n, "write one kind, such as kind: VirtualMachine"))
		d.pop()
		return true
	}
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if name := resolve(d.root.Content[i]); name.Kind == yaml.ScalarNode && strings.EqualFold(name.Value, "kind") && name.Value != "kind" {
			d.errorAt(name, "no kind, but "+printable(name.Value), `did you mean "kind"?`)
			return true
		}
	}
	return false
}

// unrendered says what to do about a value that should be text: {{ }} of a template is a mapping in a mapping to YAML.
func unrendered(n *yaml.Node, fix string) string {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 && resolve(n.Content[0]).Kind == yaml.MappingNode {
		return "render the templates, and commit what comes out"
	}
	return fix
}

func (h *header) address() Address {
	return Address{Kind: h.kind, Namespace: h.namespace, Name: h.name}
}

// unusable is a former name that cannot be read: nobody can tell which machine it means.
var unusable = Address{Kind: KindVirtualMachine} //nolint:gochecknoglobals // a constant

// previous returns the address that the object says it had, whatever else is wrong with it; unusable when that cannot be read.
func (h *header) previous() Address {
	value := lookupIn(lookupIn(h.metadata, "annotations"), AnnotationPreviousName)
	if value == nil || isNull(value) {
		return Address{}
	}
	previous, ok := previousAddress(h.address(), resolve(value).Value)
	if !ok {
		return unusable
	}
	return previous
}

// readKind reads an object of a kind that gitvirt knows.
func readKind(d *document, h *header, versions []string) {
	checkVersion(d, h, versions)
	checkName(d, h)
	if isClusterKind(h.kind) {
		h.namespace = DefaultNamespace
	}
	d.secret = h.kind == KindSecret || d.file.secret
	switch h.kind {
	case KindVirtualMachine, KindVirtualMachineInstance:
		readVM(d, h)
	case KindReplicaSet:
		readReplicaSet(d, h)
	case KindPool:
		readPool(d, h)
	case KindInstancetype, KindClusterInstancetype:
		readInstancetype(d, h)
	case KindPreference, KindClusterPreference:
		readPreference(d, h)
	case KindDataVolume:
		readDataVolume(d, h)
	case KindPersistentVolumeClaim:
		readPersistentVolumeClaim(d, h)
	case KindPersistentVolume:
		readPersistentVolume(d, h)
	case KindSecret:
		readSecret(d, h)
	case KindConfigMap:
		readConfigMap(d, h)
	case KindService:
		readService(d, h)
	case KindNetwork:
		readNetwork(d, h)
	case KindFleet:
		readFleet(d, h)
	}
	previous := h.previous()
	switch {
	case isMachineKind(h.kind) && (d.ambiguous || !h.nameUsable || *d.budget < 0 || previous == unusable):
		d.file.Opaque = true
		fallthrough
	case d.broke:
		if h.nameUsable {
			d.file.Broken = append(d.file.Broken, Broken{Address: h.address(), Position: d.position(h.nameNode), Previous: previous})
		}
	}
}

// readHeader finds apiVersion, kind, name and namespace without decoding the rest.
func readHeader(d *document, itemKind string) *header {
	h := &header{kind: itemKind, namespace: DefaultNamespace, kindNode: d.root, nameNode: d.root}
	if n := lookup(d.root, "apiVersion"); n != nil && n.Kind == yaml.ScalarNode {
		h.apiVersion = n.Value
	}
	if n := lookup(d.root, "kind"); n != nil && n.Kind == yaml.ScalarNode && !isNull(n) {
		h.kind, h.kindNode = n.Value, n
	}
	h.metadata = lookup(d.root, "metadata")
	if h.metadata == nil {
		return h
	}
	if n := lookup(h.metadata, "name"); n != nil {
		h.nameSaid = true
		h.nameNode = n
		if n.Kind == yaml.ScalarNode && tagOf(n) == "!!str" {
			h.name = n.Value
		}
	}
	if n := lookup(h.metadata, "namespace"); n != nil && n.Kind == yaml.ScalarNode && !isNull(n) && n.Value != "" {
		h.namespace = n.Value
	}
	return h
}

// lookup returns the value of key in a mapping, merged mappings included, or nil.
func lookup(n *yaml.Node, key string) *yaml.Node {
	steps := 1000 // merges may refer to one another many times over
	return lookupMerged(n, key, &steps)
}

func lookupMerged(n *yaml.Node, key string, steps *int) *yaml.Node {
	n = resolve(n)
	*steps--
	if n.Kind != yaml.MappingNode || *steps < 0 {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := resolve(n.Content[i]); k.Kind == yaml.ScalarNode && k.Value == key {
			return resolve(n.Content[i+1])
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !isMerge(n.Content[i]) {
			continue
		}
		source := resolve(n.Content[i+1])
		sources := []*yaml.Node{source}
		if source.Kind == yaml.SequenceNode {
			sources = source.Content
		}
		for _, s := range sources {
			if found := lookupMerged(s, key, steps); found != nil {
				return found
			}
		}
	}
	return nil
}

func checkVersion(d *document, h *header, versions []string) {
	if h.apiVersion == "" && h.kindNode == d.root { // an item of a typed list
		return
	}
	if slices.Contains(versions, h.apiVersion) {
		return
	}
	d.push("apiVersion")
	defer d.pop()
	n := lookup(d.root, "apiVersion")
	switch {
	case n == nil || h.apiVersion == "":
		d.errorAt(d.root, "no apiVersion", "add apiVersion: "+versions[0])
	default:
		d.errorAt(n, fmt.Sprintf("%s is not an API version of %s", quoteValue(h.apiVersion), h.kind), "write apiVersion: "+versions[0])
	}
}

// checkName says whether the object's name can be used; a Fleet needs none.
func checkName(d *document, h *header) {
	before := d.broke
	d.broke = false
	d.push("metadata")
	d.push("name")
	switch generate := lookupIn(h.metadata, "generateName"); {
	case generate != nil && !isNull(generate) && generate.Value != "":
		d.path[len(d.path)-1].name = "generateName"
		d.errorAt(generate, "the same manifest must always mean the same object, so names are not generated", "write metadata.name")
	case h.kind == KindFleet && !h.nameSaid:
		h.name = "fleet"
	case h.nameSaid && h.nameNode.Kind != yaml.ScalarNode:
		d.wrongType(h.nameNode, shapeString.wanted(), unrendered(h.nameNode, "write one name, such as web-1"))
	case !h.nameSaid || (h.name == "" && h.nameNode.Value == ""):
		at := h.metadata
		if h.nameSaid {
			at = h.nameNode
		}
		d.errorAt(at, "no name", "write metadata.name")
	case h.name == "":
		d.wrongType(h.nameNode, shapeString.wanted(), "put it in quotes")
	default:
		if problem := nameProblem(h.name, 253, true); problem != "" {
			d.errorAt(h.nameNode, problem, "use lower case letters, digits and dashes, such as web-1")
		}
	}
	d.path[len(d.path)-1].name = "namespace"
	if problem := nameProblem(h.namespace, 63, false); problem != "" {
		d.errorAt(lookupIn(h.metadata, "namespace"), problem, "use lower case letters, digits and dashes")
	}
	d.pop()
	d.pop()
	h.nameUsable = !d.broke
	d.broke = d.broke || before
}

func lookupIn(n *yaml.Node, key string) *yaml.Node {
	if n == nil {
		return nil
	}
	return lookup(n, key)
}

// nameProblem says why s is not a DNS label (RFC 1123), or, with dots, not a DNS subdomain; "" when it is one.
func nameProblem(s string, limit int, dots bool) string {
	if s == "" {
		return "the name is empty"
	}
	if len(s) > limit {
		return fmt.Sprintf("the name is %d characters long, at most %d are allowed", len(s), limit)
	}
	for i := range len(s) {
		c := s[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		switch {
		case alphanumeric:
		case c == '.' && dots && i > 0 && i < len(s)-1 && s[i-1] != '.' && s[i-1] != '-':
		case c == '-' && i > 0 && i < len(s)-1 && s[i-1] != '.':
		default:
			if c == '-' || c == '.' && dots {
				return fmt.Sprintf("%s must begin and end with a letter or digit", quoteValue(s))
			}
			return fmt.Sprintf("%s holds %q, which names must not", quoteValue(s), []rune(s[i:])[0])
		}
	}
	return ""
}

// readList reads the objects of a list.
func readList(d *document, itemKind string) {
	items := lookup(d.root, "items")
	d.push("items")
	defer d.pop()
	if items == nil || isNull(items) {
		return
	}
	if items.Kind != yaml.SequenceNode {
		d.file.Opaque = true
		d.wrongType(items, shapeSlice.wanted(), "")
		return
	}
	if d.prefix != "" {
		d.file.Opaque = true
		d.errorAt(items, "a list within a list", "put the objects into one list")
		return
	}
	for i, item := range items.Content {
		object := &document{
			file: d.file, root: item, line: d.line, prefix: itemPrefix(i), budget: d.budget, source: d.source, item: i,
		}
		readObject(object, itemKind)
	}
}

func itemPrefix(i int) string { return fmt.Sprintf("items[%d].", i) }

// keep adds an object that machines may refer to, unless something is wrong with it.
func (d *document) keep(h *header, value any) {
	if !d.broke && h.nameUsable && !d.ambiguous && *d.budget >= 0 {
		d.file.objects = append(d.file.objects, &object{address: h.address(), position: d.position(h.nameNode), value: value})
	}
}

// decodeInto reads the whole document into a pointer to a struct; kind picks the support table.
func (d *document) decodeInto(target any, kind string) {
	v := reflect.ValueOf(target).Elem()
	trees := supportTrees()
	tree, ok := trees[kind]
	status := SupportUndecided
	if !ok {
		tree, status = trees[""], SupportCarried
	}
	*d.budget++ // the root was paid for already
	d.decode(d.root, v, infoOf(v.Type()), tree, status)
}
