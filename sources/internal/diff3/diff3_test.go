package diff3_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/sources/internal/diff3"
)

func TestMerge(t *testing.T) {
	tests := []struct {
		name, reason       string
		base, ours, theirs string
		want               string
		conflict           bool
	}{
		{"both", "changes apart go together", "a\nb\nc\nd\n", "A\nb\nc\nd\n", "a\nb\nc\nD\n", "A\nb\nc\nD\n", false},
		{"same", "the same change twice is one", "a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\n", "a\nB\nc\n", false},
		{"same and more", "the same change beside another", "a\nb\nc\nd\n", "a\nB\nc\nd\n", "a\nB\nc\nD\n", "a\nB\nc\nD\n", false},
		{"overlap", "one line, two values", "a\nb\nc\n", "a\nB\nc\n", "a\nX\nc\n", "", true},
		{"touching", "git wants a line between two changes", "a\nb\nc\n", "A\nb\nc\n", "a\nB\nc\n", "", true},
		{"two insertions", "nobody knows which comes first", "a\nb\n", "a\nx\nb\n", "a\ny\nb\n", "", true},
		{"no newline at the end", "it stays missing", "a\nb\nc", "A\nb\nc", "a\nb\nC", "A\nb\nC", false},
		{"newline added at the end", "the last line is another one then", "a\nb\nc", "A\nb\nc", "a\nb\nc\n", "A\nb\nc\n", false},
		{"line endings", "they are part of the line", "a\r\nb\r\nc\r\n", "A\r\nb\r\nc\r\n", "a\r\nb\r\nC\r\n", "A\r\nb\r\nC\r\n", false},
		{"line endings changed", "a changed ending is a change", "a\nb\nc\n", "a\r\nb\r\nc\r\n", "a\nb\nC\n", "", true},
		{"emptied", "all lines removed, one changed", "a\nb\n", "", "a\nB\n", "", true},
		{"from nothing", "two new files", "", "a\n", "b\n", "", true},
		{"binary", "a zero byte makes it one", "a\x00\nb\nc\nd\n", "A\x00\nb\nc\nd\n", "a\x00\nb\nc\nD\n", "", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, sides := range [][2]string{{tt.ours, tt.theirs}, {tt.theirs, tt.ours}} {
				got, clean := diff3.Merge([]byte(tt.base), []byte(sides[0]), []byte(sides[1]))
				if clean == tt.conflict || string(got) != tt.want {
					t.Errorf("%s: got %q, clean %v; want %q, clean %v", tt.reason, got, clean, tt.want, !tt.conflict)
				}
			}
		})
	}
}

// TestLikeGit holds Merge against git merge-file. Whatever both call clean is the same text, and what one of them calls a conflict the
// other does as well: lines are drawn so that most of them occur several times, as in manifests.
func TestLikeGit(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		base := drawLines(t, "base")
		ours, theirs := edit(t, base, "ours"), edit(t, base, "theirs")
		want, clean := mergeFile(t, dir, base, ours, theirs)
		got, ok := diff3.Merge(base, ours, theirs)
		if ok != clean {
			t.Fatalf("clean is %v, git says %v\nbase %q\nours %q\ntheirs %q", ok, clean, base, ours, theirs)
		}
		if clean && !bytes.Equal(got, want) {
			t.Fatalf("got %q\ngit %q\nbase %q\nours %q\ntheirs %q", got, want, base, ours, theirs)
		}
	})
}

// TestProperties holds for every text, also for those of which git may think otherwise.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.SliceOfN(rapid.SampledFrom([]byte("ab\n\r")), 0, 40)
		base, ours, theirs := alphabet.Draw(t, "base"), alphabet.Draw(t, "ours"), alphabet.Draw(t, "theirs")
		one, clean := diff3.Merge(base, ours, theirs)
		other, same := diff3.Merge(base, theirs, ours)
		if clean != same || !bytes.Equal(one, other) {
			t.Fatalf("the sides are not alike: %q, %v and %q, %v", one, clean, other, same)
		}
		if got, ok := diff3.Merge(base, ours, base); !ok || !bytes.Equal(got, ours) {
			t.Fatalf("with an unchanged side: %q, %v", got, ok)
		}
	})
}

func drawLines(t *rapid.T, label string) []byte {
	lines := rapid.SliceOfN(rapid.SampledFrom(vocabulary()), 0, 30).Draw(t, label)
	for i := range lines { // as in a manifest, most lines differ and some are everywhere
		if rapid.IntRange(0, 3).Draw(t, "common") > 0 {
			lines[i] = fmt.Sprintf("%s %d\n", strings.TrimSuffix(lines[i], "\n"), i)
		}
	}
	text := strings.Join(lines, "")
	if rapid.Bool().Draw(t, "no newline at the end") {
		text = strings.TrimSuffix(text, "\n")
	}
	return []byte(text)
}

func vocabulary() []string { return []string{"spec:\n", "  domain:\n", "- name: x\n", "\n", "}\r\n"} }

// edit removes, adds and replaces a few lines.
func edit(t *rapid.T, base []byte, label string) []byte {
	lines := slices.Collect(strings.Lines(string(base)))
	for i := range rapid.IntRange(0, 3).Draw(t, label+" edits") {
		at := rapid.IntRange(0, len(lines)).Draw(t, label+" at")
		fresh := fmt.Sprintf("%s %d\n", rapid.SampledFrom([]string{"new", "other"}).Draw(t, label+" word"), i)
		switch {
		case rapid.Bool().Draw(t, label+" adds") || at == len(lines):
			lines = slices.Insert(lines, at, fresh)
		case rapid.Bool().Draw(t, label+" removes"):
			lines = slices.Delete(lines, at, min(at+rapid.IntRange(1, 3).Draw(t, label+" count"), len(lines)))
		default:
			lines[at] = fresh
		}
	}
	return []byte(strings.Join(lines, ""))
}

func mergeFile(t *rapid.T, dir string, base, ours, theirs []byte) ([]byte, bool) {
	for name, content := range map[string][]byte{"base": base, "ours": ours, "theirs": theirs} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("git", "merge-file", "-p", "-q", filepath.Join(dir, "ours"), filepath.Join(dir, "base"), filepath.Join(dir, "theirs")).Output()
	return out, err == nil
}
