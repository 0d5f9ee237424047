package schemas

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Position is a place in a manifest. Line and Column count from 1; zero means unknown.
type Position struct {
	// Source is the one that the file is from; empty for the repository of the Fleet itself.
	Source string `json:"source,omitempty"`
	File   string `json:"file"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// String returns "source:file:line:column", without the parts that are unknown or that there are none of.
func (p Position) String() string {
	file := p.File
	if p.Source != "" {
		file = strings.TrimSuffix(p.Source+":"+p.File, ":")
	}
	switch {
	case p.Line == 0:
		return file
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", file, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
}

// compare orders positions by source, file, line and column.
func (p Position) compare(q Position) int {
	return cmp.Or(strings.Compare(p.Source, q.Source), strings.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Severity says whether a diagnostic stops its object.
type Severity string

const (
	// SeverityError stops the object it belongs to.
	SeverityError Severity = "error"
	// SeverityWarning is told and stops nothing.
	SeverityWarning Severity = "warning"
)

// Diagnostic is one mistake in the user's files: where, what, and how to fix it.
type Diagnostic struct {
	Position Position `json:"position"`
	Severity Severity `json:"severity"`
	// Address names the object it was found in, when that is known.
	Address Address `json:"address,omitzero"`
	// Path is the field, such as "spec.template.spec.domain.cpu.cores".
	Path string `json:"path,omitempty"`
	// Message says what is wrong; it never holds a secret's value.
	Message string `json:"message"`
	// Fix says what to do about it.
	Fix string `json:"fix,omitempty"`
}

// Error makes a Diagnostic usable as an error: one line, position first.
func (d Diagnostic) Error() string {
	var b strings.Builder
	b.WriteString(d.Position.String())
	b.WriteString(": ")
	if d.Severity == SeverityWarning {
		b.WriteString("warning: ")
	}
	if d.Path != "" {
		b.WriteString(d.Path)
		b.WriteString(": ")
	}
	b.WriteString(d.Message)
	if d.Fix != "" {
		b.WriteString("; ")
		b.WriteString(d.Fix)
	}
	return b.String()
}

// Diagnostics is a list of mistakes.
type Diagnostics []Diagnostic

// Sort orders by file, line, column, path and message.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(a.Position.compare(b.Position), strings.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
}

// Errors counts the diagnostics that stop an object.
func (ds Diagnostics) Errors() int {
	n := 0
	for _, d := range ds {
		if d.Severity != SeverityWarning {
			n++
		}
	}
	return n
}

// Short returns "source:file:line", for people.
func (p Position) Short() string {
	return Position{Source: p.Source, File: p.File, Line: p.Line}.String()
}
