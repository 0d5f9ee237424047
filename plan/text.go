package plan

import (
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
}

var legend = []struct {
	action Action
	text   string
}{
	{ActionCreate, "create"},
	{ActionUpdate, "update in place, the guest runs on"},
	{ActionStart, "start"},
	{ActionStop, "shut down"},
	{ActionRestart, "restart (power cycle)"},
	{ActionReplace, "replace, disks kept"},
	{ActionDestroy, "destroy"},
}

var colors = map[Action]string{
	ActionCreate: "32", ActionUpdate: "33", ActionStart: "32", ActionStop: "31",
	ActionRestart: "35", ActionReplace: "31", ActionDestroy: "31",
}

// Text writes the plan for people.
func (p *Plan) Text(out io.Writer, options TextOptions) error {
	t := &text{out: out, color: options.Color}
	for _, diagnostic := range p.Diagnostics {
		t.line("%s %s", t.paint("31", "Problem:"), diagnostic.Error())
	}
	if len(p.Diagnostics) > 0 {
		t.line("")
	}
	if p.Unknown != "" {
		t.line("%s %s", t.paint("33", "The host cannot be read, so nothing is planned:"), p.Unknown)
		t.line("")
	}
	if len(p.Steps) > 0 {
		t.header(p, options.Node)
	}
	for i := range p.Steps {
		t.step(&p.Steps[i])
	}
	for _, held := range p.Held {
		t.line("  # %s is left as it is: %s", held.Address, held.Reason)
	}
	if len(p.Held) > 0 {
		t.line("")
	}
	t.remarks(p)
	if len(p.Steps) == 0 && p.Unknown == "" {
		which := "What runs"
		if p.Partial != nil {
			which = "What was selected"
		}
		t.line("No changes. %s is what revision %s asks for.", which, shortRevision(p.Revision))
	}
	t.line("%s", t.paint("1", p.SummaryLine()))
	return t.err
}

// remarks says what the plan is not about.
func (t *text) remarks(p *Plan) {
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
		t.line("%s it is about%s; %s", t.paint("33", "This plan is partial:"), what, others)
		for _, dependency := range partial.Dependencies {
			t.line("  %s %s", t.paint("33", "note:"), dependency)
		}
	}
	for _, note := range p.Notes {
		t.line("%s %s", t.paint("33", "Note:"), note)
	}
	if p.Partial != nil || len(p.Notes) > 0 {
		t.line("")
	}
}

func verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

type text struct {
	out   io.Writer
	color bool
	err   error
}

func (t *text) line(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.out, format+"\n", args...)
	}
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
		against = ", compared with " + node
	}
	t.line("Revision %s%s:", shortRevision(p.Revision), against)
	used := map[Action]bool{}
	for i := range p.Steps {
		used[p.Steps[i].Action] = true
	}
	for _, row := range legend {
		if used[row.action] {
			t.line("  %s %s", t.paint(colors[row.action], fmt.Sprintf("%3s", symbols[row.action])), row.text)
		}
	}
	t.line("")
}

func (t *text) step(step *Step) {
	t.line("  # %s %s", t.paint("1", step.Address.Namespace+"/"+step.Address.Name), step.Summary)
	source := ""
	if step.Source != "" {
		source = "  (" + step.Source + ")"
	}
	t.line("%s %s%s", t.paint(colors[step.Action], fmt.Sprintf("%3s", symbols[step.Action])), step.Address, source)
	if step.Action == ActionCreate && step.VM != nil {
		for _, line := range describe(step.VM) {
			t.line("      %s", line)
		}
	}
	for _, change := range step.Changes {
		t.change(change)
	}
	for _, drift := range step.Drift {
		t.line("      drift: %s was %s, is %s", drift.Path, brief(drift.Before), brief(drift.After))
	}
	for _, risk := range step.DataAtRisk {
		t.line("      %s %s", t.paint("31", "data at risk:"), risk)
	}
	for _, kept := range step.Keeps {
		t.line("      keeps %s", kept)
	}
	for _, warning := range step.Warnings {
		t.line("      %s %s", t.paint("33", "warning:"), warning)
	}
	if step.Blocked != "" {
		t.line("      %s %s", t.paint("33", "blocked:"), step.Blocked)
	}
	t.line("")
}

func (t *text) change(change Change) {
	note := "  # " + string(change.Consequence)
	switch {
	case change.Sensitive:
		t.line("      ~ %s: (sensitive)%s", change.Path, note)
	case change.isDigest():
		t.line("      ~ %s: other content%s", change.Path, note)
	case change.Before == nil:
		t.line("      + %s: %s%s", change.Path, brief(change.After), note)
	case change.After == nil:
		t.line("      - %s: %s%s", change.Path, brief(change.Before), note)
	default:
		t.line("      ~ %s: %s -> %s%s", change.Path, brief(change.Before), brief(change.After), note)
	}
}

// SummaryLine counts the steps in one line.
func (p *Plan) SummaryLine() string {
	s := p.Summary
	var parts []string
	for _, row := range []struct {
		count int
		text  string
	}{
		{s.Create, "to create"},
		{s.Update, "to update"},
		{s.Start, "to start"},
		{s.Stop, "to shut down"},
		{s.Restart, "to restart"},
		{s.Replace, "to replace"},
	} {
		if row.count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", row.count, row.text))
		}
	}
	if s.Destroy > 0 {
		kept := ""
		if s.KeepsDisks > 0 {
			kept = fmt.Sprintf(" (keeps %d disk%s)", s.KeepsDisks, plural(s.KeepsDisks))
		}
		parts = append(parts, fmt.Sprintf("%d to destroy%s", s.Destroy, kept))
	}
	if len(parts) == 0 {
		parts = []string{"nothing to do"}
	}
	drift := ""
	if s.Drifted > 0 {
		drift = fmt.Sprintf(" Drifted: %d.", s.Drifted)
	}
	return fmt.Sprintf("Plan: %s. Unchanged: %d.%s Blocked: %d. Unknown: %d.",
		strings.Join(parts, ", "), p.Unchanged, drift, s.Blocked, p.UnknownCount)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// shortRevision cuts a commit hash to what git log shows.
func shortRevision(revision string) string {
	const content = "sha256:"
	switch {
	case len(revision) == 40 || len(revision) == 64:
		return revision[:9]
	case strings.HasPrefix(revision, content) && len(revision) > len(content)+9:
		return revision[:len(content)+9]
	}
	return revision
}
