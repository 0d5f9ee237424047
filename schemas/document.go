package schemas

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxDepth bounds how deep mappings and lists may be nested; KubeVirt's API needs 15.
const maxDepth = 64

// pathElement is one step of a field path: a name, or an index of a list.
type pathElement struct {
	name  string
	index int
	// key marks a key of a map that is data, such as an annotation's name.
	key bool
}

// document is one object of a file and where its mistakes are reported to.
type document struct {
	file *File
	root *yaml.Node
	// line is added to the lines of the nodes: documents are parsed one by one.
	line int
	// prefix is the path of the object within a list, such as "items[2].".
	prefix string
	// source is the text that the document was read from, item its place in a list there.
	source *source
	item   int
	// secret says that no value may be printed.
	secret bool
	// budget is what reading may cost yet, in nodes; aliases are paid for each time they are used.
	budget *int
	path   []pathElement
	// ambiguous says that the object's kind or name is given twice.
	ambiguous bool
	broke     bool
	// suggested are the paths of fields that misspelt ones were probably meant to be.
	suggested []string
	// told remembers what was reported, so that one mistake is told once.
	told map[told]struct{}
}

// told is where a mistake was reported.
type told struct {
	path         string
	line, column int
}

// maxDiagnostics bounds what is listed for one file.
const maxDiagnostics = 1000

func (d *document) push(name string) {
	d.path = append(d.path, pathElement{name: name, key: name == ""})
}
func (d *document) pushKey(key string) { d.path = append(d.path, pathElement{name: key, key: true}) }
func (d *document) pushIndex(i int)    { d.path = append(d.path, pathElement{index: i}) }
func (d *document) pop()               { d.path = d.path[:len(d.path)-1] }

// pathString renders path as in spec.template.spec.domain.devices.disks[0].disk.bus.
func pathString(prefix string, path []pathElement) string {
	var b strings.Builder
	b.WriteString(prefix)
	for i, e := range path {
		switch {
		case e.key && !isIdentifier(e.name):
			b.WriteString("[" + cmp.Or(printable(e.name), `""`) + "]")
		case e.name == "" && !e.key:
			b.WriteString("[" + strconv.Itoa(e.index) + "]")
		default:
			if i > 0 {
				b.WriteByte('.')
			}
			b.WriteString(printable(e.name))
		}
	}
	return strings.TrimSuffix(b.String(), ".")
}

// printable returns the name as it can be shown on one line of a terminal.
func printable(name string) string {
	if len(name) > 128 || strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return quoteValue(name)
	}
	return name
}

// isIdentifier tells names that need no brackets in a path.
func isIdentifier(s string) bool { return isToken(s) && !strings.ContainsAny(s, ".+-") }

func (d *document) position(n *yaml.Node) Position {
	if n == nil {
		n = d.root
	}
	if n == nil {
		return Position{Source: d.file.Source, File: d.file.Path, Line: d.line + 1}
	}
	return Position{Source: d.file.Source, File: d.file.Path, Line: d.line + n.Line, Column: n.Column}
}

// errorAt reports a mistake at node n, which is at the current path.
func (d *document) errorAt(n *yaml.Node, message, fix string) {
	d.report(n, pathString(d.prefix, d.path), SeverityError, message, fix)
}

func (d *document) report(n *yaml.Node, path string, severity Severity, message, fix string) {
	if severity == SeverityError {
		d.broke = true
	}
	if len(d.file.Diagnostics) > maxDiagnostics {
		return
	}
	position := d.position(n)
	if severity == SeverityError {
		this := told{path, position.Line, position.Column}
		if _, twice := d.told[this]; twice {
			return
		}
		if d.told == nil {
			d.told = map[told]struct{}{}
		}
		d.told[this] = struct{}{}
	}
	if len(d.file.Diagnostics) == maxDiagnostics {
		path, message, fix = "", "there are more mistakes in this file than are listed", "mend these first"
	}
	d.file.Diagnostics = append(d.file.Diagnostics, Diagnostic{
		Position: position, Severity: severity, Path: path, Message: message, Fix: fix,
	})
}

// resolve follows an alias.
func resolve(n *yaml.Node) *yaml.Node {
	for range maxDepth {
		if n.Kind != yaml.AliasNode || n.Alias == nil {
			break
		}
		n = n.Alias
	}
	return n
}

// spend pays for reading n and reports once when the document has used up its budget.
func (d *document) spend(n *yaml.Node) bool {
	if *d.budget < 0 {
		return false
	}
	*d.budget -= 1 + len(n.Value)/16
	if *d.budget < 0 {
		d.errorAt(n, "the aliases of this document unfold to far more than the file holds",
			"write the repeated parts out, or use fewer aliases")
		return false
	}
	if len(d.path) > maxDepth {
		d.errorAt(n, fmt.Sprintf("nested more than %d levels deep", maxDepth), "flatten it")
		return false
	}
	return true
}
