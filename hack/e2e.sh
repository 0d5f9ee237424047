#!/usr/bin/env bash
# Runs the tests that need a real cluster on one of its own with two nodes, which is removed afterwards unless KEEP=1: e2e.sh
# IMAGES VERSION [ARGUMENTS of go test].
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
export GITVIRT_E2E_LAUNCHER=$2 GITVIRT_CLUSTER=${GITVIRT_CLUSTER:-/var/lib/gitvirt-cluster} GITVIRT_CLUSTER_NODES=2
images=$1
shift 2

work=$(mktemp -d)
cleanup() {
  rm -rf "$work"
  if [ -z "${KEEP:-}" ]; then hack/cluster/cluster.sh down; fi
}
trap cleanup EXIT

hack/guest/image.sh "$work/guest.tar"
hack/cluster/cluster.sh up
hack/cluster/cluster.sh load "$images/gitvirt-launcher.tar" "$work/guest.tar"
GITVIRT_KUBECTL=$(hack/cluster/path.sh)/kubectl go test -toolexec "env GOGC=400" -trimpath -gcflags=all=-dwarf=false -vet=off -tags e2e,netgo,osusergo -count=1 -timeout 20m "$@" ./e2e
