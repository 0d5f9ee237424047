#!/usr/bin/env bash
# All static checks: the Go linters of .golangci.yml, the shell scripts, go.mod and generated code.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

# The scripts that a shell runs, by name or by their first line.
mapfile -t scripts < <(git ls-files -co --exclude-standard -- .ci hack | xargs -r grep -lIE '^#!.*\b(ba)?sh\b')
shell_scripts() { shellcheck -x "${scripts[@]}"; }
go_mod() { go mod verify && go mod tidy -diff; }

linter=$(golangci_lint)
progress "shellcheck" shell_scripts
progress "go.mod is tidy" go_mod
progress "generated code is fresh" hack/generate.sh check
"$linter" config verify
start=$(now)
"$linter" run ./...
say "  golangci-lint: $(seconds_since "$start")"
