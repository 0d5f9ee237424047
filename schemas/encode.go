package schemas

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
)

// encoder writes Go values as canonical JSON: keys sorted, nothing that was left out, quantities in their canonical
// form, ASCII only. Two manifests that ask for the same give the same bytes however they are written, and a later
// KubeVirt API with more fields gives the same bytes as well, which encoding/json would not.
type encoder struct {
	buf []byte
	// digest replaces sensitive values.
	digest func(value string) string
}

// encode appends v, and reports whether there was anything to write.
func (e *encoder) encode(v reflect.Value, info *typeInfo, sensitive bool) bool {
	switch info.shape {
	case shapePointer:
		if v.IsNil() {
			return false
		}
		before := len(e.buf)
		if !e.encode(v.Elem(), info.elem, sensitive) { // a pointer that is set says something, even to a zero
			e.buf = e.zero(e.buf[:before], info.elem)
		}
		return true
	case shapeString:
		if v.Len() == 0 {
			return false
		}
		if sensitive {
			e.buf = appendString(e.buf, e.digest(v.String()))
		} else {
			e.buf = appendString(e.buf, v.String())
		}
		return true
	case shapeBool:
		if !v.Bool() {
			return false
		}
		e.buf = append(e.buf, "true"...)
		return true
	case shapeInt:
		e.buf = strconv.AppendInt(e.buf, v.Int(), 10)
		return v.Int() != 0
	case shapeUint:
		e.buf = strconv.AppendUint(e.buf, v.Uint(), 10)
		return v.Uint() != 0
	case shapeStruct:
		return e.encodeStruct(v, info)
	case shapeSlice:
		return e.encodeSlice(v, info, sensitive)
	case shapeMap:
		return e.encodeMap(v, info)
	case shapeQuantity:
		q := v.Interface().(resource.Quantity)
		if q.IsZero() && q.Format == "" {
			return false
		}
		e.buf = appendString(e.buf, q.String())
		return true
	}
	if v.IsZero() {
		return false
	}
	text, err := json.Marshal(v.Interface())
	if err != nil { // cannot happen for what was decoded
		text = []byte("null")
	}
	e.buf = appendASCII(e.buf, text)
	return true
}

// zero appends what an empty value of the type looks like.
func (e *encoder) zero(buf []byte, info *typeInfo) []byte {
	switch info.shape {
	case shapeStruct, shapeMap:
		return append(buf, "{}"...)
	case shapeSlice:
		return append(buf, "[]"...)
	case shapeBool:
		return append(buf, "false"...)
	case shapeInt, shapeUint, shapeFloat:
		return append(buf, '0')
	case shapeString:
		return append(buf, `""`...)
	case shapeQuantity:
		return append(buf, `"0"`...)
	}
	return append(buf, "null"...)
}

func (e *encoder) encodeStruct(v reflect.Value, info *typeInfo) bool {
	e.buf = append(e.buf, '{')
	empty := true
	for i := range info.fields {
		field := &info.fields[i]
		value := field.at(v, false)
		if !value.IsValid() {
			continue
		}
		before := len(e.buf)
		if !empty {
			e.buf = append(e.buf, ',')
		}
		e.buf = append(e.buf, '"')
		e.buf = append(e.buf, field.name...)
		e.buf = append(e.buf, '"', ':')
		if field.query {
			value = e.withoutQuery(value)
		}
		if e.encode(value, field.info, field.sensitive) {
			empty = false
		} else {
			e.buf = e.buf[:before]
		}
	}
	e.buf = append(e.buf, '}')
	return !empty
}

// withoutQuery puts a digest in place of a URL's query, in which signatures are.
func (e *encoder) withoutQuery(address reflect.Value) reflect.Value {
	if before, query, ok := strings.Cut(address.String(), "?"); ok {
		return reflect.ValueOf(before + "?" + e.digest(query))
	}
	return address
}

func (e *encoder) encodeSlice(v reflect.Value, info *typeInfo, sensitive bool) bool {
	if v.Len() == 0 {
		return false
	}
	e.buf = append(e.buf, '[')
	for i := range v.Len() {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		before := len(e.buf)
		if !e.encode(v.Index(i), info.elem, sensitive) {
			e.buf = e.zero(e.buf[:before], info.elem)
		}
	}
	e.buf = append(e.buf, ']')
	return true
}

func (e *encoder) encodeMap(v reflect.Value, info *typeInfo) bool {
	if v.Len() == 0 {
		return false
	}
	keys := make([]string, 0, v.Len())
	for _, k := range v.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	e.buf = append(e.buf, '{')
	for i, k := range keys {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendString(e.buf, k)
		e.buf = append(e.buf, ':')
		before := len(e.buf)
		value := v.MapIndex(reflect.ValueOf(k).Convert(info.typ.Key()))
		if !e.encode(value, info.elem, false) {
			e.buf = e.zero(e.buf[:before], info.elem)
		}
	}
	e.buf = append(e.buf, '}')
	return true
}

// appendString appends s as a JSON string of ASCII characters, none of which XML gives a meaning.
func appendString(buf []byte, s string) []byte {
	buf = append(buf, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < 0x7f {
			switch c {
			case '"', '\\':
				buf = append(buf, '\\', c)
			case '<', '>', '&':
				buf = appendEscape(buf, rune(c))
			default:
				buf = append(buf, c)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		buf = appendEscape(buf, r)
		i += size
	}
	return append(buf, '"')
}

func appendEscape(buf []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	unit := func(u rune) {
		buf = append(buf, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	if r >= 0x10000 { // a surrogate pair, as JSON has it
		r -= 0x10000
		unit(0xD800 + r>>10)
		unit(0xDC00 + r&0x3FF)
		return buf
	}
	unit(r)
	return buf
}

// appendASCII appends JSON text with every character outside ASCII escaped.
func appendASCII(buf, text []byte) []byte {
	for _, r := range string(text) {
		if r < 0x7f {
			buf = append(buf, byte(r)) //nolint:gosec // below 0x80
		} else {
			buf = appendEscape(buf, r)
		}
	}
	return buf
}
