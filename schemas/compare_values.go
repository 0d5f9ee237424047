package schemas

import (
	"encoding/json"
	"reflect"

	"k8s.io/apimachinery/pkg/api/resource"
)

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
	for i := range info.groups {
		group := &info.groups[i]
		in := group.in(v)
		if !in.IsValid() || in.IsZero() {
			continue
		}
		for _, field := range group.fields {
			value := field.within(in)
			if value.IsZero() {
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
