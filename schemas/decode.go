package schemas

import (
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v3"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// isNull reports whether a node says null, which leaves a field as it is.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && tagOf(n) == "!!null" }

func tagOf(n *yaml.Node) string {
	if n.Style&yaml.TaggedStyle != 0 {
		return n.ShortTag()
	}
	return n.Tag
}

// isNothing tells values that ask for nothing, which are fine even for a field that is not carried out.
func isNothing(n *yaml.Node) bool {
	n = resolve(n)
	switch n.Kind {
	case yaml.SequenceNode:
		return len(n.Content) == 0
	case yaml.ScalarNode:
		return isNull(n) || n.Value == "" || n.Value == "false" || n.Value == "0"
	}
	return false
}

// decode reads n into v and reports every mistake on the way.
func (d *document) decode(n *yaml.Node, v reflect.Value, info *typeInfo, support *supportNode, status SupportStatus) {
	n = resolve(n)
	if !d.spend(n) || isNull(n) {
		return
	}
	switch info.shape {
	case shapePointer:
		if v.IsNil() {
			v.Set(reflect.New(info.elem.typ))
		}
		*d.budget++ // the same node is paid for below
		d.decode(n, v.Elem(), info.elem, support, status)
	case shapeStruct:
		if n.Kind != yaml.MappingNode {
			d.wrongType(n, info.shape.wanted(), "")
			return
		}
		var seen fieldSet
		d.decodeStruct(n, v, info, support, status, &seen, false)
	case shapeMap:
		if n.Kind != yaml.MappingNode {
			d.wrongType(n, info.shape.wanted(), "")
			return
		}
		v.Set(reflect.MakeMapWithSize(info.typ, len(n.Content)/2))
		d.decodeMap(n, v, info, false)
	case shapeSlice:
		d.decodeSlice(n, v, info, support, status)
	default:
		d.decodeScalar(n, v, info)
	}
}

func (d *document) decodeSlice(n *yaml.Node, v reflect.Value, info *typeInfo, support *supportNode, status SupportStatus) {
	if n.Kind != yaml.SequenceNode {
		fix := "begin each entry with a dash"
		d.wrongType(n, info.shape.wanted(), fix)
		return
	}
	v.Set(reflect.MakeSlice(info.typ, len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		d.pushIndex(i)
		d.decode(item, v.Index(i), info.elem, support, status)
		d.pop()
	}
}

// fieldSet remembers which fields of a struct were given, by their index in typeInfo.fields.
type fieldSet [2]uint64

func (s *fieldSet) add(i int) (was bool) {
	word, bit := i/64%2, uint64(1)<<(i%64)
	was = s[word]&bit != 0
	s[word] |= bit
	return was
}

// decodeStruct reads the fields of a mapping. For a mapping that is merged into another (<<), fields that are
// there already stay.
func (d *document) decodeStruct(n *yaml.Node, v reflect.Value, info *typeInfo, support *supportNode, status SupportStatus, seen *fieldSet, merged bool) {
	var unknown map[string]bool
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		if isMerge(key) {
			merges = append(merges, value)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			d.errorAt(key, "a key must be plain text, not "+found(key, true), "")
			continue
		}
		d.push(key.Value)
		index, ok := info.byName[key.Value]
		switch {
		case !ok:
			if unknown[key.Value] {
				d.errorAt(key, "this key is given twice", "remove one of them")
			} else {
				d.unknownField(key, info)
			}
			if unknown == nil {
				unknown = map[string]bool{}
			}
			unknown[key.Value] = true
		case seen.add(index):
			if !merged {
				d.duplicate(key)
			}
		default:
			d.decodeField(key, value, v, &info.fields[index], support, status)
		}
		d.pop()
	}
	for _, merge := range merges {
		for _, source := range d.mergeSources(merge) {
			d.decodeStruct(source, v, info, support, status, seen, true)
		}
	}
}

// unknownField reports a key that names no field of info.
func (d *document) unknownField(key *yaml.Node, info *typeInfo) {
	if len(d.file.Diagnostics) > maxDiagnostics {
		d.broke = true
		return
	}
	near, fix := suggestField(info, key.Value)
	if instead := retired(info.typ, key.Value); instead != "" {
		d.errorAt(key, fmt.Sprintf("%s was a field of KubeVirt once", quoteValue(key.Value)), instead)
		return
	}
	d.errorAt(key, "unknown field "+quoteValue(key.Value), fix)
	if near != "" {
		d.path[len(d.path)-1].name = near
		d.suggested = append(d.suggested, pathString(d.prefix, d.path))
	}
}

// retired says what to use in place of a field that KubeVirt had in former versions; "" for others.
func retired(owner reflect.Type, name string) string {
	switch owner {
	case reflect.TypeFor[kubevirtv1.Disk]():
		if name == "floppy" {
			return "no machine type has a floppy drive: use cdrom"
		}
	case reflect.TypeFor[kubevirtv1.Volume]():
		if name == "registryDisk" {
			return "use containerDisk"
		}
	}
	return ""
}

// decodeField reads one field, if gitvirt carries it out.
func (d *document) decodeField(key, value *yaml.Node, v reflect.Value, field *fieldInfo, support *supportNode, status SupportStatus) {
	below, status := support.below(field.name, status)
	switch status {
	case SupportIgnored:
		return
	case SupportRefused, SupportUndecided:
		leaf := below == nil || len(below.children) == 0
		if status == SupportUndecided && !leaf {
			break
		}
		if below != nil && below.decided || status == SupportUndecided {
			if isNothing(value) {
				return
			}
			fix := "remove it"
			if below != nil && below.instead != "" {
				fix = below.instead
			}
			d.errorAt(key, "known to KubeVirt, not carried out by gitvirt", fix)
			below, status = nil, SupportCarried // say it once; what is below is checked for mistakes all the same
		}
	}
	if field.sensitive && !d.secret {
		d.secret = true
		d.decode(value, field.at(v, true), field.info, below, status)
		d.secret = false
		return
	}
	d.decode(value, field.at(v, true), field.info, below, status)
}

func (d *document) decodeMap(n *yaml.Node, v reflect.Value, info *typeInfo, merged bool) {
	var merges []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := resolve(n.Content[i]), n.Content[i+1]
		if isMerge(key) {
			merges = append(merges, value)
			continue
		}
		if key.Kind != yaml.ScalarNode {
			d.errorAt(key, "a key must be plain text, not "+found(key, true), "")
			continue
		}
		d.pushKey(key.Value)
		k := reflect.ValueOf(key.Value).Convert(info.typ.Key())
		if v.MapIndex(k).IsValid() {
			if !merged {
				d.duplicate(key)
			}
			d.pop()
			continue
		}
		d.checkText(key, key.Value)
		element := reflect.New(info.elem.typ).Elem()
		d.decode(value, element, info.elem, nil, SupportCarried)
		v.SetMapIndex(k, element)
		d.pop()
	}
	for _, merge := range merges {
		for _, source := range d.mergeSources(merge) {
			d.decodeMap(source, v, info, true)
		}
	}
}

// duplicate reports a key that is given twice; for the fields that say what the object is, nobody can tell which
// one counts.
func (d *document) duplicate(key *yaml.Node) {
	d.errorAt(key, "this key is given twice", "remove one of them")
	switch pathString("", d.path) {
	case "apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace":
		d.ambiguous = true
	}
}

// isMerge tells YAML's merge key.
func isMerge(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.Tag == "!!merge"
}

// mergeSources returns the mappings that a merge key names.
func (d *document) mergeSources(value *yaml.Node) []*yaml.Node {
	value = resolve(value)
	if !d.spend(value) {
		return nil
	}
	switch value.Kind {
	case yaml.MappingNode:
		return []*yaml.Node{value}
	case yaml.SequenceNode:
		var sources []*yaml.Node
		for _, item := range value.Content {
			item = resolve(item)
			switch {
			case item.Kind != yaml.MappingNode:
				d.errorAt(item, "<< merges mappings, found "+found(item, d.secret), "")
			case d.spend(item):
				sources = append(sources, item)
			}
		}
		return sources
	}
	d.errorAt(value, "<< merges mappings, found "+found(value, d.secret), "")
	return nil
}
