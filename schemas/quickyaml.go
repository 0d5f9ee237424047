package schemas

import (
	"strings"

	"go.yaml.in/yaml/v3"
)

// quickYAML reads the plain block style in which nearly all manifests are written, several times faster than the YAML
// library, which is most of what reading a repository costs. It knows: block mappings and lists, keys without quotes,
// values on one line (plain, or quoted without escapes), {} and [], literal blocks (| and |-), comments; in ASCII and
// without tabs. At anything else it gives up, and the library reads the text: ok is false, and so it is for every
// text with a mistake. The nodes are the same as the library's, positions included; FuzzQuickYAML holds it to that.
func quickYAML(text []byte) (root *yaml.Node, ok bool) {
	lines := 0
	for _, c := range text {
		if c < 0x20 || c >= 0x7f {
			if c != '\n' {
				return nil, false
			}
			lines++
		}
	}
	if lines == 0 || text[len(text)-1] != '\n' {
		return nil, false
	}
	p := &quickParser{text: string(text), slab: make([]yaml.Node, 0, 2*lines+8)}
	if strings.HasPrefix(p.text, "---") {
		end := strings.IndexByte(p.text, '\n')
		if rest := strings.TrimLeft(p.text[3:end], " "); rest != "" {
			return nil, false
		}
		p.next, p.line = end+1, 1
	}
	if !p.advance() {
		return nil, false
	}
	root = p.block()
	if p.failed || !p.done {
		return nil, false
	}
	return root, true
}

// quickParser stands at the beginning of the text of a line: at is its offset, column its indentation.
type quickParser struct {
	text         string
	at, end      int // of the line; end is the offset of its newline
	next         int // where the next line begins
	line, column int // line counts from 1
	done, failed bool
	slab         []yaml.Node
	stack        []*yaml.Node
}

// advance goes to the next line that is neither empty nor a comment.
func (p *quickParser) advance() bool {
	for p.next < len(p.text) {
		begin := p.next
		p.end = begin + strings.IndexByte(p.text[begin:], '\n')
		p.next = p.end + 1
		p.line++
		at := begin
		for p.text[at] == ' ' {
			at++
		}
		if at == p.end || p.text[at] == '#' {
			continue
		}
		p.at, p.column = at, at-begin
		return true
	}
	p.done, p.column = true, -1
	return false
}

func (p *quickParser) fail() *yaml.Node {
	p.failed, p.done, p.column = true, true, -1
	return nil
}

// node takes a node from the slab; column counts from 0.
func (p *quickParser) node(kind yaml.Kind, tag, value string, style yaml.Style, line, column int) *yaml.Node {
	if len(p.slab) == cap(p.slab) {
		p.slab = make([]yaml.Node, 0, 64)
	}
	p.slab = append(p.slab, yaml.Node{Kind: kind, Tag: tag, Value: value, Style: style, Line: line, Column: column + 1})
	return &p.slab[len(p.slab)-1]
}

// collect makes what was put on the stack since mark the content of n.
func (p *quickParser) collect(n *yaml.Node, mark int) *yaml.Node {
	n.Content = append(make([]*yaml.Node, 0, len(p.stack)-mark), p.stack[mark:]...)
	p.stack = p.stack[:mark]
	return n
}

// block reads a mapping or a list that begins on a line of its own.
func (p *quickParser) block() *yaml.Node {
	if p.column > 200 {
		return p.fail()
	}
	if p.isItem() {
		return p.list(p.column)
	}
	return p.mapping(p.column)
}

func (p *quickParser) isItem() bool {
	return p.text[p.at] == '-' && (p.text[p.at+1] == ' ' || p.text[p.at+1] == '\n')
}

// key returns where the key that begins at the current place ends; 0 when there is none.
func (p *quickParser) key() int {
	i := p.at
	for ; i < p.end; i++ {
		c := p.text[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' {
			continue
		}
		if i > p.at && (c == '-' || c == '.' || c == '/') {
			continue
		}
		break
	}
	if i == p.at || i-p.at > 256 || p.text[i] != ':' || p.text[i+1] != ' ' && p.text[i+1] != '\n' {
		return 0
	}
	return i
}

// mapping reads the entries whose keys begin at column, the first one at the current place.
func (p *quickParser) mapping(column int) *yaml.Node {
	n := p.node(yaml.MappingNode, "!!map", "", 0, p.line, column)
	mark := len(p.stack)
	for {
		end := p.key()
		if end == 0 {
			return p.fail()
		}
		p.stack = append(p.stack, p.plain(p.text[p.at:end], p.column))
		p.column += end + 1 - p.at
		p.at = end + 1
		var value *yaml.Node
		if p.skipSpaces() {
			value = p.value(column)
		} else {
			switch p.advance(); {
			case p.column > column:
				value = p.block()
			case p.column == column && p.isItem():
				value = p.list(column)
			default: // nothing: the library knows where that is
				return p.fail()
			}
		}
		if p.failed {
			return nil
		}
		p.stack = append(p.stack, value)
		if p.column < column {
			return p.collect(n, mark)
		}
		if p.column > column || p.isItem() {
			return p.fail()
		}
	}
}

// list reads the items whose dashes are at column.
func (p *quickParser) list(column int) *yaml.Node {
	n := p.node(yaml.SequenceNode, "!!seq", "", 0, p.line, column)
	mark := len(p.stack)
	for {
		p.at++
		p.column++
		var item *yaml.Node
		switch {
		case !p.skipSpaces():
			if p.advance(); p.column <= column {
				return p.fail()
			}
			item = p.block()
		case p.isItem():
			return p.fail()
		case p.key() > 0:
			item = p.mapping(p.column)
		default:
			item = p.value(column)
		}
		if p.failed {
			return nil
		}
		p.stack = append(p.stack, item)
		if p.column > column {
			return p.fail()
		}
		if p.column < column || !p.isItem() {
			return p.collect(n, mark)
		}
	}
}

// skipSpaces goes to the next character of the line and reports whether there is one, a comment aside.
func (p *quickParser) skipSpaces() bool {
	for p.text[p.at] == ' ' {
		p.at++
		p.column++
	}
	return p.at < p.end && (p.text[p.at] != '#' || p.text[p.at-1] != ' ')
}

// value reads a value that begins on the current line, within a block at the column outer, and goes to the next line.
func (p *quickParser) value(outer int) *yaml.Node {
	var n *yaml.Node
	switch c := p.text[p.at]; {
	case c == '"' || c == '\'':
		n = p.quoted(c)
	case c == '{' || c == '[':
		kind, tag, closing := yaml.MappingNode, "!!map", byte('}')
		if c == '[' {
			kind, tag, closing = yaml.SequenceNode, "!!seq", ']'
		}
		if p.text[p.at+1] != closing || !p.endsAfter(p.at+2) {
			return p.fail()
		}
		n = p.node(kind, tag, "", yaml.FlowStyle, p.line, p.column)
	case c == '|':
		return p.literal(outer)
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '/', c == '_', c == '.':
		text := p.text[p.at:p.end]
		if comment := strings.Index(text, " #"); comment >= 0 {
			text = text[:comment]
		}
		text = strings.TrimRight(text, " ")
		if strings.Contains(text, ": ") || text[len(text)-1] == ':' {
			return p.fail()
		}
		n = p.plain(text, p.column)
	default:
		return p.fail()
	}
	if p.failed {
		return nil
	}
	if p.advance(); p.column > outer { // the value goes on, or there is a mistake
		return p.fail()
	}
	return n
}

// endsAfter reports whether nothing but a comment follows on the line.
func (p *quickParser) endsAfter(at int) bool {
	rest := strings.TrimLeft(p.text[at:p.end], " ")
	return rest == "" || rest[0] == '#' && p.text[at] == ' '
}

func (p *quickParser) quoted(quote byte) *yaml.Node {
	text := p.text[p.at+1 : p.end]
	end := strings.IndexByte(text, quote)
	if end < 0 || !p.endsAfter(p.at+1+end+1) {
		return p.fail()
	}
	text = text[:end]
	style := yaml.SingleQuotedStyle
	if quote == '"' {
		style = yaml.DoubleQuotedStyle
		if strings.IndexByte(text, '\\') >= 0 {
			return p.fail()
		}
	}
	return p.node(yaml.ScalarNode, "!!str", text, style, p.line, p.column)
}

// plain makes a scalar without quotes and finds its type.
func (p *quickParser) plain(text string, column int) *yaml.Node {
	tag := "!!str"
	switch c := text[0]; {
	case c >= '0' && c <= '9' || c == '.':
		if tag = numberTag(text); tag == "" {
			var n yaml.Node
			if err := yaml.Unmarshal([]byte(text+"\n"), &n); err != nil || len(n.Content) != 1 || n.Content[0].Value != text {
				return p.fail()
			}
			tag = n.Content[0].Tag
		}
	default:
		switch text {
		case "true", "True", "TRUE", "false", "False", "FALSE":
			tag = "!!bool"
		case "null", "Null", "NULL":
			tag = "!!null"
		}
	}
	return p.node(yaml.ScalarNode, tag, text, 0, p.line, column)
}

// numberTag tells the usual numbers and quantities; "" is left to the library.
func numberTag(text string) string {
	digits := 0
	for digits < len(text) && text[digits] >= '0' && text[digits] <= '9' {
		digits++
	}
	switch text[digits:] {
	case "":
		if digits < 18 && (text[0] != '0' || digits == 1) {
			return "!!int"
		}
	case "Ki", "Mi", "Gi", "Ti", "k", "K", "M", "G", "T", "m":
		if digits > 0 {
			return "!!str"
		}
	}
	return ""
}

// literal reads a block scalar (| or |-) within a block at the column outer.
func (p *quickParser) literal(outer int) *yaml.Node {
	header := strings.TrimRight(p.text[p.at:p.end], " ")
	if header != "|" && header != "|-" {
		return p.fail()
	}
	n := p.node(yaml.ScalarNode, "!!str", "", yaml.LiteralStyle, p.line, p.column)
	var b strings.Builder
	indent, empty, lines := -1, 0, 0
	for p.next < len(p.text) {
		begin := p.next
		end := begin + strings.IndexByte(p.text[begin:], '\n')
		at := begin
		for p.text[at] == ' ' {
			at++
		}
		if at == end {
			if at > begin && (indent < 0 || at-begin > indent) { // blanks that count: rare
				return p.fail()
			}
			empty++
		} else {
			if indent < 0 {
				if indent = at - begin; indent <= outer {
					return p.fail()
				}
			}
			if at-begin < indent {
				break
			}
			for ; empty > 0; empty-- {
				b.WriteByte('\n')
			}
			b.WriteString(p.text[begin+indent : end+1])
			lines++
		}
		p.next = end + 1
		p.line++
	}
	if lines == 0 {
		return p.fail()
	}
	n.Value = b.String()
	if header == "|-" {
		n.Value = n.Value[:len(n.Value)-1]
	}
	if p.advance(); p.column > outer {
		return p.fail()
	}
	return n
}
