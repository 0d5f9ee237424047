#!/usr/bin/env bash
# Measures the controller with thousands of VMs: run.sh [ARGUMENTS of the command scale]. bin/gitvirt has to be there.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh
command -v etcd >/dev/null || die "etcd is not installed; make setup installs it"
hack/cluster/build.sh
hack/scale/build.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/scale" ./hack/scale
"$work/scale" -kubernetes "$(hack/cluster/path.sh)" -kwok "$(hack/scale/path.sh)" "$@"
