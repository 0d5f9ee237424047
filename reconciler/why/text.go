package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/sources"
)

// maxChanges is how many fields fit on the screen.
const maxChanges = 8

// Text is the answer for people.
func (a *Answer) Text() string {
	var b strings.Builder
	wanted := status.ShortRevision(a.Wanted)
	if a.Synced {
		fmt.Fprintf(&b, "%s is as revision %s wants it.\n", a.Address, wanted)
	} else {
		fmt.Fprintf(&b, "%s is not as revision %s wants it", a.Address, wanted)
		if a.Summary != "" {
			fmt.Fprintf(&b, ": it %s", a.Summary)
		}
		b.WriteString(".\n")
		if a.Observed != "" && a.Observed != sources.CommitOf(a.Wanted) {
			fmt.Fprintf(&b, "Revision %s was applied last.\n", status.ShortRevision(a.Observed))
		}
	}
	for i, change := range a.Changes {
		if i == maxChanges {
			fmt.Fprintf(&b, "      and %d more\n", len(a.Changes)-i)
			break
		}
		fmt.Fprintf(&b, "      %s  # %s\n", change, change.Consequence)
	}
	for _, cause := range a.Causes {
		fmt.Fprintf(&b, "  - %s", cause.Text)
		if !cause.Until.IsZero() {
			word := "until"
			if cause.Kind == Failed || cause.Kind == Stalled || cause.Kind == CrashLoop {
				word = "tried again at"
			}
			fmt.Fprintf(&b, " (%s %s UTC)", word, cause.Until.UTC().Format(time.DateTime))
		}
		b.WriteString("\n")
	}
	var commands []string
	for _, cause := range a.Causes {
		if cause.Command != "" && !strings.Contains(strings.Join(commands, "\n"), cause.Command) {
			commands = append(commands, cause.Command)
		}
	}
	if len(commands) > 0 {
		fmt.Fprintf(&b, "Next: %s\n", strings.Join(commands, "\n      "))
	}
	return b.String()
}
