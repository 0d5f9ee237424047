package previews

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// hostile is text from a repository or a pull request.
func hostile(t *rapid.T, label string) string {
	return rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "web", "@everyone", "![x](https://evil/x.png)", "</details>", "<img src=x>", "`", "```\n", noTime, "www.evil.example", "a|b", "\x1b[31m", "\u202e",
			markerBegin + "demo" + hiddenEnd, digestBegin + "00" + hiddenEnd,
		}),
		rapid.String(),
	).Draw(t, label)
}

func drawReport(t *rapid.T) *report {
	r := &report{
		fleet: hostile(t, "fleet"), branch: hostile(t, "branch"), base: hostile(t, "base"), head: hostile(t, "head"), node: hostile(t, "node"),
		at: time.Unix(1_700_000_000, 0), anyway: rapid.IntRange(0, 3).Draw(t, "anyway"), judged: rapid.Bool().Draw(t, "judged"),
	}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		for range rapid.IntRange(1, 200).Draw(t, "conflicts") {
			r.conflicts = append(r.conflicts, sources.Conflict{Path: hostile(t, "path"), Reason: "both sides changed the same lines"})
		}
		return r
	case 1:
		r.problem = strings.Repeat(hostile(t, "problem"), rapid.IntRange(1, 500).Draw(t, "times"))
		return r
	}
	r.plan = &plan.Plan{Fleet: r.fleet, Revision: r.head}
	for range rapid.IntRange(0, 30).Draw(t, "steps") {
		step := plan.Step{
			Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: hostile(t, "namespace"), Name: hostile(t, "name")},
			Action:  plan.ActionRestart, Consequence: plan.ConsequenceRestart, Summary: hostile(t, "summary"), Source: hostile(t, "source"),
			DataAtRisk: []string{hostile(t, "risk")}, Waits: []plan.Wait{{For: plan.WaitWindow, Reason: hostile(t, "reason")}},
		}
		for range rapid.IntRange(0, 5).Draw(t, "changes") {
			step.Changes = append(step.Changes, plan.Change{Path: hostile(t, "field"), Before: hostile(t, "before"), After: strings.Repeat(hostile(t, "after"), 50), Consequence: plan.ConsequenceLive})
		}
		r.plan.Steps = append(r.plan.Steps, step)
	}
	for range rapid.IntRange(0, 100).Draw(t, "diagnostics") {
		r.plan.Diagnostics = append(r.plan.Diagnostics, schemas.Diagnostic{Position: schemas.Position{File: hostile(t, "file"), Line: 1}, Message: hostile(t, "message")})
	}
	return r
}

// TestPropertyComment: whatever the plan and the names, the comment fits, is found again, and its time makes no other one.
func TestPropertyComment(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawReport(t)
		limit := rapid.SampledFrom([]int{3000, 5000, 32768, 65536}).Draw(t, "limit")
		body, digest := r.comment(limit)
		if len(body) > limit {
			t.Fatalf("%d bytes of at most %d", len(body), limit)
		}
		if !utf8.ValidString(body) || strings.ContainsAny(body, "\x1b\u202e\x00") {
			t.Fatalf("not fit to be shown: %q", body)
		}
		if !isOurs(body, r.fleet) || digestOf(body) != digest || digest == "" {
			t.Fatalf("it is not found again:\n%s", body)
		}
		if !isOurs(strings.ReplaceAll(body, "\n", "\r\n"), r.fleet) {
			t.Fatal("with other line endings it is not found")
		}
		if strings.Count(body, markerBegin) != 1 || strings.Count(body, digestBegin) != 1 {
			t.Fatalf("there are other markers in it:\n%s", body)
		}
		if isOurs(body, r.fleet+"x") {
			t.Fatal("another Fleet takes it for its own")
		}
		later := *r
		later.at = r.at.Add(time.Hour)
		if other, same := later.comment(limit); same != digest || len(other) != len(body) {
			t.Fatalf("the time alone makes another comment:\n%s\n%s", body, other)
		}
		later.base = r.base + "0"
		if _, other := later.comment(limit); other == digest {
			t.Fatal("another base makes no other comment")
		}
		if status := r.status(); status.State == forges.Pending || len(status.Annotations) > maxAnnotations {
			t.Fatalf("%+v", status)
		}
		if closed, digest := closing(r.fleet, "was closed", lastSummary.FindString(body)); !isOurs(closed, r.fleet) || digestOf(closed) != digest || len(closed) > 1000 {
			t.Fatalf("closing: %s", closed)
		}
	})
}
