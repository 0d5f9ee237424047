package plan_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/plan"
)

func TestMarkdown(t *testing.T) {
	golden(t, "story.md", story(t).Markdown(plan.MarkdownOptions{Node: "host-1"}))
}

// wellFormed reads what Markdown wrote line by line: every tag that it opens it closes, every fence ends, and nothing that
// comes from elsewhere stands outside of a fence, of <code> in a title, or of a span of code.
func wellFormed(t *rapid.T, text string) {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if !strings.HasPrefix(lines[0], "Plan: ") {
		t.Fatalf("the summary is not first:\n%s", text)
	}
	title := regexp.MustCompile("^<summary>([^<>`@]|<code>[^<>`]*</code>)*</summary>$")
	sentence := regexp.MustCompile("^([^<>@`]|`[^`]+`)*$")
	fence, open := "", false
	for i, line := range lines {
		switch {
		case fence != "":
			if strings.TrimRight(line, " ") == fence {
				fence = ""
			} else if trimmed := strings.TrimLeft(line, " "); strings.HasPrefix(trimmed, fence) && strings.Trim(trimmed, "` ") == "" {
				t.Fatalf("line %d ends the fence:\n%s", i+1, text)
			}
		case strings.HasPrefix(line, "```"):
			fence = line[:len(line)-len(strings.TrimLeft(line, "`"))]
		case line == "<details>":
			if open {
				t.Fatalf("line %d: a block in a block:\n%s", i+1, text)
			}
			open = true
		case line == "</details>":
			if !open {
				t.Fatalf("line %d ends no block:\n%s", i+1, text)
			}
			open = false
		case strings.HasPrefix(line, "<summary>"):
			if !open || !title.MatchString(line) {
				t.Fatalf("line %d: %s", i+1, line)
			}
		default:
			if !sentence.MatchString(line) {
				t.Fatalf("line %d: %s", i+1, line)
			}
		}
	}
	if fence != "" || open {
		t.Fatalf("something is not closed:\n%s", text)
	}
}

func TestPropertyMarkdown(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawnPlan(rt)
		budget := rapid.SampledFrom([]int{0, plan.MinMarkdown, 600, 700, 1000, 2000, 5000, 65536}).Draw(rt, "budget")
		text := p.Markdown(plan.MarkdownOptions{Budget: budget, Node: hostile(rt, "node")})
		if budget > 0 && len(text) > budget {
			rt.Errorf("%d bytes, want at most %d", len(text), budget)
		}
		if !utf8.ValidString(text) {
			rt.Error("it is not UTF-8")
		}
		if strings.ContainsAny(text, "\x1b\r\x00\u202e\u2028") {
			rt.Errorf("control characters are in\n%q", text)
		}
		wellFormed(rt, text)
	})
}

// TestMarkdownKeepsTheMostSevere: what is cut is what matters least, and it is said how much.
func TestMarkdownKeepsTheMostSevere(t *testing.T) {
	text := story(t).Markdown(plan.MarkdownOptions{Budget: 1300})
	if first := strings.Index(text, "<details>"); !strings.Contains(text[first:first+120], "default/gone") {
		t.Errorf("the destroyed one is not first:\n%s", text)
	}
	if !strings.Contains(text, "left out") || strings.Contains(text, "default/new") || len(text) > 1300 {
		t.Errorf("%d bytes:\n%s", len(text), text)
	}
}
