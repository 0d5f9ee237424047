package schemas

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Difference is a field that two records have otherwise. Before and After are JSON values; nil means that the field is not
// there.
type Difference struct {
	Path          string
	Before, After any
}

// Compare returns what two records have otherwise, ordered by path. Elements of lists that have names are compared by name; their
// order is a field of its own, because the order of disks decides their device names in the guest. Of Secrets and ConfigMaps the digests
// are compared.
func Compare(before, after *Recorded) []Difference {
	c := &comparison{}
	for _, part := range []struct {
		path          string
		before, after any
	}{
		{"metadata", before.Object.ObjectMeta, after.Object.ObjectMeta},
		{"spec", before.Object.Spec, after.Object.Spec},
		{"secrets", before.Secrets, after.Secrets},
		{"contents", before.Contents, after.Contents},
	} {
		old := reflect.ValueOf(part.before)
		info := infoOf(old.Type())
		if info.shape == shapeMap { // of what a machine uses, each by itself
			c.maps(part.path, old, reflect.ValueOf(part.after), info)
			continue
		}
		c.compare(part.path, old, reflect.ValueOf(part.after), info)
	}
	c.claims(before.Claims, after.Claims)
	slices.SortFunc(c.out, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return c.out
}

type comparison struct{ out []Difference }

func (c *comparison) add(path string, before, after any) {
	c.out = append(c.out, Difference{Path: path, Before: before, After: after})
}

// compare walks two values of one type.
func (c *comparison) compare(path string, before, after reflect.Value, info *typeInfo) {
	switch info.shape {
	case shapePointer:
		switch {
		case before.Pointer() == after.Pointer():
		case before.IsNil() || after.IsNil():
			c.add(path, generic(before, info), generic(after, info))
		default:
			c.compare(path, before.Elem(), after.Elem(), info.elem)
		}
	case shapeStruct:
		for i := range info.fields {
			field := &info.fields[i]
			if old, wanted := field.at(before, false), field.at(after, false); old.IsValid() && wanted.IsValid() && !same(old, wanted, field.info) {
				c.compare(path+"."+field.name, old, wanted, field.info)
			}
		}
	case shapeMap:
		if before.Len() == 0 || after.Len() == 0 {
			if before.Len() != after.Len() {
				c.add(path, generic(before, info), generic(after, info))
			}
			return
		}
		c.maps(path, before, after, info)
	case shapeSlice:
		c.lists(path, before, after, info)
	default:
		if !same(before, after, info) {
			c.add(path, generic(before, info), generic(after, info))
		}
	}
}

// same is a quick look at what is mostly equal.
func same(before, after reflect.Value, info *typeInfo) bool {
	switch info.shape {
	case shapeString:
		return before.String() == after.String()
	case shapeBool:
		return before.Bool() == after.Bool()
	case shapeInt:
		return before.Int() == after.Int()
	case shapeUint:
		return before.Uint() == after.Uint()
	case shapePointer:
		return before.Pointer() == after.Pointer()
	case shapeSlice, shapeMap, shapeBytes:
		return before.Len() == 0 && after.Len() == 0
	case shapeStruct:
		return false
	case shapeQuantity:
		old, wanted := before.Interface().(resource.Quantity), after.Interface().(resource.Quantity)
		return old.String() == wanted.String()
	}
	return reflect.DeepEqual(before.Interface(), after.Interface())
}

// JoinPath appends a key to a path; keys with dots or slashes, as labels have them, are put in brackets.
func JoinPath(path, key string) string {
	switch {
	case strings.ContainsAny(key, "./[]"):
		return path + "[" + key + "]"
	case path == "":
		return key
	}
	return path + "." + key
}

func (c *comparison) maps(path string, before, after reflect.Value, info *typeInfo) {
	var keys []string
	for _, side := range []reflect.Value{before, after} {
		for _, key := range side.MapKeys() {
			keys = append(keys, key.String())
		}
	}
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		at := reflect.ValueOf(key).Convert(info.typ.Key())
		old, wanted := before.MapIndex(at), after.MapIndex(at)
		switch {
		case old.IsValid() && wanted.IsValid():
			c.compare(JoinPath(path, key), old, wanted, info.elem)
		case old.IsValid():
			c.add(JoinPath(path, key), generic(old, info.elem), nil)
		default:
			c.add(JoinPath(path, key), nil, generic(wanted, info.elem))
		}
	}
}

// claims compares claims by volume, with sizes as people write them. What a claim is called is its field "claim", because the
// volume is what names it here.
func (c *comparison) claims(before, after map[string]Claim) {
	info := infoOf(reflect.TypeFor[Claim]())
	for volume, claim := range before {
		if _, ok := after[volume]; !ok {
			c.add("claims["+volume+"]", genericClaim(volume, claim), nil)
		}
	}
	for volume, claim := range after {
		old, ok := before[volume]
		if !ok {
			c.add("claims["+volume+"]", nil, genericClaim(volume, claim))
			continue
		}
		was, is := reflect.ValueOf(old), reflect.ValueOf(claim)
		for i := range info.fields {
			field := &info.fields[i]
			path := "claims[" + volume + "]."
			switch field.name {
			case "capacity":
				if old.Capacity != claim.Capacity {
					c.add(path+field.name, genericSize(old.Capacity), genericSize(claim.Capacity))
				}
			case "name":
				c.compare(path+"claim", field.at(was, false), field.at(is, false), field.info)
			default:
				c.compare(path+field.name, field.at(was, false), field.at(is, false), field.info)
			}
		}
	}
}

func genericClaim(volume string, claim Claim) any {
	out, ok := generic(reflect.ValueOf(claim), infoOf(reflect.TypeFor[Claim]())).(map[string]any)
	if !ok {
		return nil
	}
	out["claim"], out["name"] = claim.Name, volume
	if size := genericSize(claim.Capacity); size != nil {
		out["capacity"] = size
	}
	return out
}

func genericSize(bytes int64) any {
	if bytes == 0 {
		return nil
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

// lists compares lists whose elements have names by name, others as a whole.
func (c *comparison) lists(path string, before, after reflect.Value, info *typeInfo) {
	name, ok := nameField(info.elem)
	if !ok || !unique(before, name) || !unique(after, name) {
		if old, wanted := generic(before, info), generic(after, info); !reflect.DeepEqual(old, wanted) {
			c.add(path, old, wanted)
		}
		return
	}
	var was, is []string // those that both have
	for i := range before.Len() {
		old := before.Index(i)
		key := name.at(old, false).String()
		wanted := element(after, name, key)
		if !wanted.IsValid() {
			c.add(path+"["+key+"]", generic(old, info.elem), nil)
			continue
		}
		was = append(was, key)
		c.compare(path+"["+key+"]", old, wanted, info.elem)
	}
	for i := range after.Len() {
		wanted := after.Index(i)
		key := name.at(wanted, false).String()
		if element(before, name, key).IsValid() {
			is = append(is, key)
		} else {
			c.add(path+"["+key+"]", nil, generic(wanted, info.elem))
		}
	}
	if !slices.Equal(was, is) {
		c.add(path+".order", strings.Join(was, ", "), strings.Join(is, ", "))
	}
}

// nameField returns the field that names the elements of a list.
func nameField(info *typeInfo) (*fieldInfo, bool) {
	if info.shape != shapeStruct {
		return nil, false
	}
	i, ok := info.byName["name"]
	if !ok || info.fields[i].info.shape != shapeString {
		return nil, false
	}
	return &info.fields[i], true
}

func unique(list reflect.Value, name *fieldInfo) bool {
	for i := range list.Len() {
		key := name.at(list.Index(i), false).String()
		for j := range i {
			if name.at(list.Index(j), false).String() == key {
				return false
			}
		}
	}
	return true
}

func element(list reflect.Value, name *fieldInfo, key string) reflect.Value {
	for i := range list.Len() {
		if e := list.Index(i); name.at(e, false).String() == key {
			return e
		}
	}
	return reflect.Value{}
}

// generic returns a value as JSON has it; nil for one that is not there. In records digests stand already for what is sensitive.
func generic(v reflect.Value, info *typeInfo) any {
	switch info.shape {
	case shapePointer:
		if v.IsNil() {
			return nil
		}
		if value := generic(v.Elem(), info.elem); value != nil {
			return value
		}
		return zeroOf(info.elem) // one that is set says something, even with a zero
	case shapeString:
		if v.Len() > 0 {
			return v.String()
		}
	case shapeBool:
		if v.Bool() {
			return true
		}
	case shapeInt:
		if n := v.Int(); n != 0 {
			return float64(n)
		}
	case shapeUint:
		if n := v.Uint(); n != 0 {
			return float64(n)
		}
	case shapeStruct:
		return genericStruct(v, info)
	case shapeSlice:
		if v.Len() == 0 {
			return nil
		}
		out := make([]any, v.Len())
		for i := range out {
			out[i] = orZero(generic(v.Index(i), info.elem), info.elem)
		}
		return out
	case shapeMap:
		if v.Len() == 0 {
			return nil
		}
		out := make(map[string]any, v.Len())
		for entries := v.MapRange(); entries.Next(); {
			out[entries.Key().String()] = orZero(generic(entries.Value(), info.elem), info.elem)
		}
		return out
	case shapeQuantity:
		if quantity := v.Interface().(resource.Quantity); !quantity.IsZero() || quantity.Format != "" {
			return quantity.String()
		}
	default:
		return encoded(v, info)
	}
	return nil
}

func genericStruct(v reflect.Value, info *typeInfo) any {
	out := map[string]any{}
	for i := range info.fields {
		field := &info.fields[i]
		value := field.at(v, false)
		if !value.IsValid() || value.IsZero() {
			continue
		}
		below := generic(value, field.info)
		if empty, ok := below.(map[string]any); ok && len(empty) == 0 && field.info.shape == shapeStruct {
			continue
		}
		if below != nil {
			out[field.name] = below
		}
	}
	return out
}

// encoded is a value of a type that writes itself.
func encoded(v reflect.Value, info *typeInfo) any {
	e := &encoder{digest: func(value string) string { return value }}
	if !e.encode(v, info, false) {
		return nil
	}
	var out any
	if err := json.Unmarshal(e.buf, &out); err != nil {
		return string(e.buf) // cannot happen for what was encoded
	}
	return out
}

func orZero(value any, info *typeInfo) any {
	if value == nil {
		return zeroOf(info)
	}
	return value
}

// zeroOf is what an empty value looks like in JSON.
func zeroOf(info *typeInfo) any {
	switch info.shape {
	case shapeStruct, shapeMap:
		return map[string]any{}
	case shapeSlice:
		return []any{}
	case shapeBool:
		return false
	case shapeInt, shapeUint, shapeFloat:
		return float64(0)
	case shapeString:
		return ""
	case shapeQuantity:
		return "0"
	}
	return nil
}
