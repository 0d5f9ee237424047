package plan

import (
	"fmt"
	"strings"
)

// noticed is what guests notice, as a heading of a table says it, the worst first.
var noticed = []struct {
	consequence Consequence
	text        string
}{
	{ConsequenceDestroy, "are destroyed"},
	{ConsequenceData, "lose data of a disk"},
	{ConsequenceReplace, "are made anew, disks kept"},
	{ConsequenceStop, "are shut down"},
	{ConsequenceRestart, "restart"},
	{ConsequenceMigrate, "move to another host"},
	{ConsequenceNextBoot, "change at their next boot"},
	{ConsequenceLive, "change while they run"},
	{ConsequenceNone, "notice nothing"},
}

// maxRisks is how many machines are named whose data is at risk; their blocks name all.
const maxRisks = 20

// overview counts what guests notice, and names the data that is at risk and what is waited for. What is blocked does not happen, and
// counts as that only.
func (p *Plan) overview() string {
	counts := map[Consequence]int{}
	created, objects := 0, 0
	waits := map[WaitFor]int{}
	blocked, risks, more := 0, []string{}, 0
	for i := range p.Steps {
		step := &p.Steps[i]
		switch {
		case step.Blocked != "":
			blocked++
		case step.VM == nil && !step.Address.IsMachine():
			objects++
		case step.Action == ActionCreate:
			created++
		default:
			counts[step.Consequence]++
		}
		for at, wait := range step.Waits {
			if !hasWait(step.Waits[:at], wait.For) {
				waits[wait.For]++
			}
		}
		for _, risk := range step.DataAtRisk {
			if len(risks) < maxRisks {
				risks = append(risks, "- "+Span(step.Address.Namespace+"/"+step.Address.Name)+": "+Span(risk)+"\n")
			} else {
				more++
			}
		}
	}
	var b strings.Builder
	if len(p.Steps) > blocked {
		b.WriteString("\n| VMs | that |\n| ---: | --- |\n")
	}
	for _, row := range noticed {
		if n := counts[row.consequence]; n > 0 {
			fmt.Fprintf(&b, "| %d | %s |\n", n, row.text)
		}
	}
	if created > 0 {
		fmt.Fprintf(&b, "| %d | are new |\n", created)
	}
	if objects > 0 {
		fmt.Fprintf(&b, "| %d | are other objects |\n", objects)
	}
	if len(risks) > 0 {
		b.WriteString("\n**Data at risk:**\n\n" + strings.Join(risks, ""))
		if more > 0 {
			fmt.Fprintf(&b, "- and %d more\n", more)
		}
	}
	if line := waitingLine(waits, blocked); line != "" {
		b.WriteString("\n" + line + "\n")
	}
	return b.String()
}

func hasWait(waits []Wait, what WaitFor) bool {
	for _, wait := range waits {
		if wait.For == what {
			return true
		}
	}
	return false
}

// waitingLine says how many steps will not happen by themselves at once.
func waitingLine(waits map[WaitFor]int, blocked int) string {
	var parts []string
	for _, row := range []struct {
		what WaitFor
		text string
	}{
		{WaitApproval, "for an approval"}, {WaitWindow, "for a window"}, {WaitBudget, "for a budget"}, {WaitGrace, "for a grace period"},
	} {
		if n := waits[row.what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, row.text))
		}
	}
	line := ""
	if len(parts) > 0 {
		line = "**Will wait:** " + strings.Join(parts, ", ") + "."
	}
	if blocked > 0 {
		line = strings.TrimSpace(fmt.Sprintf("%s **Blocked:** %d.", line, blocked))
	}
	return line
}
