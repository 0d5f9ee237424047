package schemas

import "reflect"

// memory is what values are read into that are soon forgotten: it is used again for the next ones. Nil is memory that is not.
type memory struct {
	shelves map[*typeInfo]*shelf
}

// shelf holds pointers to values of one type, of which the first are in use.
type shelf struct {
	values []reflect.Value
	used   int
}

// pointer returns a pointer, which info is the type of, to an empty value.
func (m *memory) pointer(info *typeInfo) reflect.Value {
	if m == nil {
		return reflect.New(info.elem.typ)
	}
	return m.take(info, info.elem.typ)
}

// list returns an empty list that can be set and grow, of the type info.
func (m *memory) list(info *typeInfo) reflect.Value {
	if m == nil {
		list := reflect.New(info.typ).Elem()
		list.Set(reflect.MakeSlice(info.typ, 0, 1))
		return list
	}
	list := m.take(info, info.typ).Elem()
	if list.IsNil() {
		list.Set(reflect.MakeSlice(info.typ, 0, 4))
	}
	return list
}

func (m *memory) take(info *typeInfo, of reflect.Type) reflect.Value {
	s := m.shelves[info]
	if s == nil {
		if m.shelves == nil {
			m.shelves = map[*typeInfo]*shelf{}
		}
		s = &shelf{}
		m.shelves[info] = s
	}
	if s.used == len(s.values) {
		s.values = append(s.values, reflect.New(of))
	}
	s.used++
	return s.values[s.used-1]
}

// forget empties all values, for the next ones to be read into.
func (m *memory) forget() {
	for info, s := range m.shelves {
		for _, value := range s.values[:s.used] {
			if info.shape == shapeSlice {
				value.Elem().Clear()
				value.Elem().SetLen(0)
			} else {
				value.Elem().SetZero()
			}
		}
		s.used = 0
	}
}
