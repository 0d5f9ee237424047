package domainxml

import (
	"encoding/xml"
	"fmt"
	"strings"
)

// treeBuilder takes what an xmlWriter would write as a tree: comparing a machine with its definition needs no document,
// and parsing one costs ten times what rendering it does.
type treeBuilder struct{ stack []*node }

func (b *treeBuilder) top() *node { return b.stack[len(b.stack)-1] }

func (b *treeBuilder) open(name string, attributes []string) {
	element := &node{attrs: make([]xml.Attr, 0, len(attributes)/2)}
	element.space, element.name = split(name)
	for i := 0; i+1 < len(attributes); i += 2 {
		if attributes[i+1] == "" {
			continue
		}
		space, local := split(attributes[i])
		element.attrs = append(element.attrs, xml.Attr{Name: xml.Name{Space: space, Local: local}, Value: attributes[i+1]})
	}
	parent := b.top()
	parent.children = append(parent.children, element)
	b.stack = append(b.stack, element)
}

// split takes the prefix off a name.
func split(name string) (prefix, local string) {
	if prefix, local, ok := strings.Cut(name, ":"); ok {
		return prefix, local
	}
	return "", name
}

func (b *treeBuilder) close() { b.stack = b.stack[:len(b.stack)-1] }

func (b *treeBuilder) text(text string) { b.top().text = strings.TrimSpace(text) }

// tree is what Render writes for a machine, without the record. It leaves out what Render checks of values: what a domain
// was defined with has passed it.
func (m Machine) tree() (*node, error) {
	rendered, err := m.rendered()
	if err != nil || m.Kept == nil {
		return rendered, err
	}
	return m.keep(rendered)
}

// rendered is the tree of what the manifest alone makes of a machine.
func (m Machine) rendered() (*node, error) {
	m.Record = nil
	root := &node{}
	r, err := newRenderer(m)
	if err != nil {
		return nil, err
	}
	r.tree = &treeBuilder{stack: []*node{root}}
	if err := r.domain(nil); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", m.Address, err)
	}
	return root.children[0], nil
}
