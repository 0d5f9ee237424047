#!/usr/bin/env bash
# All static checks: the Go linters of .golangci.yml, the shell scripts, go.mod and generated code.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

# What is compiled here, make build does not compile again: it must be compiled the same way.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath -gcflags=all=-dwarf=false" GOGC=400 GOMEMLIMIT=8GiB

# The scripts that a shell runs, by name or by their first line.
mapfile -t scripts < <(git ls-files -co --exclude-standard -- .ci hack examples | xargs -r grep -lIE '^#!.*\b(ba)?sh\b')
shell_scripts() { shellcheck -x "${scripts[@]}"; }
go_mod() { go mod verify && go mod tidy -diff; }
# What is large and can be made again does not belong into a repository: every clone pays for it, for ever.
large=512 # KiB
small_files() {
  local found
  found=$(git ls-files -z | xargs -0 -r stat -c '%s %n' 2>/dev/null | awk -v limit=$((large * 1024)) '$1 > limit { print "  " $2 ": " $1 " bytes" }')
  if [ -n "$found" ]; then
    warn "files of more than $large KiB; let a script make them, or keep them outside:"
    warn "$found"
    return 1
  fi
}

# The workflow files that people copy; actionlint has shellcheck look at their steps.
workflows() { "$actionlint" examples/ci/actions.yaml; }

linter=$(golangci_lint)
actionlint=$(go_tool actionlint github.com/rhysd/actionlint/cmd/actionlint "$ACTIONLINT_VERSION")
# Nothing here takes minutes; what asks a network that does not answer would wait for ever.
progress_limit=300
progress "shellcheck" shell_scripts
progress "workflow files" workflows
progress "files are small" small_files
progress "go.mod is tidy" go_mod
progress "generated code is fresh" hack/generate.sh check
timeout 60 "$linter" config verify
# golangci-lint remembers findings with the path of the tree they were found in, and reports them in another tree of the
# same content, where no nolint and no exclusion by path fits them: each tree has a memory of its own.
tree=$(pwd -P | sha256sum | cut -c1-12)
export GOLANGCI_LINT_CACHE=$GITVIRT_CACHE/lint/$tree
start=$(now)
# Each tree has its own memory, so that the runs of two need not wait for each other.
timeout 1200 "$linter" run --allow-parallel-runners ./...
say "  golangci-lint: $(seconds_since "$start")"
