package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocsShowRealOutput runs the commands of docs/cli.md that need nothing, and compares what they print.
func TestDocsShowRealOutput(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for i, block := range strings.Split(string(page), "```console\n") {
		block, _, _ = strings.Cut(block, "```")
		if i == 0 {
			continue // what is before the first block
		}
		for _, shown := range strings.Split("\n"+block, "\n$ ")[1:] {
			line, want, _ := strings.Cut(shown, "\n")
			args := strings.Fields(line)
			if len(args) < 2 || args[0] != "gitvirt" || strings.ContainsAny(line, "|<>") {
				continue
			}
			switch args[1] {
			case "explain", "schema", "create":
			default:
				continue
			}
			ran++
			var out bytes.Buffer
			run(t.Context(), args[1:], strings.NewReader(""), &out, &out, func(string) string { return "" })
			if strings.TrimRight(out.String(), "\n") != strings.TrimRight(want, "\n") {
				t.Errorf("%s: the page shows\n%s\nit is\n%s", line, want, out.String())
			}
		}
	}
	if ran < 4 {
		t.Errorf("only %d commands found", ran)
	}
}
