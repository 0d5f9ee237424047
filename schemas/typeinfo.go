package schemas

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// shape says how a Go type is written in a manifest.
type shape uint8

const (
	shapeString shape = iota
	shapeBool
	shapeInt
	shapeUint
	shapeFloat
	shapeBytes    // base64 text
	shapeQuantity // resource.Quantity
	shapeCustom   // anything else with its own UnmarshalJSON
	shapePointer
	shapeSlice
	shapeMap
	shapeStruct
	shapeAny
)

// wanted names the shape in a sentence that begins with "wanted".
func (s shape) wanted() string {
	switch s {
	case shapeString:
		return "a string"
	case shapeBool:
		return "true or false"
	case shapeInt, shapeUint:
		return "a whole number"
	case shapeFloat:
		return "a number"
	case shapeBytes:
		return "base64 text"
	case shapeQuantity:
		return "a quantity such as 512Mi"
	case shapeSlice:
		return "a list"
	case shapeMap, shapeStruct:
		return "a mapping"
	}
	return "another type"
}

// typeInfo is what the decoder and the encoder need to know about a Go type. It is built once per type and never
// changed afterwards.
type typeInfo struct {
	typ    reflect.Type
	shape  shape
	elem   *typeInfo      // of pointers, slices and maps
	fields []fieldInfo    // of structs, in order of their names
	byName map[string]int // name -> index in fields
	groups []fieldGroup   // of structs, the same fields by where they are
}

// fieldGroup are the fields of a struct that are its own, or those of one struct that is inlined.
type fieldGroup struct {
	inlined []int // where the inlined struct is; empty for a struct's own fields
	fields  []*fieldInfo
}

// in returns the struct that holds the group's fields, which is invalid for one behind a nil pointer.
func (g *fieldGroup) in(v reflect.Value) reflect.Value {
	for _, i := range g.inlined {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	if v.Kind() == reflect.Pointer {
		return v.Elem()
	}
	return v
}

// within returns the field's value in the struct of its group.
func (f *fieldInfo) within(v reflect.Value) reflect.Value { return v.Field(f.index[len(f.index)-1]) }

func groupFields(fields []fieldInfo) []fieldGroup {
	var groups []fieldGroup
	for i := range fields {
		field := &fields[i]
		inlined := field.index[:len(field.index)-1]
		at := slices.IndexFunc(groups, func(g fieldGroup) bool { return slices.Equal(g.inlined, inlined) })
		if at < 0 {
			at, groups = len(groups), append(groups, fieldGroup{inlined: inlined})
		}
		groups[at].fields = append(groups[at].fields, field)
	}
	return groups
}

// fieldInfo is one field of a struct as it is named in JSON; fields of inlined structs are listed with their owner's.
type fieldInfo struct {
	name  string
	index []int
	info  *typeInfo
	// sensitive marks user data and credentials: they are never printed, and only their digest is recorded.
	sensitive bool
	// query marks a URL, of which that is so for what follows the question mark.
	query bool
	// caseless marks text whose case means nothing to libvirt.
	caseless bool
}

// at returns the field's value in v; embedded pointers on the way are allocated when create is set, else an
// invalid Value is returned for a field of an embedded pointer that is nil.
func (f *fieldInfo) at(v reflect.Value, create bool) reflect.Value {
	if len(f.index) == 1 && v.Kind() == reflect.Struct {
		return v.Field(f.index[0])
	}
	for _, i := range f.index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				if !create {
					return reflect.Value{}
				}
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// typeInfos caches typeInfo by reflect.Type.
var typeInfos sync.Map

// infoOf returns the typeInfo of t.
func infoOf(t reflect.Type) *typeInfo {
	if cached, ok := typeInfos.Load(t); ok {
		return cached.(*typeInfo)
	}
	info := buildInfo(t, map[reflect.Type]*typeInfo{})
	stored, _ := typeInfos.LoadOrStore(t, info)
	return stored.(*typeInfo)
}

// decodedByField are the types that KubeVirt gives an UnmarshalJSON only to tidy up addresses; they are read field
// by field like any other struct.
func decodedByField(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[kubevirtv1.VirtualMachineInstanceSpec](),
		reflect.TypeFor[kubevirtv1.DHCPOptions](),
		reflect.TypeFor[kubevirtv1.PodNetwork]():
		return true
	}
	return false
}

func buildInfo(t reflect.Type, building map[reflect.Type]*typeInfo) *typeInfo {
	if info, ok := building[t]; ok {
		return info
	}
	info := &typeInfo{typ: t}
	building[t] = info
	if t == reflect.TypeFor[resource.Quantity]() {
		info.shape = shapeQuantity
		return info
	}
	if t.Kind() != reflect.Pointer && !decodedByField(t) &&
		reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		info.shape = shapeCustom
		return info
	}
	switch t.Kind() {
	case reflect.String:
		info.shape = shapeString
	case reflect.Bool:
		info.shape = shapeBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		info.shape = shapeInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		info.shape = shapeUint
	case reflect.Float32, reflect.Float64:
		info.shape = shapeFloat
	case reflect.Pointer:
		info.shape = shapePointer
		info.elem = buildInfo(t.Elem(), building)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			info.shape = shapeBytes
			break
		}
		info.shape = shapeSlice
		info.elem = buildInfo(t.Elem(), building)
	case reflect.Map:
		info.shape = shapeMap
		info.elem = buildInfo(t.Elem(), building)
	case reflect.Struct:
		info.shape = shapeStruct
		info.fields = collectFields(t, nil, building)
		slices.SortFunc(info.fields, func(a, b fieldInfo) int { return strings.Compare(a.name, b.name) })
		info.byName = make(map[string]int, len(info.fields))
		for i, f := range info.fields {
			info.byName[f.name] = i
		}
		info.groups = groupFields(info.fields)
	default:
		info.shape = shapeAny
	}
	return info
}

// collectFields lists the JSON fields of a struct, those of inlined structs included; an outer field hides an
// inlined one of the same name, as in encoding/json.
func collectFields(t reflect.Type, prefix []int, building map[reflect.Type]*typeInfo) []fieldInfo {
	var own, inlined []fieldInfo
	for i := range t.NumField() {
		field := t.Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || (!field.IsExported() && !field.Anonymous) {
			continue
		}
		index := append(slices.Clone(prefix), i)
		if field.Anonymous && name == "" {
			embedded := field.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			if embedded.Kind() == reflect.Struct {
				inlined = append(inlined, collectFields(embedded, index, building)...)
				continue
			}
		}
		if name == "" {
			name = field.Name
		}
		own = append(own, fieldInfo{
			name: name, index: index, info: buildInfo(field.Type, building), sensitive: isSensitive(t, name),
			query:    t == reflect.TypeFor[cdiv1.DataVolumeSourceHTTP]() && name == "url",
			caseless: t == reflect.TypeFor[kubevirtv1.Firmware]() && name == "uuid",
		})
	}
	for _, f := range inlined {
		if !slices.ContainsFunc(own, func(o fieldInfo) bool { return o.name == f.name }) {
			own = append(own, f)
		}
	}
	return own
}

// isSensitive tells the fields that hold user data or network data, or what a web server is to be told.
func isSensitive(owner reflect.Type, name string) bool {
	switch owner {
	case reflect.TypeFor[kubevirtv1.CloudInitNoCloudSource](), reflect.TypeFor[kubevirtv1.CloudInitConfigDriveSource]():
		return strings.HasPrefix(name, "userData") || (strings.HasPrefix(name, "networkData") && name != "networkDataSecretRef")
	case reflect.TypeFor[cdiv1.DataVolumeSourceHTTP]():
		return name == "extraHeaders"
	}
	return false
}
