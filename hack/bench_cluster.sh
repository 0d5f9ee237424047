#!/usr/bin/env bash
# Measures how guests start on the cluster that `make cluster` has started: bench_cluster.sh IMAGES LAUNCHER.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh
images=$1
export GITVIRT_E2E_LAUNCHER=$2 GITVIRT_CLUSTER=${GITVIRT_CLUSTER:-/var/lib/gitvirt-cluster}
[ -e "$GITVIRT_CLUSTER/kubeconfig" ] || die "no cluster runs here: run make cluster first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
hack/guest/image.sh "$work/guest.tar"
hack/cluster/cluster.sh load "$images/gitvirt-launcher.tar" "$work/guest.tar"

GITVIRT_KUBECTL=$(hack/cluster/path.sh)/kubectl
export GITVIRT_KUBECTL
measure() { go test -tags e2e -run '^$' -timeout 20m -bench "$1" -benchtime "$2" ./e2e; }
measure '^BenchmarkStart$/^alone$' 20x
measure '^BenchmarkStart$/^five$' 4x
measure '^BenchmarkWrites$' 1x
