package plan

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gitvirt/gitvirt/schemas"
)

// view is a step as people see it: what text and Markdown are written from, so that they cannot disagree. Everything in it
// fits on one line and holds no control character.
type view struct {
	action Action
	// name is NAMESPACE/NAME, summary follows it in a sentence.
	name, summary   string
	address, source string
	lines           []viewLine
}

// viewLine is one line about a step.
type viewLine struct {
	kind lineKind
	// sign stands before a change, label before what is not one.
	sign, label string
	text        string
	// note follows after "# ".
	note string
}

type lineKind uint8

const (
	lineFact    lineKind = iota // what a new machine is made of
	lineChange                  // a field
	lineDrift                   // what somebody changed behind our back
	lineData                    // data is lost
	lineWaiting                 // the step is blocked or waits
)

// viewOf lays a step out.
func viewOf(step *Step) view {
	v := view{
		action: step.Action, name: Inert(step.Address.Namespace + "/" + step.Address.Name), summary: Inert(step.Summary),
		address: Inert(step.Address.String()), source: Inert(step.Source),
	}
	v.lines = make([]viewLine, 0, len(step.Changes)+len(step.Drift)+len(step.RunningDrift)+len(step.DataAtRisk)+len(step.Waits)+2)
	if step.Action == ActionCreate && step.VM != nil {
		for _, line := range describe(step.VM, step.Pod != nil) {
			v.add(lineFact, "", line)
		}
	}
	if pod := step.Pod; pod != nil {
		v.add(lineFact, "Pod:", pod.text(step.Address.Namespace)+", domain "+step.Domain)
	}
	if step.Adopt != "" {
		v.add(lineFact, "domain:", step.Adopt)
	}
	if step.Previous != nil {
		v.add(lineFact, "was:", step.Previous.String())
	}
	for i := range step.Changes {
		v.lines = append(v.lines, changeLine(&step.Changes[i]))
	}
	v.drift("drift:", step.Drift)
	v.drift("running drift:", step.RunningDrift)
	if pending := step.PendingRestart; pending != nil {
		since := ""
		if !pending.Since.IsZero() {
			since = " since " + pending.Since.UTC().Format(time.RFC3339)
		}
		v.add(lineDrift, "pending restart"+since+":", strings.Join(pending.Fields, ", "))
	}
	if step.DowntimeSeconds > 0 {
		v.add(lineFact, "down for:", "about "+aboutSeconds(step.DowntimeSeconds))
	}
	for _, risk := range step.DataAtRisk {
		v.add(lineData, "data at risk:", risk)
	}
	for _, kept := range step.Kept {
		v.add(lineFact, "stays:", kept+", which no field says")
	}
	for _, kept := range step.Keeps {
		v.add(lineFact, "keeps", kept)
	}
	v.order(step)
	if approved := step.Approved; approved != nil {
		at := ""
		if !approved.At.IsZero() {
			at = " at " + approved.At.UTC().Format(time.RFC3339)
		}
		v.add(lineFact, "approved by", approved.By+at)
	}
	for _, wait := range step.Waits {
		label, text := "waits:", wait.Reason
		if rest, ok := strings.CutPrefix(text, "waits for "); ok {
			label, text = "waits for", rest
		}
		v.add(lineWaiting, label, text)
	}
	for _, warning := range step.Warnings {
		v.add(lineWaiting, "warning:", warning)
	}
	if step.Blocked != "" {
		v.add(lineWaiting, "blocked:", step.Blocked)
	}
	return v
}

func (v *view) add(kind lineKind, label, text string) {
	v.lines = append(v.lines, viewLine{kind: kind, label: label, text: Inert(text)})
}

// order says what a step comes after or before; a step that leaves the guest's power alone waits for nobody.
func (v *view) order(step *Step) {
	for _, dependency := range step.DependsOn {
		name := dependency.Address.Namespace + "/" + dependency.Address.Name
		switch {
		case step.StartsGuest():
			v.add(lineFact, "after", name+" is ready"+howReady(dependency.Ready))
		case step.StopsGuest():
			v.add(lineFact, "before", name+" goes down, if it does")
		}
	}
}

// howReady says how it is told that a guest is ready, where a manifest says so.
func howReady(ready schemas.Ready) string {
	switch ready.Kind {
	case schemas.ReadyRunning:
		return " (it runs)"
	case schemas.ReadyAgent:
		return " (its guest agent answers)"
	case schemas.ReadyTCP:
		return fmt.Sprintf(" (port %d answers)", ready.Port)
	case schemas.ReadyCloudInit:
		return " (cloud-init is done)"
	case schemas.ReadyProbe:
		return " (its readiness probe succeeds)"
	}
	return ""
}

func (v *view) drift(label string, changes []Change) {
	for i := range changes {
		drift := &changes[i]
		text := drift.Path + " was " + brief(drift.Before) + ", is " + brief(drift.After)
		if drift.Sensitive {
			text = drift.Path + ": (sensitive)"
		}
		v.add(lineDrift, label, text)
	}
}

func changeLine(change *Change) viewLine {
	sign, text := change.line()
	return viewLine{kind: lineChange, sign: sign, text: Inert(text), note: Inert(change.remark())}
}

// remarks are the consequences as they stand behind a field.
var remarks = map[Consequence]string{
	ConsequenceNone: "none", ConsequenceLive: "live", ConsequenceNextBoot: "at the next boot", ConsequenceMigrate: "migrates",
	ConsequenceRestart: "needs restart", ConsequenceReplace: "forces replacement", ConsequenceData: "data lost",
}

// remark says what a change means for the guest, and why it is worse than it could be.
func (c *Change) remark() string {
	text, ok := remarks[c.Consequence]
	if !ok {
		text = string(c.Consequence)
	}
	if c.Note != "" && text != "" {
		text += ": "
	}
	return text + c.Note
}

// remarks say what the plan is not about.
func (p *Plan) remarks() []viewLine {
	var v view
	if partial := p.Partial; partial != nil {
		what := ""
		for _, target := range partial.Targets {
			what += " --target " + target
		}
		for _, exclude := range partial.Excludes {
			what += " --exclude " + exclude
		}
		others := "no other VM would change."
		if n := partial.LeftOut; n > 0 {
			others = fmt.Sprintf("%d other VM%s that would change or %s held %s left out.", n, plural(n), verb(n, "is", "are"), verb(n, "is", "are"))
		}
		v.add(lineWaiting, "This plan is partial:", "it is about"+what+"; "+others)
		for _, dependency := range partial.Dependencies {
			v.add(lineWaiting, "  note:", dependency)
		}
	}
	for _, note := range p.Notes {
		v.add(lineWaiting, "Note:", note)
	}
	return v.lines
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// Inert returns text without anything that a terminal, a log or a web page takes for more than text: control characters,
// line ends, marks that change the direction of writing, and bytes that are no UTF-8.
func Inert(text string) string {
	clean := true
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c >= 0x7f {
			clean = false
			break
		}
	}
	if clean {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if harmful(r) {
			const digits = "0123456789abcdef"
			b.WriteString(`\u`)
			for shift := 12; shift >= 0; shift -= 4 {
				b.WriteByte(digits[r>>shift&15])
			}
			continue
		}
		b.WriteRune(r) // of bytes that are no UTF-8 it makes U+FFFD
	}
	return b.String()
}

func harmful(r rune) bool {
	switch {
	case unicode.IsControl(r), r == '\u2028', r == '\u2029', r == '\ufeff', r == utf8.RuneError:
		return true
	case r >= '\u200b' && r <= '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069':
		return true
	}
	return false
}
