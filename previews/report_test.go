package previews

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
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
			markerBegin + "demo" + hiddenEnd, digestBegin + "00" + hiddenEnd, commandsBegin + "e30" + hiddenEnd,
		}),
		rapid.String(),
	).Draw(t, label)
}

func drawReport(t *rapid.T) *report {
	r := &report{
		fleet: hostile(t, "fleet"), branch: hostile(t, "branch"), base: hostile(t, "base"), head: hostile(t, "head"), node: hostile(t, "node"),
		at: time.Unix(1_700_000_000, 0), anyway: rapid.IntRange(0, 3).Draw(t, "anyway"), judged: rapid.Bool().Draw(t, "judged"),
	}
	r.commands, r.said = rapid.Bool().Draw(t, "commands"), drawMemory(t)
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

// drawMemory is what somebody may have written into our comment.
func drawMemory(t *rapid.T) memory {
	var m memory
	for range rapid.IntRange(0, 40).Draw(t, "commanded") {
		m.add(rapid.Int64Range(0, 1<<62).Draw(t, "id"), answer{
			At: rapid.Int64Range(0, 4e9).Draw(t, "when"), By: hostile(t, "by"), Command: strings.Repeat(hostile(t, "command"), 3),
			Result: rapid.SampledFrom([]result{planned, approved, foreseen, forbidden, unwritten, result(hostile(t, "result"))}).Draw(t, "became"),
			Plan:   hostile(t, "plan id"), May: hostile(t, "may"), Steps: rapid.Int().Draw(t, "n"), Later: rapid.Int().Draw(t, "later"),
		})
	}
	return m
}

// TestPropertyMemory: whatever is read, and whatever is added, it stays small, and what was answered stays answered.
func TestPropertyMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMemory(t)
		id := rapid.Int64Range(1, 100).Draw(t, "one")
		m.add(id, answer{Result: planned})
		for range rapid.IntRange(0, 40).Draw(t, "more") {
			m.add(rapid.Int64Range(1, 1000).Draw(t, "another"), answer{Result: forbidden})
		}
		hidden, shown := m.markdown(8 << 10)
		got := memoryOf("anything\n" + hidden + shown)
		if !got.answered(id) || len(got.Answered) > maxAnswered || len(got.Answers) > maxAnswers || len(hidden)+len(shown) > 8<<10 {
			t.Fatalf("of %+v there is %+v", m, got)
		}
		memoryOf(commandsBegin + rapid.String().Draw(t, "text") + hiddenEnd)
		written := base64.RawStdEncoding.EncodeToString([]byte(rapid.StringMatching(`\{"(through|answered|answers)":[-0-9\[\]{}"a-z:,]{0,40}\}`).Draw(t, "json")))
		other := memoryOf(commandsBegin + written + hiddenEnd)
		other.join(got)
		if !other.answered(id) {
			t.Fatalf("%+v has forgotten %d", other, id)
		}
	})
}

// TestPropertyCommands: only a whole first line is one, and what is told of it is harmless.
func TestPropertyCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.OneOf(rapid.String(), rapid.Just(address+hostile(t, "end")), rapid.Just(address+" "+hostile(t, "rest"))).Draw(t, "body")
		c, ok := commandIn(body)
		if ok != (strings.HasPrefix(body, address) && (len(body) == len(address) || strings.IndexFunc(body[len(address):], unicode.IsSpace) == 0)) {
			t.Fatalf("%q is a command: %t", body, ok)
		}
		if len(c.text) > maxCommand || strings.ContainsAny(c.text, "\x1b\r\n\u202e") || !utf8.ValidString(c.text) {
			t.Fatalf("of %q it is told %q", body, c.text)
		}
	})
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
		if got := memoryOf(body); r.said.answered(7) != got.answered(7) || len(got.Answers) > len(r.said.Answers) || !slices.Equal(got.Answered, r.said.Answered) {
			t.Fatalf("it remembers %+v and not %+v", got, r.said)
		}
		if status := r.status(); status.State == forges.Pending || len(status.Annotations) > maxAnnotations {
			t.Fatalf("%+v", status)
		}
		if closed, digest := closing(r.fleet, "was closed", lastSummary.FindString(body), &r.said, limit); !isOurs(closed, r.fleet) || digestOf(closed) != digest || len(closed) > limit {
			t.Fatalf("closing: %s", closed)
		}
	})
}
