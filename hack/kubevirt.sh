#!/usr/bin/env bash
# Runs KubeVirt's own converter, admission and benchmark (hack/kubevirt): hack/kubevirt.sh convert OUT FILE... The program
# is built once into the cache; a cold build takes about three minutes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

source=$(cd "$(dirname "$0")/kubevirt" && pwd)
program=$GITVIRT_CACHE/bin/kubevirt-$(cat "$source"/go.mod "$source"/go.sum "$source"/*.go "$source"/*.s | sha256sum | cut -c1-12)
if [ ! -x "$program" ]; then
  mkdir -p "$GITVIRT_CACHE/bin"
  (cd "$source" && progress "building KubeVirt's converter (once)" go build -o "$program.new" .) >&2
  mv "$program.new" "$program"
fi
exec "$program" "$@"
