package schemas

import (
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
	c := &comparison{out: make([]Difference, 0, 4), path: make([]byte, 0, 128)}
	for _, part := range []struct {
		path          string
		before, after any
	}{
		{"metadata", &before.Object.ObjectMeta, &after.Object.ObjectMeta},
		{"spec", &before.Object.Spec, &after.Object.Spec},
		{"secrets", &before.Secrets, &after.Secrets},
		{"contents", &before.Contents, &after.Contents},
	} {
		old, wanted := reflect.ValueOf(part.before).Elem(), reflect.ValueOf(part.after).Elem()
		info := infoOf(old.Type())
		c.path = append(c.path[:0], part.path...)
		if info.shape == shapeMap { // of what a machine uses, each by itself
			c.maps(old, wanted, info)
			continue
		}
		c.compare(old, wanted, info)
	}
	c.claims(before.Claims, after.Claims)
	slices.SortFunc(c.out, func(a, b Difference) int { return strings.Compare(a.Path, b.Path) })
	return c.out
}

type comparison struct {
	out []Difference
	// path is that of the values that are looked at; it is a string only where something differs.
	path []byte
}

func (c *comparison) add(before, after any) {
	c.out = append(c.out, Difference{Path: string(c.path), Before: before, After: after})
}

// enter goes below the present path, and returns how to come back.
func (c *comparison) enter(separator, name, end string) (length int) {
	length = len(c.path)
	c.path = append(append(append(c.path, separator...), name...), end...)
	return length
}

func (c *comparison) leave(length int) { c.path = c.path[:length] }

// addBelow adds a difference of something below the present path.
func (c *comparison) addBelow(separator, name, end string, before, after any) {
	length := c.enter(separator, name, end)
	c.add(before, after)
	c.leave(length)
}

// compare walks two values of one type.
func (c *comparison) compare(before, after reflect.Value, info *typeInfo) {
	switch info.shape {
	case shapePointer:
		switch {
		case before.Pointer() == after.Pointer():
		case before.IsNil() || after.IsNil():
			c.add(generic(before, info), generic(after, info))
		default:
			c.compare(before.Elem(), after.Elem(), info.elem)
		}
	case shapeStruct:
		for i := range info.groups {
			c.fields(before, after, &info.groups[i])
		}
	case shapeMap:
		if before.Len() == 0 || after.Len() == 0 {
			if before.Len() != after.Len() {
				c.add(generic(before, info), generic(after, info))
			}
			return
		}
		c.maps(before, after, info)
	case shapeSlice:
		c.lists(before, after, info)
	default:
		if !same(before, after, info) {
			c.add(generic(before, info), generic(after, info))
		}
	}
}

// fields walks the fields of two structs of one type that belong to a group.
func (c *comparison) fields(before, after reflect.Value, group *fieldGroup) {
	before, after = group.in(before), group.in(after)
	if !before.IsValid() || !after.IsValid() {
		return
	}
	for _, field := range group.fields {
		old, wanted := field.within(before), field.within(after)
		if same(old, wanted, field.info) || field.caseless && strings.EqualFold(old.String(), wanted.String()) {
			continue
		}
		length := c.enter(".", field.name, "")
		c.compare(old, wanted, field.info)
		c.leave(length)
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
		return before.IsZero() && after.IsZero()
	case shapeQuantity:
		if before.CanAddr() && after.CanAddr() {
			return before.Addr().Interface().(*resource.Quantity).String() == after.Addr().Interface().(*resource.Quantity).String()
		}
		old, wanted := before.Interface().(resource.Quantity), after.Interface().(resource.Quantity)
		return old.String() == wanted.String()
	}
	return before.IsZero() && after.IsZero() || reflect.DeepEqual(before.Interface(), after.Interface())
}

// enterKey goes to an entry of a map; keys with dots or slashes, as labels have them, are put in brackets.
func (c *comparison) enterKey(key string) (length int) {
	if strings.ContainsAny(key, "./[]") {
		return c.enter("[", key, "]")
	}
	return c.enter(".", key, "")
}

func (c *comparison) maps(before, after reflect.Value, info *typeInfo) {
	if before.Len() == 0 && after.Len() == 0 {
		return
	}
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
		length := c.enterKey(key)
		switch {
		case old.IsValid() && wanted.IsValid():
			c.compare(old, wanted, info.elem)
		case old.IsValid():
			c.add(generic(old, info.elem), nil)
		default:
			c.add(nil, generic(wanted, info.elem))
		}
		c.leave(length)
	}
}

// claims compares claims by volume, with sizes as people write them. What a claim is called is its field "claim", because the
// volume is what names it here.
func (c *comparison) claims(before, after map[string]Claim) {
	c.path = append(c.path[:0], "claims"...)
	for volume, claim := range before {
		if _, ok := after[volume]; !ok {
			c.addBelow("[", volume, "]", genericClaim(volume, claim), nil)
		}
	}
	for volume, claim := range after {
		old, ok := before[volume]
		if !ok {
			c.addBelow("[", volume, "]", nil, genericClaim(volume, claim))
			continue
		}
		length := c.enter("[", volume, "]")
		c.claim(&old, &claim)
		c.leave(length)
	}
}

func (c *comparison) claim(old, claim *Claim) {
	info := infoOf(reflect.TypeFor[Claim]())
	was, is := reflect.ValueOf(old).Elem(), reflect.ValueOf(claim).Elem()
	for i := range info.fields {
		field := &info.fields[i]
		name := field.name
		switch name {
		case "capacity":
			if old.Capacity != claim.Capacity {
				c.addBelow(".", name, "", genericSize(old.Capacity), genericSize(claim.Capacity))
			}
			continue
		case "name":
			name = "claim"
		}
		length := c.enter(".", name, "")
		c.compare(field.within(was), field.within(is), field.info)
		c.leave(length)
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
func (c *comparison) lists(before, after reflect.Value, info *typeInfo) {
	name, ok := nameField(info.elem)
	if !ok || !unique(before, name) || !unique(after, name) {
		if old, wanted := generic(before, info), generic(after, info); !reflect.DeepEqual(old, wanted) {
			c.add(old, wanted)
		}
		return
	}
	for i := range before.Len() {
		old := before.Index(i)
		key := name.at(old, false).String()
		if wanted := element(after, i, name, key); wanted.IsValid() {
			length := c.enter("[", key, "]")
			c.compare(old, wanted, info.elem)
			c.leave(length)
		} else {
			c.addBelow("[", key, "]", generic(old, info.elem), nil)
		}
	}
	for i := range after.Len() {
		wanted := after.Index(i)
		if key := name.at(wanted, false).String(); !element(before, i, name, key).IsValid() {
			c.addBelow("[", key, "]", nil, generic(wanted, info.elem))
		}
	}
	c.order(before, after, name)
}

// order compares the order of the elements that two lists both have.
func (c *comparison) order(before, after reflect.Value, name *fieldInfo) {
	shorter := min(before.Len(), after.Len())
	same := 0
	for same < shorter && name.at(before.Index(same), false).String() == name.at(after.Index(same), false).String() {
		same++
	}
	if same == shorter { // one is the other, and what was added at its end
		return
	}
	common := func(list, other reflect.Value) []string {
		names := make([]string, 0, list.Len())
		for i := range list.Len() {
			if key := name.at(list.Index(i), false).String(); element(other, i, name, key).IsValid() {
				names = append(names, key)
			}
		}
		return names
	}
	if was, is := common(before, after), common(after, before); !slices.Equal(was, is) {
		c.addBelow(".", "order", "", strings.Join(was, ", "), strings.Join(is, ", "))
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

// element returns the element of a name; it is looked for at its old place first.
func element(list reflect.Value, place int, name *fieldInfo, key string) reflect.Value {
	if place < list.Len() {
		if e := list.Index(place); name.at(e, false).String() == key {
			return e
		}
	}
	for i := range list.Len() {
		if e := list.Index(i); name.at(e, false).String() == key {
			return e
		}
	}
	return reflect.Value{}
}
