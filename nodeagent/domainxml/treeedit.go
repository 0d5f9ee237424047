package domainxml

import (
	"encoding/xml"
	"slices"
	"strings"
)

// writeRaw writes a tree that was parsed without namespaces, prefixes as they were.
func (n *node) writeRaw(out *strings.Builder) {
	name := prefixed(n.space, n.name)
	out.WriteString("<" + name)
	for i := range n.attrs {
		writeAttribute(out, prefixed(n.attrs[i].Name.Space, n.attrs[i].Name.Local), n.attrs[i].Value)
	}
	if n.text == "" && len(n.children) == 0 {
		out.WriteString("/>")
		return
	}
	out.WriteByte('>')
	_ = xml.EscapeText(out, []byte(n.text)) // a strings.Builder takes everything
	for _, child := range n.children {
		child.writeRaw(out)
	}
	out.WriteString("</" + name + ">")
}

func prefixed(space, name string) string {
	if space == "" {
		return name
	}
	return space + ":" + name
}

// same reports whether two elements say the same, word for word.
func same(a, b *node) bool {
	if a.name != b.name || a.space != b.space || a.text != b.text || len(a.attrs) != len(b.attrs) || len(a.children) != len(b.children) {
		return false
	}
	for i := range a.attrs {
		if a.attrs[i] != b.attrs[i] {
			return false
		}
	}
	for i := range a.children {
		if !same(a.children[i], b.children[i]) {
			return false
		}
	}
	return true
}

func (n *node) attribute(name xml.Name) (string, bool) {
	for i := range n.attrs {
		if n.attrs[i].Name == name {
			return n.attrs[i].Value, true
		}
	}
	return "", false
}

// put sets an attribute by its full name.
func (n *node) put(name xml.Name, value string) {
	for i := range n.attrs {
		if n.attrs[i].Name == name {
			n.attrs[i].Value = value
			return
		}
	}
	n.attrs = append(n.attrs, xml.Attr{Name: name, Value: value})
}

func (n *node) remove(name xml.Name) {
	n.attrs = slices.DeleteFunc(n.attrs, func(a xml.Attr) bool { return a.Name == name })
}

func (n *node) removeChild(child *node) {
	n.children = slices.DeleteFunc(n.children, func(other *node) bool { return other == child })
}
