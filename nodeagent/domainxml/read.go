package domainxml

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"

	"libvirt.org/go/libvirtxml"
)

// maxUnread bounds how many paths Read returns: a document in which nothing is known need not be told in full.
const maxUnread = 64

// Read reads domain XML as libvirt prints it, and tells what of it the domain does not hold, because libvirtxml does not
// know it: elements, attributes and text, each by its path ("devices/disk[vda]/driver@foo"), ordered. Writing the domain
// again would lose them. Comments and processing instructions mean nothing and are not told.
//
// The document may come from anybody: one that is no single domain element, has a document type or is beyond the limits
// of libvirt's own is an error.
func Read(document string) (*libvirtxml.Domain, []string, error) {
	tree, err := parse(document)
	if err != nil {
		return nil, nil, fmt.Errorf("reading domain XML: %w", err)
	}
	domain, unread, err := read(tree, document)
	if err != nil {
		return nil, nil, fmt.Errorf("reading domain XML: %w", err)
	}
	return domain, unread, nil
}

// read reads a document, whose tree it may change.
func read(tree *node, document string) (*libvirtxml.Domain, []string, error) {
	domain := &libvirtxml.Domain{}
	var refused []string
	if err := domain.Unmarshal(document); err != nil {
		// One element that libvirtxml cannot take makes it refuse all of them.
		if refused = tree.prune(); len(refused) == 0 {
			return nil, nil, err
		}
		domain = &libvirtxml.Domain{}
		if err := domain.Unmarshal(tree.document()); err != nil {
			return nil, nil, err
		}
	}
	lost, err := lostIn(tree, domain)
	if err != nil {
		return nil, nil, err
	}
	lost, err = withoutEmpty(tree, lost)
	if err != nil {
		return nil, nil, err
	}
	paths := refused
	for _, loss := range lost {
		paths = append(paths, loss.path)
	}
	paths = topmost(paths)
	if more := len(paths) - maxUnread; more > 0 {
		paths = append(paths[:maxUnread], fmt.Sprintf("and %d more", more))
	}
	return domain, paths, nil
}

// topmost orders paths and leaves out those within another.
func topmost(paths []string) []string {
	slices.Sort(paths)
	all := make(map[string]bool, len(paths))
	for _, path := range paths {
		all[path] = true
	}
	return slices.DeleteFunc(slices.Compact(paths), func(path string) bool {
		for i := range path {
			if (path[i] == '/' || path[i] == '@') && all[path[:i]] {
				return true
			}
		}
		return false
	})
}

// loss is something that is not in what libvirtxml writes again.
type loss struct {
	path string
	node *node
	// attribute is the number of the attribute that is lost; wholeElement or justText otherwise.
	attribute int
}

const (
	wholeElement = -1
	justText     = -2
)

// lostIn compares a document with what libvirtxml made of it.
func lostIn(tree *node, domain *libvirtxml.Domain) ([]loss, error) {
	written, err := domain.Marshal()
	if err != nil {
		return nil, err
	}
	kept, err := parser{namespaces: true, own: true}.parse(written)
	if err != nil {
		return nil, fmt.Errorf("what libvirtxml writes of it: %w", err)
	}
	var losses []loss
	lose(tree, kept, "", false, &losses)
	return losses, nil
}

func lose(have, kept *node, path string, devices bool, losses *[]loss) {
	for i := range have.attrs {
		attribute := &have.attrs[i]
		if attribute.Name.Space == "xmlns" || (attribute.Name.Space == "" && attribute.Name.Local == "xmlns") {
			continue
		}
		if !slices.ContainsFunc(kept.attrs, func(a xml.Attr) bool {
			return a.Name == attribute.Name && sameValue(a.Value, attribute.Value)
		}) {
			*losses = append(*losses, loss{path: path + "@" + spelled(attribute.Name.Space, attribute.Name.Local), node: have, attribute: i})
		}
	}
	if have.text != "" && !sameValue(have.text, kept.text) {
		// An element without anything but text goes by its own name.
		textPath := path
		if len(have.children) > 0 || len(have.attrs) > 0 {
			textPath += "/text()"
		}
		*losses = append(*losses, loss{path: textPath, node: have, attribute: justText})
	}
	have.labelChildren(devices)
	partners := pair(have, kept)
	for i, child := range have.children {
		childPath := child.label
		if child.space != "" {
			childPath = spelled(child.space, child.label)
		}
		if path != "" {
			childPath = path + "/" + childPath
		}
		if partners[i] == nil && have.name == "target" && child.name == "current" {
			continue // how much a virtio-mem device holds now: libvirt tells it of a running guest and never takes it
		}
		if partners[i] == nil {
			*losses = append(*losses, loss{path: childPath, node: child, attribute: wholeElement})
			continue
		}
		lose(child, partners[i], childPath, path == "" && child.name == "devices", losses)
	}
}

// pair finds for each child of have its partner in kept, nil where it has none. libvirtxml keeps the order of elements of
// one name; where it has room for fewer of them, it is the last ones that stay.
func pair(have, kept *node) []*node {
	type name struct{ space, local string }
	left := make(map[name][]*node, len(kept.children))
	for _, child := range kept.children {
		key := name{child.space, child.name}
		left[key] = append(left[key], child)
	}
	partners := make([]*node, len(have.children))
	for i, child := range slices.Backward(have.children) {
		key := name{child.space, child.name}
		if rest := left[key]; len(rest) > 0 {
			partners[i] = rest[len(rest)-1]
			left[key] = rest[:len(rest)-1]
		}
	}
	return partners
}

// sameValue reports whether two values differ only in how they are spelled: libvirtxml writes numbers its own way.
func sameValue(a, b string) bool {
	if a == b {
		return true
	}
	a, b = strings.TrimSpace(a), strings.TrimSpace(b)
	if a == b {
		return true
	}
	x, ok := number64(a)
	if !ok {
		return false
	}
	y, ok := number64(b)
	return ok && x == y
}

// prefixes are the usual names of libvirt's namespaces.
var prefixes = map[string]string{
	"http://libvirt.org/schemas/domain/qemu/1.0":   "qemu",
	"http://libvirt.org/schemas/domain/lxc/1.0":    "lxc",
	"http://libvirt.org/schemas/domain/bhyve/1.0":  "bhyve",
	"http://libvirt.org/schemas/domain/xen/1.0":    "xen",
	"http://libvirt.org/schemas/domain/vmware/1.0": "vmware",
}

// spelled writes a name with its namespace for a path: "qemu:commandline", or "{https://example.org/ns}thing".
func spelled(space, name string) string {
	if space == "" {
		return name
	}
	if prefix, ok := prefixes[space]; ok {
		return prefix + ":" + name
	}
	if space = readable(space); space == "" {
		space = "?"
	}
	return "{" + space + "}" + name
}

// withoutEmpty leaves out the losses that are none: libvirtxml writes neither zeros nor empty strings of many fields
// that it does read. Whether it knows such a field shows when it holds something.
func withoutEmpty(tree *node, losses []loss) ([]loss, error) {
	var doubtful bool
	for _, l := range losses {
		switch {
		case !l.empty():
			continue
		case l.attribute >= 0:
			l.node.attrs[l.attribute].Value = probe
		default:
			l.node.text = probe
		}
		doubtful = true
	}
	if !doubtful {
		return losses, nil
	}
	domain := &libvirtxml.Domain{}
	if err := domain.Unmarshal(tree.document()); err != nil {
		return losses, nil //nolint:nilerr // it reads the document but not the probe: what is in doubt counts as lost
	}
	return lostIn(tree, domain)
}

// probe is a value that fields of every type take.
const probe = "1"

// empty reports whether nothing is lost if the field is known at all.
func (l loss) empty() bool {
	value := l.node.text
	if l.attribute >= 0 {
		value = l.node.attrs[l.attribute].Value
	} else if l.attribute == wholeElement && (len(l.node.children) > 0 || len(l.node.attrs) > 0) {
		return false
	}
	number, ok := number64(value)
	return strings.TrimSpace(value) == "" || (ok && number == 0)
}

// document writes the tree as XML again.
func (n *node) document() string {
	var out strings.Builder
	n.write(&out, "")
	return out.String()
}

func (n *node) write(out *strings.Builder, space string) {
	out.WriteByte('<')
	out.WriteString(n.name)
	if n.space != space {
		writeAttribute(out, "xmlns", n.space)
	}
	for i, attribute := range n.attrs {
		name := attribute.Name.Local
		switch {
		case attribute.Name.Space == "xmlns" || (attribute.Name.Space == "" && name == "xmlns"):
			continue
		case attribute.Name.Space != "":
			prefix := fmt.Sprintf("ns%d", i)
			writeAttribute(out, "xmlns:"+prefix, attribute.Name.Space)
			name = prefix + ":" + name
		}
		writeAttribute(out, name, attribute.Value)
	}
	out.WriteByte('>')
	_ = xml.EscapeText(out, []byte(n.text)) // a strings.Builder takes everything
	for _, child := range n.children {
		child.write(out, n.space)
	}
	out.WriteString("</" + n.name + ">")
}

func writeAttribute(out *strings.Builder, name, value string) {
	out.WriteString(" " + name + `="`)
	_ = xml.EscapeText(out, []byte(value))
	out.WriteByte('"')
}
