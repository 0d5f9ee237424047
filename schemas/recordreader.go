package schemas

import (
	"encoding/json"
	"reflect"
	"strconv"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/resource"
)

// recordReader reads the JSON that an encoder wrote: thousands of records are read for one plan, and encoding/json takes ten
// times as long. It gives up on whatever it does not expect, and then encoding/json reads the record.
type recordReader struct {
	data []byte
	at   int
	// memory is where values go; nil for memory of their own.
	memory *memory
}

// readInto fills v, and reports whether all of the data was understood.
func (r *recordReader) readInto(v reflect.Value) bool {
	return r.value(v, infoOf(v.Type())) && r.at == len(r.data)
}

// take reads one character.
func (r *recordReader) take(c byte) bool {
	if r.at < len(r.data) && r.data[r.at] == c {
		r.at++
		return true
	}
	return false
}

func (r *recordReader) value(v reflect.Value, info *typeInfo) bool {
	switch info.shape {
	case shapePointer:
		if v.IsNil() {
			v.Set(r.memory.pointer(info))
		}
		return r.value(v.Elem(), info.elem)
	case shapeStruct:
		return r.structure(v, info)
	case shapeSlice:
		return r.list(v, info)
	case shapeMap:
		return r.mapping(v, info)
	case shapeString:
		text, ok := r.text()
		if ok {
			v.SetString(string(text))
		}
		return ok
	case shapeBool:
		if r.word("true") {
			v.SetBool(true)
			return true
		}
		return r.word("false")
	case shapeInt:
		n, err := strconv.ParseInt(string(r.number()), 10, 64)
		if err != nil || v.OverflowInt(n) {
			return false
		}
		v.SetInt(n)
		return true
	case shapeUint:
		n, err := strconv.ParseUint(string(r.number()), 10, 64)
		if err != nil || v.OverflowUint(n) {
			return false
		}
		v.SetUint(n)
		return true
	case shapeQuantity:
		text, ok := r.text()
		if !ok {
			return false
		}
		quantity, err := resource.ParseQuantity(string(text))
		if err != nil {
			return false
		}
		*v.Addr().Interface().(*resource.Quantity) = quantity //nolint:forcetypeassert // of this shape
		return true
	}
	start := r.at
	return r.skip() && json.Unmarshal(r.data[start:r.at], v.Addr().Interface()) == nil
}

func (r *recordReader) word(word string) bool {
	if len(r.data)-r.at < len(word) || string(r.data[r.at:r.at+len(word)]) != word {
		return false
	}
	r.at += len(word)
	return true
}

func (r *recordReader) number() []byte {
	start := r.at
	for r.at < len(r.data) && (r.data[r.at] >= '0' && r.data[r.at] <= '9' || r.data[r.at] == '-') {
		r.at++
	}
	return r.data[start:r.at]
}

// text reads a string. The result is only good until the next call when it had escapes.
func (r *recordReader) text() ([]byte, bool) {
	if !r.take('"') {
		return nil, false
	}
	start := r.at
	for r.at < len(r.data) {
		switch c := r.data[r.at]; {
		case c == '"':
			r.at++
			return r.data[start : r.at-1], true
		case c == '\\':
			return r.escaped(start)
		case c < 0x20 || c >= utf8.RuneSelf:
			return nil, false
		}
		r.at++
	}
	return nil, false
}

// escaped reads a string with escapes in it, which begins at start: rare enough to leave to encoding/json.
func (r *recordReader) escaped(start int) ([]byte, bool) {
	for r.at < len(r.data) {
		switch r.data[r.at] {
		case '\\':
			r.at++
		case '"':
			r.at++
			var text string
			if json.Unmarshal(r.data[start-1:r.at], &text) != nil {
				return nil, false
			}
			return []byte(text), true
		}
		r.at++
	}
	return nil, false
}

// each reads what stands between two brackets, one element after the other.
func (r *recordReader) each(opening, closing byte, element func() bool) bool {
	if !r.take(opening) {
		return false
	}
	if r.take(closing) {
		return true
	}
	for element() {
		if r.take(closing) {
			return true
		}
		if !r.take(',') {
			return false
		}
	}
	return false
}

func (r *recordReader) structure(v reflect.Value, info *typeInfo) bool {
	return r.each('{', '}', func() bool {
		name, ok := r.text()
		if !ok || !r.take(':') {
			return false
		}
		i, known := info.byName[string(name)]
		if !known {
			return r.skip()
		}
		field := &info.fields[i]
		return r.value(field.at(v, true), field.info)
	})
}

func (r *recordReader) list(v reflect.Value, info *typeInfo) bool {
	elements := r.memory.list(info)
	n := 0
	ok := r.each('[', ']', func() bool {
		n++
		elements.Grow(1)
		elements.SetLen(n)
		return r.value(elements.Index(n-1), info.elem)
	})
	v.Set(elements.Slice3(0, n, n)) // what somebody appends goes elsewhere
	return ok
}

func (r *recordReader) mapping(v reflect.Value, info *typeInfo) bool {
	v.Set(reflect.MakeMap(info.typ))
	if values, ok := v.Interface().(map[string]string); ok {
		return r.each('{', '}', func() bool {
			name, ok := r.text()
			key := string(name)
			if !ok || !r.take(':') {
				return false
			}
			text, ok := r.text()
			values[key] = string(text)
			return ok
		})
	}
	return r.each('{', '}', func() bool {
		name, ok := r.text()
		key := reflect.ValueOf(string(name)).Convert(info.typ.Key())
		if !ok || !r.take(':') {
			return false
		}
		value := reflect.New(info.elem.typ).Elem()
		if !r.value(value, info.elem) {
			return false
		}
		v.SetMapIndex(key, value)
		return true
	})
}

// skip reads over a value.
func (r *recordReader) skip() bool {
	if r.at >= len(r.data) {
		return false
	}
	switch c := r.data[r.at]; c {
	case '"':
		_, ok := r.text()
		return ok
	case '{':
		return r.each('{', '}', func() bool {
			_, ok := r.text()
			return ok && r.take(':') && r.skip()
		})
	case '[':
		return r.each('[', ']', r.skip)
	}
	start := r.at
	for r.at < len(r.data) && r.data[r.at] != ',' && r.data[r.at] != '}' && r.data[r.at] != ']' {
		r.at++
	}
	return json.Valid(r.data[start:r.at])
}
