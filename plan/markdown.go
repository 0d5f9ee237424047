package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// MarkdownOptions say how a plan is written for a pull request.
type MarkdownOptions struct {
	// Budget is how many bytes the text may have; 0 for as many as it takes. Less than MinMarkdown is MinMarkdown.
	Budget int
	// Node is what the plan is compared with: a host's name or a revision.
	Node string
	// About says in Markdown what is planned, in place of the sentence that names the revision and Node. Span makes names fit for it.
	About string
	// More says in Markdown where all of the plan is, for a text that is too short; empty names gitvirt plan.
	More string
}

// MinMarkdown is the smallest budget: it has room for the summary and for how much was left out.
const MinMarkdown = 512

// Markdown returns the plan for a comment on a pull request: the summary first, then a folded block for each object, the
// most severe first. What does not fit is left out, and the text says how much. Values of manifests stay what they are: no
// mention, link, HTML or other markup of theirs takes effect.
func (p *Plan) Markdown(options MarkdownOptions) string {
	m := &markdown{budget: options.Budget, more: options.More}
	if m.more == "" {
		m.more = "`gitvirt plan` shows all."
	}
	if m.budget > 0 {
		m.budget = max(m.budget, MinMarkdown)
	}
	m.out.WriteString(p.SummaryLine() + "\n")
	about := options.About
	if about == "" {
		about = "Revision " + Span(shortRevision(p.Revision)) + against(options.Node) + "."
	}
	m.part("\n" + about + "\n")
	if p.Unknown != "" {
		m.part("\nThe host cannot be read, so nothing is planned:\n\n" + fenced([]string{Inert(p.Unknown)}))
	}
	if n := len(p.Diagnostics); n > 0 {
		lines := make([]string, n)
		for i, diagnostic := range p.Diagnostics {
			lines[i] = Inert(diagnostic.Error())
		}
		m.block(fmt.Sprintf("%d problem%s in the manifests", n, plural(n)), lines)
	}
	m.part(p.overview())
	order := make([]*Step, len(p.Steps))
	for i := range p.Steps {
		order[i] = &p.Steps[i]
	}
	slices.SortStableFunc(order, func(a, b *Step) int { return cmp.Compare(severity[b.Consequence], severity[a.Consequence]) })
	for i, step := range order {
		v := viewOf(step)
		if !m.block(tag(v.name)+" "+tag(v.summary), v.markdownLines()) {
			m.leftOut += len(order) - i - 1
			break
		}
	}
	if len(p.Held) > 0 {
		lines := make([]string, len(p.Held))
		for i, held := range p.Held {
			lines[i] = Inert(held.Address.String() + ": " + held.Reason)
		}
		m.block(fmt.Sprintf("%d left as %s", len(p.Held), verb(len(p.Held), "it is", "they are")), lines)
	}
	if remarks := p.remarks(); len(remarks) > 0 {
		lines := make([]string, len(remarks))
		for i, remark := range remarks {
			lines[i] = remark.label + " " + remark.text
		}
		m.block("What the plan is not about", lines)
	}
	if m.leftOut > 0 || m.cut {
		m.out.WriteString(m.rest())
	}
	return m.out.String()
}

func against(node string) string {
	if node == "" {
		return ""
	}
	return ", compared with " + Span(node)
}

// markdown writes what fits.
type markdown struct {
	out     strings.Builder
	budget  int
	leftOut int
	// cut says that a block lost some of its lines.
	cut bool
	// more says where all of the plan is.
	more string
}

// reserve is what the last line takes, besides the words that say where the rest is.
const reserve = 80

// room is how many bytes may still be written before the last line.
func (m *markdown) room() int {
	if m.budget <= 0 {
		return 1 << 40
	}
	return m.budget - reserve - len(m.more) - m.out.Len()
}

func (m *markdown) part(text string) {
	if len(text) <= m.room() {
		m.out.WriteString(text)
	} else {
		m.cut = true
	}
}

// rest says how much was left out.
func (m *markdown) rest() string {
	if m.leftOut == 0 {
		return "\nSome lines are left out: the text would be too long. " + m.more + "\n"
	}
	return fmt.Sprintf("\n%d more %s left out: the text would be too long. %s\n", m.leftOut, verb(m.leftOut, "is", "are"), m.more)
}

// block writes a folded block, with as many of its lines as fit; when not even one does, it is left out, and so should be what
// follows.
func (m *markdown) block(title string, lines []string) bool {
	whole := details(title, lines)
	if len(whole) <= m.room() {
		m.out.WriteString(whole)
		return true
	}
	m.cut = true
	const more = "... %d more lines"
	fence := fenceFor(lines)
	frame := len(details(title, nil)) + 2*(len(fence)-3) + len(more) + 16
	kept, size := 0, frame
	for _, line := range lines {
		if size += len(line) + 1; size > m.room() {
			break
		}
		kept++
	}
	if kept == 0 {
		m.leftOut++
		return false
	}
	m.out.WriteString(details(title, append(slices.Clone(lines[:kept]), fmt.Sprintf(more, len(lines)-kept))))
	return false
}

// details is a folded block of lines.
func details(title string, lines []string) string {
	var b strings.Builder
	fence := fenceFor(lines)
	const before, middle, after = "\n<details>\n<summary>", "</summary>\n\n", "\n</details>\n"
	b.Grow(len(before) + len(title) + len(middle) + fencedSize(fence, lines) + len(after))
	b.WriteString(before)
	b.WriteString(title)
	b.WriteString(middle)
	writeFenced(&b, fence, lines)
	b.WriteString(after)
	return b.String()
}

// fenced is a block of code, in which nothing means anything.
func fenced(lines []string) string {
	var b strings.Builder
	writeFenced(&b, fenceFor(lines), lines)
	return b.String()
}

// language makes forges colour added and removed lines.
const language = "diff\n"

func fencedSize(fence string, lines []string) int {
	size := 2*len(fence) + len(language) + 1
	for _, line := range lines {
		size += len(line) + 1
	}
	return size
}

func writeFenced(b *strings.Builder, fence string, lines []string) {
	b.WriteString(fence)
	b.WriteString(language)
	for _, line := range lines {
		b.WriteString(line)
		b.WriteByte('\n')
	}
	b.WriteString(fence)
	b.WriteByte('\n')
}

// fenceFor returns a fence that no line ends.
func fenceFor(lines []string) string {
	longest := 2
	for _, line := range lines {
		if strings.IndexByte(line, '`') < 0 {
			continue
		}
		run := 0
		for i := range len(line) {
			if line[i] != '`' {
				run = 0
				continue
			}
			run++
			longest = max(longest, run)
		}
	}
	return strings.Repeat("`", longest+1)
}

// markdownLines are the lines of a step's block; the sign comes first, as in a diff.
func (v *view) markdownLines() []string {
	head := symbols[v.action] + " " + v.address
	if v.source != "" {
		head += "  (" + v.source + ")"
	}
	lines := append(make([]string, 0, 1+len(v.lines)), head)
	for i := range v.lines {
		line := &v.lines[i]
		text := line.text
		switch {
		case line.kind == lineChange && line.note != "":
			text = line.sign + " " + text + "  # " + line.note
		case line.kind == lineChange:
			text = line.sign + " " + text
		case line.label != "":
			text = "  " + line.label + " " + text
		default:
			text = "  " + text
		}
		lines = append(lines, text)
	}
	return lines
}

// maxTag is how much of a value stands in a block's title, in bytes.
const maxTag = 300

// tag is text in a title, where HTML is read: nothing in <code> is taken for a mention or a link.
func tag(text string) string {
	return "<code>" + markup.Replace(shorten(text, maxTag)) + "</code>"
}

var markup = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&#39;", "`", "&#96;")

// maxSpan is how much of a value stands in a sentence, in bytes.
const maxSpan = 80

// Span is text in a sentence of Markdown, as code: no markup, link or mention in it takes effect.
func Span(text string) string {
	text = strings.ReplaceAll(shorten(Inert(text), maxSpan), "`", "'")
	if strings.TrimSpace(text) == "" {
		text = "(empty)"
	}
	return "`" + text + "`"
}

// shorten cuts text to a number of bytes, between two characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "..."
}
