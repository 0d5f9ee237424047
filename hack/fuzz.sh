#!/usr/bin/env bash
# Runs every fuzz test for a while: hack/fuzz.sh 30s. Go can fuzz one at a time only.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

time=${1:-30s}
found=
while IFS=: read -r file _ line; do
  name=${line#func }
  name=${name%%(*}
  found=1
  say "fuzzing $name in ${file%/*} for $time"
  # Without a bound Go spends the whole time on making the first interesting input smaller, when it is of some size.
  go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 20x "./${file%/*}"
done < <(git grep -nE --untracked '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go')
[ -n "$found" ] || say "there are no fuzz tests"
