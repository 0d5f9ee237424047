package schemas

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Parse reads the manifests of one file. It never fails: what is wrong with the file is in Diagnostics, and what the
// file may have asked for nevertheless in Broken and Opaque. The name decides the format: a .json file is read as
// JSON, every other as YAML, which includes JSON.
func Parse(name string, content []byte) *File { return mayHoldFleet(&File{Path: name}, content) }

// ParseSecret is Parse for a file that was decrypted: no value of it is in a diagnostic.
func ParseSecret(name string, content []byte) *File {
	return mayHoldFleet(&File{Path: name, secret: true}, content)
}

// Decrypted reports whether the file was encrypted (ParseSecret).
func (f *File) Decrypted() bool { return f.secret }

// Weight is about how many bytes its machines take in memory.
func (f *File) Weight() int64 {
	const each = 1 << 10 // a VM without its record
	total := int64(len(f.VMs)) * each
	for _, vm := range f.VMs {
		total += int64(len(vm.Record))
	}
	for _, w := range f.drafts { // which become machines when their instancetype is known
		if w.set != nil {
			total += int64(w.set.replicas) * 2 * each
		} else {
			total += 2 * each
		}
	}
	return total
}

// Unreadable is what Parse returns for a file of which nobody knows what it asks for.
func Unreadable(at Position, message, fix string) *File {
	file := &File{Source: at.Source, Path: at.File, mayHoldFleet: at.Source == ""}
	file.unreadable(at, message, fix)
	return file
}

func mayHoldFleet(file *File, content []byte) *File {
	parse(file, content)
	name := file.Path
	named := strings.TrimSuffix(path.Base(name), path.Ext(name)) == "gitvirt" // where a Fleet is by convention
	file.mayHoldFleet = file.Source == "" && file.Opaque && (named || bytes.Contains(content, []byte(KindFleet)))
	return file
}

func parse(file *File, content []byte) {
	name := file.Path
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	if bytes.HasPrefix(content, []byte("\xff\xfe")) || bytes.HasPrefix(content, []byte("\xfe\xff")) {
		file.unreadable(Position{Source: file.Source, File: name, Line: 1}, "the file is UTF-16", "save it as UTF-8")
		return
	}
	if strings.EqualFold(path.Ext(name), ".json") {
		parseJSON(file, content)
	} else {
		for _, part := range splitDocuments(content) {
			parseYAML(file, part)
		}
	}
	file.Diagnostics.Sort()
}

// unreadable reports a part of the file that names nobody knows what.
func (f *File) unreadable(at Position, message, fix string) {
	f.Opaque = true
	if len(f.Diagnostics) > maxDiagnostics {
		return
	}
	if len(f.Diagnostics) == maxDiagnostics {
		message, fix = "there are more mistakes in this file than are listed", "mend these first"
	}
	f.Diagnostics = append(f.Diagnostics, Diagnostic{Position: at, Severity: SeverityError, Message: message, Fix: fix})
}

// part is the text of one YAML document and the number of lines before it.
type part struct {
	text []byte
	line int
}

// splitDocuments cuts a YAML stream into its documents, so that one that cannot be parsed does not hide the others.
// A line that begins with --- (or ...) is a boundary wherever it stands: block scalars are indented, and quoted ones
// must not hold such a line (YAML 1.2, 9.1.2).
func splitDocuments(content []byte) []part {
	var parts []part
	start, startLine, line := 0, 0, 0
	directives := false // the lines so far are %directives, which belong to the document that follows
	for at := 0; at < len(content); line++ {
		end := bytes.IndexByte(content[at:], '\n')
		if end < 0 {
			end = len(content)
		} else {
			end += at + 1
		}
		text := content[at:end]
		switch {
		case isMarker(text, "---"):
			if !directives && at > start {
				parts = append(parts, part{content[start:at], startLine})
			}
			if !directives {
				start, startLine = at, line
			}
			directives = false
		case isMarker(text, "..."):
			parts = append(parts, part{content[start:at], startLine})
			start, startLine = end, line+1
		case text[0] == '%' && len(bytes.TrimSpace(content[start:at])) == 0:
			directives = true
		}
		at = end
	}
	if start < len(content) {
		parts = append(parts, part{content[start:], startLine})
	}
	return parts
}

func isMarker(line []byte, marker string) bool {
	if !bytes.HasPrefix(line, []byte(marker)) {
		return false
	}
	return len(line) == len(marker) || strings.IndexByte(" \t\r\n", line[len(marker)]) >= 0
}

// parseYAML reads one YAML document.
func parseYAML(file *File, p part) {
	from := &source{text: p.text, line: p.line}
	if root, ok := quickYAML(p.text); ok {
		from.read(file, root)
		return
	}
	if at, message, fix := badText(p.text); message != "" {
		line := p.line + 1 + bytes.Count(p.text[:at], []byte("\n"))
		column := utf8.RuneCount(p.text[bytes.LastIndexByte(p.text[:at], '\n')+1:at]) + 1
		file.unreadable(Position{Source: file.Source, File: file.Path, Line: line, Column: column}, message, fix)
		return
	}
	var root yaml.Node
	if err := yaml.Unmarshal(p.text, &root); err != nil {
		if len(file.Diagnostics) > maxDiagnostics { // finding the place is for those that are told
			file.Opaque = true
			return
		}
		line, column, message, fix := explainYAML(p.text, err)
		file.unreadable(Position{Source: file.Source, File: file.Path, Line: p.line + line, Column: column}, message, fix)
		return
	}
	if len(root.Content) > 0 {
		from.read(file, root.Content[0])
	}
}

// budgetFor is what reading a text of so many bytes may cost: far more than it can without aliases, and little
// enough that memory stays in proportion to the file.
func budgetFor(size int) int { return 20*size + 10_000 }

// badText finds bytes that no text file holds.
func badText(text []byte) (at int, message, fix string) {
	if at := bytes.IndexByte(text, 0); at >= 0 {
		return at, "the file holds a NUL byte: it is not a text file", "remove it, or add the file to .gitvirtignore"
	}
	if utf8.Valid(text) {
		return 0, "", ""
	}
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return at, fmt.Sprintf("the byte 0x%02x is not UTF-8", text[at]), "save the file as UTF-8"
		}
		at += size
	}
	return 0, "", ""
}
