#!/usr/bin/env bash
# Builds kwok from its Go module into the file that path.sh prints, once. It is a module of its own: it wants other versions than gitvirt of
# what they share.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh

kwok=$(hack/scale/path.sh)
if [ -x "$kwok" ]; then exit 0; fi
one_build_at_a_time kwok
if [ -x "$kwok" ]; then exit 0; fi
trap 'stop_progress; rm -f "$kwok.new"' EXIT

download() { (cd hack/scale/kwok && retry go mod download); }
build() { (cd hack/scale/kwok && CGO_ENABLED=0 GOFLAGS='' nice -n 10 go build -trimpath -gcflags=all=-dwarf=false -o "$kwok.new" -ldflags "-s -w" sigs.k8s.io/kwok/cmd/kwok); }
progress "downloading kwok's modules" download || die "cannot download the modules; is the Go module proxy ($(go env GOPROXY)) within reach?"
progress "building kwok (once)" build || die "kwok does not build: see above"
mv "$kwok.new" "$kwok"
