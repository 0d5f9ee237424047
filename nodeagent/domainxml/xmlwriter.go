package domainxml

import (
	"fmt"
	"unicode/utf8"
)

// xmlWriter appends an XML document to a byte slice. Names of elements and attributes are this package's own; values come
// from anywhere, and what XML 1.0 cannot hold is an error, never dropped and never written.
type xmlWriter struct {
	out   []byte
	depth int
	// err is the first value that could not be written; whoever finishes the document asks for it.
	err error
	// tree, when there is one, takes the elements in place of out.
	tree *treeBuilder
}

const spaces = "                                "

func (w *xmlWriter) line() {
	if w.tree != nil {
		return
	}
	w.out = append(w.out, '\n')
	w.out = append(w.out, spaces[:min(2*w.depth, len(spaces))]...)
}

// tag writes a start tag. attributes are names and values in turn; one with an empty value is left out.
func (w *xmlWriter) tag(name string, attributes []string) {
	if w.tree != nil {
		w.tree.open(name, attributes)
		return
	}
	if len(w.out) > 0 {
		w.line()
	}
	w.out = append(w.out, '<')
	w.out = append(w.out, name...)
	for i := 0; i+1 < len(attributes); i += 2 {
		if attributes[i+1] == "" {
			continue
		}
		w.out = append(w.out, ' ')
		w.out = append(w.out, attributes[i]...)
		w.out = append(w.out, '=', '"')
		w.value(attributes[i+1], name, attributes[i])
		w.out = append(w.out, '"')
	}
	w.out = append(w.out, '>')
}

func (w *xmlWriter) endTag(name string) {
	if w.tree != nil {
		w.tree.close()
		return
	}
	w.out = append(w.out, '<', '/')
	w.out = append(w.out, name...)
	w.out = append(w.out, '>')
}

// start opens an element that has children.
func (w *xmlWriter) start(name string, attributes ...string) {
	w.tag(name, attributes)
	w.depth++
}

// end closes what start opened.
func (w *xmlWriter) end(name string) {
	w.depth--
	w.line()
	w.endTag(name)
}

// leaf writes an element without content.
func (w *xmlWriter) leaf(name string, attributes ...string) {
	w.tag(name, attributes)
	w.endTag(name)
}

// text writes an element with text in it.
func (w *xmlWriter) text(name, text string, attributes ...string) {
	w.tag(name, attributes)
	w.value(text, name, "")
	w.endTag(name)
}

// value writes the text of an element, or the value of its attribute. Readers of XML turn a bare carriage return into a
// newline, and a bare newline or tab of an attribute into a space, so those are written as references.
func (w *xmlWriter) value(value, element, attribute string) {
	if w.tree != nil {
		w.tree.text(value)
		return
	}
	done := 0
	for i := 0; i < len(value); {
		c := value[i]
		if c > '>' && c < utf8.RuneSelf {
			i++ // most of what there is
			continue
		}
		if c >= utf8.RuneSelf {
			r, width := utf8.DecodeRuneInString(value[i:])
			if r == utf8.RuneError && width == 1 || r == 0xFFFE || r == 0xFFFF {
				w.refuse(element, attribute, value[i:i+width])
				return
			}
			i += width
			continue
		}
		reference := ""
		switch {
		case c == '&':
			reference = "&amp;"
		case c == '<':
			reference = "&lt;"
		case c == '>':
			reference = "&gt;"
		case c == '\r':
			reference = "&#13;"
		case attribute == "":
			// the rest stands in text as it is
		case c == '"':
			reference = "&#34;"
		case c == '\n':
			reference = "&#10;"
		case c == '\t':
			reference = "&#9;"
		}
		switch {
		case reference != "":
			w.out = append(w.out, value[done:i]...)
			w.out = append(w.out, reference...)
			done = i + 1
		case c < ' ' && c != '\n' && c != '\t':
			w.refuse(element, attribute, value[i:i+1])
			return
		}
		i++
	}
	w.out = append(w.out, value[done:]...)
}

// refuse tells only the character: what stands around it may be a secret.
func (w *xmlWriter) refuse(element, attribute, character string) {
	if w.err != nil {
		return
	}
	if attribute != "" {
		element += "@" + attribute
	}
	w.err = fmt.Errorf("the value of %s contains the character %q, which no domain XML can hold; remove it", element, character)
}
