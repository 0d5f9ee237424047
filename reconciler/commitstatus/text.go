package commitstatus

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
)

// maxAnnotations is how many mistakes are shown beside their lines.
const maxAnnotations = 50

// Of is the status of a revision whose progress is known. The most important comes first, because forges cut what is long.
func Of(p *reconciler.Progress) forges.Status {
	out := forges.Status{Context: Context, State: forges.Pending}
	applied := fmt.Sprintf("applied %d of %d", p.Applied, p.Total)
	var parts []string
	switch {
	case len(p.Failed) > 0:
		out.State = forges.Failure
		first := p.Failed[0]
		parts = []string{fmt.Sprintf("%d of %d failed: %s/%s: %s", len(p.Failed), p.Total, first.Address.Namespace, first.Address.Name, first.Message)}
	case len(p.Mistakes) > 0:
		out.State = forges.Failure
		parts = []string{applied, plural(len(p.Mistakes), "mistake") + " in the manifests: " + p.Mistakes[0].Error()}
	case p.Applied == p.Total:
		out.State = forges.Success
		parts = []string{applied}
	default:
		parts = append([]string{applied}, waits(p)...)
	}
	for _, mistake := range p.Mistakes {
		if mistake.Position.Source != "" {
			continue // what is in another repository has no place in this one
		}
		if len(out.Annotations) == maxAnnotations {
			break
		}
		message := strings.TrimPrefix(mistake.Error(), mistake.Position.String()+": ")
		out.Annotations = append(out.Annotations, forges.Annotation{Path: mistake.Position.File, Line: mistake.Position.Line, Message: message})
	}
	out.Description = cut(status.OneLine(strings.Join(parts, ", ")))
	return out
}

// waits says what is waited for: "2 wait for a window, 1 for an approval".
func waits(p *reconciler.Progress) []string {
	var parts []string
	for _, wait := range []struct {
		what plan.WaitFor
		text string
	}{{plan.WaitWindow, "a window"}, {plan.WaitApproval, "an approval"}, {plan.WaitBudget, "a budget"}} {
		n := p.Waiting[wait.what]
		if n == 0 {
			continue
		}
		verb := ""
		switch {
		case len(parts) > 0:
		case n == 1:
			verb = "waits "
		default:
			verb = "wait "
		}
		parts = append(parts, fmt.Sprintf("%d %sfor %s", n, verb, wait.text))
	}
	if p.Blocked > 0 {
		parts = append(parts, fmt.Sprintf("%d blocked", p.Blocked))
	}
	return parts
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// cut makes a text as short as every forge wants it.
func cut(text string) string {
	runes := []rune(text)
	if len(runes) <= forges.DescriptionLimit {
		return text
	}
	return string(runes[:forges.DescriptionLimit-1]) + "…"
}

// Forge is what is needed of a forges.Forge.
type Forge interface {
	Name() string
	SetStatus(ctx context.Context, commit string, status forges.Status) error
	Statuses(ctx context.Context, commit string) ([]forges.Status, error)
}

// Notes is what is needed of the notes beside the commits of a repository; *git.Notes is one.
type Notes interface {
	Name() string
	Show(ctx context.Context, commit string) (text string, found bool, err error)
	Write(ctx context.Context, commit, text string) error
}

// InNotes is the Board of notes. A note is one line: gitvirt/apply, the state and the text.
func InNotes(notes Notes) Board { return notesBoard{notes} }

type notesBoard struct{ Notes }

// note is what a note says.
var note = regexp.MustCompile(`^` + Context + `: (pending|success|failure): (.*)\n$`)

// Told reads the note. One that nobody can read is there all the same, and replaced.
func (b notesBoard) Told(ctx context.Context, commit string) (forges.Status, bool, error) {
	text, found, err := b.Show(ctx, commit)
	if err != nil || !found {
		return forges.Status{}, false, err
	}
	told := forges.Status{Context: Context, State: forges.Pending}
	if parts := note.FindStringSubmatch(text); parts != nil {
		told.State, told.Description = forges.StatusState(parts[1]), parts[2]
	}
	return told, true, nil
}

// Tell writes the note.
func (b notesBoard) Tell(ctx context.Context, commit string, status forges.Status) error {
	return b.Write(ctx, commit, fmt.Sprintf("%s: %s: %s\n", Context, status.State, status.Description))
}

// OnForge is the Board of a forge.
func OnForge(forge Forge) Board { return forgeBoard{forge} }

type forgeBoard struct{ Forge }

// Told returns the status of Context.
func (b forgeBoard) Told(ctx context.Context, commit string) (forges.Status, bool, error) {
	all, err := b.Statuses(ctx, commit)
	if err != nil {
		return forges.Status{}, false, err
	}
	for _, one := range all {
		if one.Context == Context {
			return one, true, nil
		}
	}
	return forges.Status{}, false, nil
}

// Tell sets the status.
func (b forgeBoard) Tell(ctx context.Context, commit string, status forges.Status) error {
	return b.SetStatus(ctx, commit, status)
}
