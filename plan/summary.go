package plan

import (
	"fmt"
	"strings"
)

// Summary counts the steps. A step counts once, under what happens; blocked steps count under Blocked only, waiting ones also
// under Waiting.
type Summary struct {
	Create int `json:"create"`
	// Live are running guests that are changed without a restart, Update are changes of the configuration only.
	Live    int `json:"live"`
	Update  int `json:"update"`
	Start   int `json:"start"`
	Stop    int `json:"stop"`
	Restart int `json:"restart"`
	Replace int `json:"replace"`
	Destroy int `json:"destroy"`
	Adopt   int `json:"adopt,omitempty"`
	Rename  int `json:"rename,omitempty"`
	Retire  int `json:"retire,omitempty"`
	// RestartSeconds and ReplaceSeconds are about how long the guests are down in sum.
	RestartSeconds int64 `json:"restart_seconds,omitempty"`
	ReplaceSeconds int64 `json:"replace_seconds,omitempty"`
	// KeepsDisks is the number of disks that destroyed domains leave behind.
	KeepsDisks int `json:"keeps_disks"`
	Blocked    int `json:"blocked"`
	Waiting    int `json:"waiting,omitempty"`
	// Drifted is the number of objects that somebody changed behind our back.
	Drifted int `json:"drifted"`
}

func (p *Plan) summarize() {
	s := Summary{Blocked: len(p.Held)}
	for i := range p.Steps {
		s.count(&p.Steps[i])
	}
	p.Summary = s
}

func (s *Summary) count(step *Step) {
	if len(step.Drift) > 0 || len(step.RunningDrift) > 0 || step.Reason == ReasonDrift || step.Reason == ReasonRunningDrift {
		s.Drifted++
	}
	if step.Blocked != "" {
		s.Blocked++
		return
	}
	if len(step.Waits) > 0 {
		s.Waiting++
	}
	s.KeepsDisks += len(step.Keeps)
	switch step.Action {
	case ActionCreate:
		s.Create++
	case ActionUpdate:
		if step.Live {
			s.Live++
		} else {
			s.Update++
		}
	case ActionStart:
		s.Start++
	case ActionStop:
		s.Stop++
	case ActionRestart:
		s.Restart++
		s.RestartSeconds += step.DowntimeSeconds
	case ActionReplace:
		s.Replace++
		s.ReplaceSeconds += step.DowntimeSeconds
	case ActionDestroy:
		s.Destroy++
	case ActionAdopt:
		s.Adopt++
	case ActionRename:
		s.Rename++
	case ActionRetire:
		s.Retire++
	}
}

// SummaryLine counts the steps in one line. It holds nothing but numbers and our own words.
func (p *Plan) SummaryLine() string {
	s := p.Summary
	var parts []string
	add := func(count int, text, more string) {
		if count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s%s", count, text, more))
		}
	}
	kept := ""
	if s.KeepsDisks > 0 {
		kept = fmt.Sprintf(" (keeps %d disk%s)", s.KeepsDisks, plural(s.KeepsDisks))
	}
	add(s.Create, "to create", "")
	add(s.Adopt, "to adopt", "")
	add(s.Rename, "to rename", "")
	add(s.Live, "live", "")
	add(s.Update, "in place", "")
	add(s.Start, "to start", "")
	add(s.Stop, "to shut down", "")
	add(s.Restart, "restart"+plural(s.Restart), downWords(s.RestartSeconds))
	add(s.Replace, "replace", downWords(s.ReplaceSeconds))
	add(s.Retire, "to retire", "")
	add(s.Destroy, "to destroy", kept)
	if len(parts) == 0 {
		parts = []string{"nothing to do"}
	}
	line := "Plan: " + strings.Join(parts, ", ") + "."
	if s.Drifted > 0 {
		line += fmt.Sprintf(" Drifted: %d.", s.Drifted)
	}
	line += fmt.Sprintf(" Blocked: %d.", s.Blocked)
	if s.Waiting > 0 {
		line += fmt.Sprintf(" Waiting: %d.", s.Waiting)
	}
	return line + fmt.Sprintf(" Unknown: %d.", p.UnknownCount)
}

// downWords says how long guests are down, as exactly as an estimate deserves.
func downWords(seconds int64) string {
	if seconds <= 0 {
		return ""
	}
	return " (about " + aboutSeconds(seconds) + " down)"
}

// aboutSeconds rounds a time to what an estimate deserves.
func aboutSeconds(seconds int64) string {
	switch {
	case seconds < 95:
		return fmt.Sprintf("%d s", max(10, (seconds+5)/10*10))
	case seconds < 90*60:
		return fmt.Sprintf("%d min", (seconds+30)/60)
	}
	return fmt.Sprintf("%d h", (seconds+1800)/3600)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}
