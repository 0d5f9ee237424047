package domainxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// What a document may have. libvirt itself sends none beyond 4 MiB (VIR_NET_MESSAGE_STRING_MAX) and reads none that is
// deeper than libxml2's 256; a domain with a thousand disks has some 40,000 elements and attributes.
const (
	maxDocument   = 4 << 20
	maxDepth      = 256
	maxNodes      = 100_000
	maxAttributes = 128 // of one element
	maxNameLength = 256
)

// node is one XML element.
type node struct {
	// space is the namespace's URI, or the prefix in a tree whose namespaces nobody asked for.
	space, name string
	attrs       []xml.Attr
	text        string
	children    []*node
	// label tells the element apart from its siblings: "vcpu", "disk[vda]". label() sets it.
	label string
}

func (n *node) child(name string) *node {
	if n == nil {
		return nil
	}
	for _, child := range n.children {
		if child.name == name {
			return child
		}
	}
	return nil
}

// get returns an attribute; "" when it is not there. A nil element has none.
func (n *node) get(name string) string {
	if n == nil {
		return ""
	}
	for i := range n.attrs {
		if n.attrs[i].Name.Local == name {
			return n.attrs[i].Value
		}
	}
	return ""
}

func (n *node) set(name, value string) {
	for i := range n.attrs {
		if n.attrs[i].Name.Local == name {
			n.attrs[i].Value = value
			return
		}
	}
	n.attrs = append(n.attrs, xml.Attr{Name: xml.Name{Local: name}, Value: value})
}

// parse reads a domain document into a tree with namespaces resolved. It refuses whatever is no single domain element:
// document types, second roots, text around the root, attributes given twice, and documents beyond the limits.
func parse(document string) (*node, error) { return parser{namespaces: true}.parse(document) }

// parseFast is parse without namespaces (space is the prefix as it is written) and without the metadata.
func parseFast(document string) (*node, error) { return parser{}.parse(WithoutMetadata(document)) }

// WithoutMetadata cuts the metadata out of a document as libvirt prints it: it is most of the document and nothing of the
// machine. A document in which the tags could be something else (comments, CDATA, several such elements) stays as it is;
// what is left of the metadata is skipped later.
func WithoutMetadata(document string) string {
	const start, end = "<metadata>", "</metadata>"
	before, rest, ok := strings.Cut(document, start)
	if !ok || strings.Contains(before, "<devices") || strings.Contains(document, "<!") || strings.Contains(rest, start) {
		return document
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok || strings.Contains(after, end) {
		return document
	}
	return before + after
}

type parser struct {
	// namespaces asks for URIs in place of prefixes.
	namespaces bool
	// own says that the document was written here and cannot be too large.
	own bool
}

func (p parser) parse(document string) (*node, error) {
	if len(document) > maxDocument && !p.own {
		return nil, fmt.Errorf("the document has %d bytes; domain XML has at most %d", len(document), maxDocument)
	}
	decoder := xml.NewDecoder(strings.NewReader(document))
	next := decoder.RawToken
	if p.namespaces {
		next = decoder.Token
	}
	root := &node{}
	stack := make([]frame, 1, 16)
	stack[0].node = root
	nodes := 0
	for {
		token, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		top := &stack[len(stack)-1]
		switch t := token.(type) {
		case xml.StartElement:
			element, err := newNode(t)
			if err != nil {
				return nil, err
			}
			if nodes += 1 + len(t.Attr); nodes > maxNodes && !p.own {
				return nil, fmt.Errorf("the document has more than %d elements and attributes", maxNodes)
			}
			if len(stack) > maxDepth {
				return nil, fmt.Errorf("the document is deeper than %d elements", maxDepth)
			}
			top.children = append(top.children, element)
			stack = append(stack, frame{node: element})
		case xml.EndElement:
			if top.name != t.Name.Local || top.space != t.Name.Space || len(stack) == 1 {
				return nil, fmt.Errorf("</%s> ends nothing", t.Name.Local)
			}
			top.end()
			stack = stack[:len(stack)-1]
		case xml.CharData:
			top.add(t)
		case xml.Directive:
			return nil, errors.New("the document has a document type; domain XML has none")
		}
	}
	if len(stack) > 1 {
		return nil, fmt.Errorf("the document ends within <%s>", stack[len(stack)-1].name)
	}
	if len(stack[0].pieces) > 0 {
		return nil, errors.New("the document has text outside its domain element")
	}
	if len(root.children) != 1 || root.children[0].name != "domain" || root.children[0].space != "" {
		return nil, errors.New("not a domain document")
	}
	return root.children[0], nil
}

func newNode(t xml.StartElement) (*node, error) {
	if len(t.Name.Local) > maxNameLength || len(t.Attr) > maxAttributes {
		return nil, errors.New("the document has an element with a name or with attributes beyond all measure")
	}
	for i, attribute := range t.Attr {
		if len(attribute.Name.Local) > maxNameLength {
			return nil, errors.New("the document has an attribute with a name beyond all measure")
		}
		for _, earlier := range t.Attr[:i] {
			if earlier.Name == attribute.Name {
				return nil, fmt.Errorf("<%s> has the attribute %s twice", t.Name.Local, attribute.Name.Local)
			}
		}
	}
	return &node{space: t.Name.Space, name: t.Name.Local, attrs: t.Attr}, nil
}

// frame is an element that is being read, with the pieces of its text: comments and CDATA sections cut it up, and putting
// it together each time would take the square of its length.
type frame struct {
	*node
	pieces []string
}

func (f *frame) add(text xml.CharData) {
	if len(bytes.TrimSpace(text)) > 0 {
		f.pieces = append(f.pieces, string(text))
	}
}

func (f *frame) end() {
	switch len(f.pieces) {
	case 0:
	case 1:
		f.text = strings.TrimSpace(f.pieces[0])
	default:
		f.text = strings.TrimSpace(strings.Join(f.pieces, ""))
	}
}
