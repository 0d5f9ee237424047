package plan

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// TextOptions say how a plan is written for people.
type TextOptions struct {
	// Color uses ANSI colours; only for terminals.
	Color bool
	// Node is what the plan is compared with: a host's name or a revision.
	Node string
}

// symbols are what stands before an object, in Terraform's manner.
var symbols = map[Action]string{
	ActionCreate: "+", ActionUpdate: "~", ActionStart: ">", ActionStop: "<",
	ActionRestart: "!", ActionReplace: "-/+", ActionDestroy: "-",
	ActionAdopt: "=", ActionRename: "=", ActionRetire: "<",
}

var legend = []struct {
	action Action
	text   string
}{
	{ActionCreate, "create"},
	{ActionUpdate, "update, the guest runs on"},
	{ActionStart, "start"},
	{ActionStop, "shut down"},
	{ActionRestart, "restart (power cycle)"},
	{ActionReplace, "replace, disks kept"},
	{ActionDestroy, "destroy"},
	{ActionAdopt, "adopt a domain as it is"},
	{ActionRename, "rename, the guest runs on"},
	{ActionRetire, "shut down and keep for a while"},
}

var colors = map[Action]string{
	ActionCreate: "32", ActionUpdate: "33", ActionStart: "32", ActionStop: "31",
	ActionRestart: "35", ActionReplace: "31", ActionDestroy: "31",
	ActionAdopt: "32", ActionRename: "33", ActionRetire: "31",
}

// Text writes the plan for people.
func (p *Plan) Text(out io.Writer, options TextOptions) error {
	t := &text{out: bufio.NewWriterSize(out, 1<<16), color: options.Color}
	for _, diagnostic := range p.Diagnostics {
		t.line(t.paint("31", "Problem:"), " ", Inert(diagnostic.Error()))
	}
	if len(p.Diagnostics) > 0 {
		t.line()
	}
	if p.Unknown != "" {
		t.line(t.paint("33", "The host cannot be read, so nothing is planned:"), " ", Inert(p.Unknown))
		t.line()
	}
	if len(p.Steps) > 0 {
		t.header(p, options.Node)
	}
	for i := range p.Steps {
		t.step(&p.Steps[i])
	}
	for _, held := range p.Held {
		t.line("  # ", Inert(held.Address.String()), " is left as it is: ", Inert(held.Reason))
	}
	if len(p.Held) > 0 {
		t.line()
	}
	t.remarks(p)
	if len(p.Steps) == 0 && p.Unknown == "" {
		which := "What runs"
		if p.Partial != nil {
			which = "What was selected"
		}
		t.line("No changes. ", which, " is what revision ", Inert(shortRevision(p.Revision)), " asks for.")
	}
	t.line(t.paint("1", p.SummaryLine()))
	if err := t.out.Flush(); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return nil
}

// remarks says what the plan is not about.
func (t *text) remarks(p *Plan) {
	lines := p.remarks()
	for _, line := range lines {
		t.line(t.paint("33", line.label), " ", line.text)
	}
	if len(lines) > 0 {
		t.line()
	}
}

// text writes lines to a buffer: a plan of thousands of steps has tens of thousands of lines.
type text struct {
	out   *bufio.Writer
	color bool
}

// line writes its parts as one line. What fails is told when the buffer is flushed.
func (t *text) line(parts ...string) {
	for _, part := range parts {
		_, _ = t.out.WriteString(part)
	}
	_ = t.out.WriteByte('\n')
}

func (t *text) paint(code, s string) string {
	if !t.color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (t *text) header(p *Plan, node string) {
	against := ""
	if node != "" {
		against = ", compared with " + Inert(node)
	}
	t.line("Revision ", Inert(shortRevision(p.Revision)), against, ":")
	used := map[Action]bool{}
	for i := range p.Steps {
		used[p.Steps[i].Action] = true
	}
	for _, row := range legend {
		if used[row.action] {
			t.line("  ", padding[len(symbols[row.action]):], t.paint(colors[row.action], symbols[row.action]), " ", row.text)
		}
	}
	t.line()
}

func (t *text) step(step *Step) {
	v := viewOf(step)
	t.line("  # ", t.paint("1", v.name), " ", v.summary)
	source := ""
	if v.source != "" {
		source = "  (" + v.source + ")"
	}
	t.line(padding[len(symbols[v.action]):], t.paint(colors[v.action], symbols[v.action]), " ", v.address, source)
	for i := range v.lines {
		t.viewLine(&v.lines[i])
	}
	t.line()
}

// padding aligns symbols of up to three characters.
const padding = "   "

// lineColors are those of the labels.
var lineColors = map[lineKind]string{lineDrift: "33", lineData: "31", lineWaiting: "33"}

func (t *text) viewLine(line *viewLine) {
	const indent = "      "
	color := lineColors[line.kind]
	switch {
	case line.kind == lineChange && line.note != "":
		t.line(indent, line.sign, " ", line.text, "  # ", line.note)
	case line.kind == lineChange:
		t.line(indent, line.sign, " ", line.text)
	case line.label == "":
		t.line(indent, line.text)
	case color != "":
		t.line(indent, t.paint(color, line.label), " ", line.text)
	default:
		t.line(indent, line.label, " ", line.text)
	}
}

// shortRevision cuts a commit hash to what git log shows; what says of other repositories behind it stays.
func shortRevision(revision string) string {
	const content = "sha256:"
	if commit, others, found := strings.Cut(revision, "+"); found {
		return shortRevision(commit) + "+" + others
	}
	switch {
	case len(revision) == 40 || len(revision) == 64:
		return revision[:9]
	case strings.HasPrefix(revision, content) && len(revision) > len(content)+9:
		return revision[:len(content)+9]
	}
	return revision
}
