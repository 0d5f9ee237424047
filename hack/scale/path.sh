#!/usr/bin/env bash
# Prints where kwok is: one for each content of its go.mod and go.sum.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"

source=$(cd "$(dirname "$0")/kwok" && pwd)
version=$(sed -n 's|.*sigs.k8s.io/kwok \(v[0-9.]*\).*|\1|p' "$source/go.mod")
[ -n "$version" ] || die "$source/go.mod names no version of sigs.k8s.io/kwok"
say "$GITVIRT_CACHE/kwok-$version-$(cat "$source"/go.{mod,sum} | sha256sum | cut -c1-12)"
