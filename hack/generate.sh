#!/usr/bin/env bash
# Generates the Go code of nodeagent/api/*.proto, docs/support.md, docs/consequences.md, the JSON Schemas in docs/schemas and what is in deploy. With "check" it
# changes nothing and fails when one of them is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

protoc_gen_go=$(go_tool protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go "$PROTOC_GEN_GO_VERSION")
protoc_gen_go_grpc=$(go_tool protoc-gen-go-grpc google.golang.org/grpc/cmd/protoc-gen-go-grpc "$PROTOC_GEN_GO_GRPC_VERSION")

# generate FOLDER writes the code below a folder.
generate() {
  protoc --plugin=protoc-gen-go="$protoc_gen_go" --plugin=protoc-gen-go-grpc="$protoc_gen_go_grpc" \
    --go_out="$1" --go_opt=paths=source_relative --go-grpc_out="$1" --go-grpc_opt=paths=source_relative \
    nodeagent/api/*.proto
  CGO_ENABLED=0 go run ./hack/gendocs "$1"
  CGO_ENABLED=0 go run ./hack/gendeploy "$1"
}

# published are the generated documents, without the folder that they are in.
published() { (cd "$1" && find docs/support.md docs/consequences.md docs/schemas deploy -type f | sort); }

case ${1:-} in
'')
  rm -rf docs/schemas deploy # what is gone leaves no file
  generate .
  ;;
check)
  fresh=$(mktemp -d)
  trap 'rm -rf "$fresh"' EXIT
  generate "$fresh"
  for file in "$fresh"/nodeagent/api/*.go; do
    # The version of protoc, in a comment, may differ between machines.
    diff -u -I '^// .*protoc  *v' "nodeagent/api/${file##*/}" "$file" || die "generated code is stale: run make generate"
  done
  diff <(published .) <(published "$fresh") >&2 || die "docs/schemas or deploy has other files than it should: run make generate"
  while read -r file; do
    cmp -s "$file" "$fresh/$file" || die "$file is stale: run make generate"
  done < <(published "$fresh")
  ;;
*) die "usage: hack/generate.sh [check]" ;;
esac
