package domainxml

import (
	"slices"

	"libvirt.org/go/libvirtxml"
)

// prune takes out of a tree what libvirtxml refuses to read and returns the paths of it: the smallest elements and
// attributes that it refuses by themselves. Nothing is found when it refuses only a combination.
func (n *node) prune() []string {
	search := &pruner{left: maxTrials}
	search.prune(n, []*node{n}, "", false)
	return search.paths
}

// maxTrials bounds the search, in bytes that were read; what it has not come to by then counts as refused.
const maxTrials = 4 * maxDocument

type pruner struct {
	paths []string
	left  int
}

// prune looks into an element; chain are the elements from the root to it.
func (p *pruner) prune(n *node, chain []*node, path string, devices bool) {
	n.labelChildren(devices)
	n.children = slices.DeleteFunc(n.children, func(child *node) bool {
		if p.accepts(chain, child) {
			return false
		}
		childPath := child.label
		if child.space != "" {
			childPath = spelled(child.space, child.label)
		}
		if path != "" {
			childPath = path + "/" + childPath
		}
		found := len(p.paths)
		deeper := append(slices.Clip(chain), child)
		p.attributes(child, chain, childPath)
		p.prune(child, deeper, childPath, path == "" && child.name == "devices")
		if len(p.paths) > found && p.accepts(chain, child) {
			return false
		}
		p.paths = append(p.paths[:found], childPath)
		return true
	})
}

// attributes takes out the attributes without which the element, its children apart, is read.
func (p *pruner) attributes(n *node, chain []*node, path string) {
	bare := &node{space: n.space, name: n.name, attrs: n.attrs, text: n.text}
	if p.accepts(chain, bare) {
		return
	}
	for i, attribute := range n.attrs {
		bare.attrs = slices.Delete(slices.Clone(n.attrs), i, i+1)
		if p.accepts(chain, bare) {
			n.attrs = bare.attrs
			p.paths = append(p.paths, path+"@"+spelled(attribute.Name.Space, attribute.Name.Local))
			return
		}
	}
}

// accepts reports whether libvirtxml reads an element in its place, with nothing else there.
func (p *pruner) accepts(chain []*node, n *node) bool {
	if p.left <= 0 {
		return false
	}
	for _, above := range slices.Backward(chain) {
		n = &node{space: above.space, name: above.name, attrs: above.attrs, children: []*node{n}}
	}
	document := n.document()
	p.left -= len(document)
	return new(libvirtxml.Domain).Unmarshal(document) == nil
}
