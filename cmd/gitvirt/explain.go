package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

func (c *cli) explainCommand() *cobra.Command {
	var recursive bool
	var output string
	command := &cobra.Command{
		Use:   "explain PATH",
		Short: "Explain a field of a manifest",
		Long: `Explain a field of a manifest: its type and description, which values it takes, the default, whether gitvirt carries it
out, and what a change of it means for a running guest. A path begins with a kind or its short name:

` + kindList() + `
Exit codes: 0 done, 1 there is no such field.`,
		Example: `  gitvirt explain vm
  gitvirt explain vm.spec.template.spec.domain.cpu
  gitvirt explain vm.spec.template.spec.volumes --recursive
  gitvirt explain fleet -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one field, such as vm.spec.template.spec.domain.cpu")
			}
			return nil
		},
		ValidArgsFunction: completeField,
		RunE: func(_ *cobra.Command, args []string) error {
			field, err := schemas.Describe(args[0], recursive)
			if err != nil {
				return err
			}
			if output != "text" {
				return c.print(explain(field), output)
			}
			c.printf("%s", explainText(field, recursive))
			return nil
		},
	}
	command.Flags().BoolVar(&recursive, "recursive", false, "list all fields below, not only the next ones")
	addOutput(command, &output, "text", "json", "yaml")
	return command
}

// kindList is the kinds with what people type for them, one line each.
func kindList() string {
	var b strings.Builder
	for _, kind := range schemas.DescribedKinds() {
		fmt.Fprintf(&b, "  %s\n", strings.Join(append([]string{kind.Name}, kind.ShortNames...), ", "))
	}
	return b.String()
}

// completeField completes a path, one part at a time.
func completeField(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	paths, complete := schemas.CompletePath(typed)
	if complete {
		return paths, cobra.ShellCompDirectiveNoFileComp
	}
	return paths, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// explained is a field as programs get it: with its consequence, in each of the fields below as well.
type explained struct {
	schemas.Field
	WhenChanged plan.Consequence `json:"whenChanged,omitempty"`
	Fields      []explained      `json:"fields,omitempty"` // in place of those of Field
}

func explain(field *schemas.Field) explained {
	out := explained{Field: *field, WhenChanged: plan.ConsequenceOf(field)}
	for i := range field.Fields {
		out.Fields = append(out.Fields, explain(&field.Fields[i]))
	}
	return out
}

// whatItMeans is a consequence in a sentence.
func whatItMeans(consequence plan.Consequence) string {
	switch consequence {
	case plan.ConsequenceNone:
		return "the guest does not notice"
	case plan.ConsequenceLive:
		return "it arrives in the running guest"
	case plan.ConsequenceNextBoot:
		return "the guest gets it when it boots the next time"
	case plan.ConsequenceStop:
		return "the guest is shut down"
	case plan.ConsequenceRestart:
		return "power cycle of the guest"
	case plan.ConsequenceReplace:
		return "the guest is made anew; disks are kept"
	case plan.ConsequenceMigrate:
		return "the guest moves to another host and runs on"
	case plan.ConsequenceData:
		return "data of a disk is destroyed"
	case plan.ConsequenceDestroy:
		return "the guest is removed"
	}
	return ""
}

func explainText(field *schemas.Field, recursive bool) string {
	var b strings.Builder
	line := func(title, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-14s%s\n", title, text)
		}
	}
	line("KIND:", fmt.Sprintf("%s (%s)", field.Kind, field.APIVersion))
	if field.Path != "" {
		required := ""
		if field.Required {
			required = ", required"
		}
		line("FIELD:", fmt.Sprintf("%s <%s>%s", field.Path, field.Type, required))
	}
	line("VALUES:", strings.Join(field.Values, ", "))
	line("DEFAULT:", field.Default)
	line("SUPPORT:", supportText(field))
	if consequence := plan.ConsequenceOf(field); consequence != "" && field.Path != "" {
		line("WHEN CHANGED:", string(consequence)+": "+whatItMeans(consequence)+differing(field, consequence))
		line("", conditionOf(field, consequence))
	}
	if field.Description != "" {
		b.WriteString("\nDESCRIPTION:\n")
		for _, paragraph := range paragraphs(field.Description) {
			b.WriteString(wrap(paragraph, "    ", 100))
		}
	}
	if len(field.Fields) > 0 {
		b.WriteString("\nFIELDS:\n")
		if recursive {
			explainTree(&b, field.Fields, "  ")
		} else {
			explainFields(&b, field.Fields)
		}
	}
	return b.String()
}

// supportText says what gitvirt does with a field; for an object, with how much of what is below it.
func supportText(field *schemas.Field) string {
	text := field.Support.String()
	below := field.Below
	if field.Support == schemas.SupportCarried && below != nil && below.Refused > 0 {
		text = fmt.Sprintf("%d fields are carried out, %d are refused", below.Carried, below.Refused)
		if below.Carried == 0 && below.Kept == 0 {
			text = "refused"
		} else if below.Kept > 0 {
			text = fmt.Sprintf("%d fields are carried out, %d are kept, %d are refused", below.Carried, below.Kept, below.Refused)
		}
	}
	switch {
	case field.Instead != "":
		text += ": " + field.Instead
	case field.Support == schemas.SupportKept:
		text += ": it is for Pods, or nothing on a host depends on it"
	case field.Support == schemas.SupportIgnored:
		text += ": only servers write it"
	}
	return text
}

// conditionOf says when a consequence holds, and what holds otherwise.
func conditionOf(field *schemas.Field, consequence plan.Consequence) string {
	row := plan.RowOf(field)
	switch {
	case row == nil || row.When == "":
		return ""
	case row.Consequence == consequence:
		return "when " + row.When + "; else " + string(row.Worst())
	case row.Seldom:
		return string(row.Consequence) + " when " + row.When
	}
	return ""
}

// differing says that fields below mean something else than the object itself.
func differing(field *schemas.Field, consequence plan.Consequence) string {
	for i := range field.Fields {
		if below := plan.ConsequenceOf(&field.Fields[i]); below != "" && below != consequence {
			return "; some fields below differ"
		}
	}
	return ""
}

// explainFields lists fields with one line for each.
func explainFields(b *strings.Builder, fields []schemas.Field) {
	name, kind := 0, 0
	for i := range fields {
		name, kind = max(name, len(fields[i].Name())), max(kind, len(fields[i].Type)+2)
	}
	for i := range fields {
		field := &fields[i]
		about := firstSentence(field.Description)
		if field.Support == schemas.SupportRefused {
			about = strings.TrimSuffix("refused: "+field.Instead, ": ")
		}
		fmt.Fprintln(b, strings.TrimRight(fmt.Sprintf("  %-*s  %-*s  %s", name, field.Name(), kind, "<"+field.Type+">", about), " "))
	}
}

// explainTree lists all fields below, indented.
func explainTree(b *strings.Builder, fields []schemas.Field, indent string) {
	for i := range fields {
		field := &fields[i]
		fmt.Fprintf(b, "%s%s <%s>", indent, field.Name(), field.Type)
		if field.Required {
			b.WriteString(", required")
		}
		if len(field.Values) > 0 {
			b.WriteString(" " + strings.Join(field.Values, "|"))
		}
		if field.Support == schemas.SupportRefused {
			b.WriteString(", refused\n")
			continue // nothing below it is carried out either
		}
		b.WriteString("\n")
		explainTree(b, field.Fields, indent+"  ")
	}
}

// firstSentence cuts a description down to what fits beside a field.
func firstSentence(text string) string {
	const limit = 90
	text, _, _ = strings.Cut(strings.ReplaceAll(text, "\n", " "), ". ")
	text = strings.TrimSuffix(text, ".")
	if runes := []rune(text); len(runes) > limit {
		cut := string(runes[:limit])
		if space := strings.LastIndexByte(cut, ' '); space > 0 {
			cut = cut[:space]
		}
		return cut + " ..."
	}
	return text
}

// paragraphs joins the lines of a description where its author only broke them: before a word in lower case.
func paragraphs(text string) []string {
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		last := len(out) - 1
		if last >= 0 && out[last] != "" && line != "" && unicode.IsLower([]rune(line)[0]) && !strings.ContainsAny(out[last][len(out[last])-1:], ".:;") {
			out[last] += " " + line
			continue
		}
		out = append(out, line)
	}
	return out
}

// wrap breaks a paragraph into indented lines.
func wrap(text, indent string, width int) string {
	var b strings.Builder
	length := 0
	for _, word := range strings.Fields(text) {
		switch {
		case length == 0:
			b.WriteString(indent)
			length = len(indent)
		case length+1+len(word) > width:
			b.WriteString("\n" + indent)
			length = len(indent)
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(word)
		length += len(word)
	}
	b.WriteByte('\n')
	return b.String()
}
