package domainxml

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
)

// Reader tells what of domain documents is unread, as Read does, and remembers the shapes of those of which everything
// was read: thousands of domains have a few shapes, and recognising one costs a fraction of reading it.
type Reader struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]bool
}

// NewReader returns a reader that remembers nothing yet.
func NewReader() *Reader { return &Reader{known: map[[sha256.Size]byte]bool{}} }

// maxShapes bounds what a Reader remembers; beyond it, it begins anew.
const maxShapes = 4096

// Unread returns the paths of what libvirtxml does not hold of a document of libvirt's, the metadata apart: libvirtxml takes
// that as it is. A document that cannot be read at all is unread as a whole: "domain: ", and why.
func (r *Reader) Unread(document string) []string {
	tree, err := parseFast(document)
	if err != nil {
		return []string{whole + err.Error()}
	}
	return r.unread(tree, document)
}

const whole = "domain: "

// Inspect compares a definition with what its machine renders to, as Compare does, and tells what of it is unread. A
// definition that is no domain document is an error, and unread as a whole.
func (r *Reader) Inspect(m Machine, defined string) (differences []Difference, unread []string, err error) {
	have, err := parseFast(defined)
	if err != nil {
		return nil, []string{whole + err.Error()}, fmt.Errorf("reading the domain's XML: %w", err)
	}
	unread = r.unread(have, defined)
	want, err := m.tree()
	if err != nil {
		return nil, unread, err
	}
	return compare(want, have), unread, nil
}

func (r *Reader) unread(tree *node, document string) []string {
	shape := tree.shape()
	r.mu.Lock()
	known := r.known[shape]
	r.mu.Unlock()
	if known {
		return nil
	}
	_, unread, err := Read(WithoutMetadata(document))
	switch {
	case err != nil:
		return []string{whole + err.Error()}
	case len(unread) > 0:
		return unread
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxShapes {
		clear(r.known)
	}
	r.known[shape] = true
	return nil
}

// shape is a digest of everything that decides what libvirtxml reads: the elements, the attributes, the values by which
// it tells kinds apart, and of all other values whether they are empty, zero, a number or something else.
func (n *node) shape() [sha256.Size]byte {
	var out strings.Builder
	n.writeShape(&out)
	return sha256.Sum256([]byte(out.String()))
}

func (n *node) writeShape(out *strings.Builder) {
	out.WriteByte('<')
	writeName(out, n.space, n.name)
	for i := range n.attrs {
		attribute := &n.attrs[i]
		out.WriteByte(' ')
		writeName(out, attribute.Name.Space, attribute.Name.Local)
		switch name := attribute.Name.Local; {
		case name == "type" || name == "mode" || name == "model" || name == "protocol",
			name == "xmlns" || attribute.Name.Space == "xmlns":
			// Quotes are doubled, so that no value can be mistaken for what follows it.
			out.WriteByte('"')
			out.WriteString(strings.ReplaceAll(attribute.Value, `"`, `""`))
			out.WriteByte('"')
		default:
			out.WriteByte(class(attribute.Value))
		}
	}
	out.WriteByte(class(n.text))
	for _, child := range n.children {
		child.writeShape(out)
	}
	out.WriteByte('>')
}

func writeName(out *strings.Builder, space, name string) {
	if space != "" {
		out.WriteString(space)
		out.WriteByte(':')
	}
	out.WriteString(name)
}

// class tells values apart as far as reading them does.
func class(value string) byte {
	if value == "" {
		return '-'
	}
	number, ok := number64(value)
	switch {
	case !ok:
		return '*'
	case number == 0:
		return '0'
	}
	return '9'
}
