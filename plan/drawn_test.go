package plan_test

import (
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// hostile is text that means something to a terminal, to Markdown, to HTML or to a forge.
func hostile(t *rapid.T, label string) string {
	if rapid.Bool().Draw(t, label+" is hostile") {
		return rapid.SampledFrom([]string{
			"`", "```", "````\n</details>", "</summary></details><script>alert(1)</script>", "@everyone", "[x](javascript:1)", "https://evil.example",
			"<!--", "]]>", "a\nb", "\r\n\r\n# head", "\x1b[31mred", "\u202egpj.exe", "\xff\xfe", "**bold**", "| a | b |", "&lt;", "#1", "-->", "\x00", "~~~",
			strings.Repeat("`", 200), strings.Repeat("long ", 100), "日本語", "\u2028", "*_~\\`",
		}).Draw(t, label)
	}
	return rapid.StringMatching(`[a-z]{1,8}`).Draw(t, label)
}

func drawnValue(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
	case kind == 0:
		return nil
	case kind == 1:
		return rapid.Bool().Draw(t, "bool")
	case kind == 2:
		return float64(rapid.IntRange(-5, 1<<20).Draw(t, "number"))
	case kind == 3 && depth > 0:
		return map[string]any{hostile(t, "key"): drawnValue(t, depth-1), "userData": "(sensitive)"}
	case kind == 4 && depth > 0:
		return []any{drawnValue(t, depth-1), drawnValue(t, depth-1)}
	}
	return hostile(t, "value")
}

func drawnChanges(t *rapid.T) []plan.Change {
	var out []plan.Change
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		change := plan.Change{
			Path: "spec.template.spec." + hostile(t, "path"), Before: drawnValue(t, 2), After: drawnValue(t, 2), Note: rapid.SampledFrom([]string{"", hostile(t, "note")}).Draw(t, "noted"),
			Consequence: rapid.SampledFrom([]plan.Consequence{plan.ConsequenceNone, plan.ConsequenceLive, plan.ConsequenceNextBoot, plan.ConsequenceRestart, plan.ConsequenceReplace, plan.ConsequenceData}).Draw(t, "consequence"),
		}
		if rapid.Bool().Draw(t, "sensitive") {
			change.Before, change.After, change.Sensitive = nil, nil, true
		}
		out = append(out, change)
	}
	return out
}

// drawnPlan is any plan, with values that nobody would write who means well.
func drawnPlan(t *rapid.T) *plan.Plan {
	hash := strings.Repeat("0123456789abcdef", 2)
	p := &plan.Plan{FormatVersion: plan.FormatVersion, ID: hash, Revision: hostile(t, "revision"), Fleet: hostile(t, "fleet"), Steps: []plan.Step{}}
	for i := range rapid.IntRange(0, 6).Draw(t, "steps") {
		step := plan.Step{
			ID: hash, Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: fmt.Sprintf("vm-%d", i)},
			Action: rapid.SampledFrom([]plan.Action{
				plan.ActionCreate, plan.ActionUpdate, plan.ActionStart, plan.ActionStop, plan.ActionRestart, plan.ActionReplace, plan.ActionDestroy,
				plan.ActionAdopt, plan.ActionRename, plan.ActionRetire,
			}).Draw(t, "action"),
			Reason: plan.ReasonChanged, Consequence: rapid.SampledFrom([]plan.Consequence{plan.ConsequenceNone, plan.ConsequenceRestart, plan.ConsequenceDestroy}).Draw(t, "worst"),
			Summary: hostile(t, "summary"), Domain: hostile(t, "domain"), Source: hostile(t, "source"),
			Changes: drawnChanges(t), Drift: drawnChanges(t), RunningDrift: drawnChanges(t),
			Define: rapid.Bool().Draw(t, "define"), Live: rapid.Bool().Draw(t, "live"), Precondition: rapid.SampledFrom([]string{"", "abc"}).Draw(t, "precondition"),
			Power:           rapid.SampledFrom([]plan.PowerChange{plan.PowerKeep, plan.PowerOn, plan.PowerOff, plan.PowerCycle}).Draw(t, "power"),
			DowntimeSeconds: rapid.Int64Range(0, 100).Draw(t, "down"), GraceSeconds: rapid.Int64Range(0, 100).Draw(t, "grace"),
		}
		if rapid.Bool().Draw(t, "more") {
			step.Waits = []plan.Wait{{For: plan.WaitWindow, Until: time.Unix(1800000000, 0).UTC(), Reason: hostile(t, "wait")}, {For: plan.WaitApproval, Reason: "x"}}
			step.Blocked, step.Adopt = hostile(t, "blocked"), hostile(t, "adopt")
			step.DataAtRisk, step.Keeps = []string{hostile(t, "risk")}, []string{hostile(t, "keep")}
			step.PendingRestart = &plan.Pending{Fields: []string{hostile(t, "pending")}, Since: time.Unix(1700000000, 0).UTC()}
			step.Previous = &schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "old"}
			step.DependsOn = []plan.Dependency{{Address: *step.Previous}}
		}
		p.Steps = append(p.Steps, step)
	}
	if rapid.Bool().Draw(t, "held") {
		p.Held = []plan.Held{{Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "held"}, Reason: hostile(t, "reason")}}
	}
	if rapid.Bool().Draw(t, "unknown") {
		p.Unknown, p.UnknownCount = hostile(t, "why unknown"), 3
	}
	return p
}
