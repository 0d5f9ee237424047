#!/usr/bin/env bash
# Prints the folder that holds the programs of Kubernetes and containerd: one for each content of their go.mod and go.sum,
# so that branches which want different versions do not fight.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"

source=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's|^\tk8s.io/kubernetes \(v[0-9.]*\).*|\1|p' "$source/go.mod")
[ -n "$version" ] || die "$source/go.mod names no version of k8s.io/kubernetes"
say "$GITVIRT_CACHE/kubernetes-$version-$(cat "$source"/{,containerd/}go.{mod,sum} "$source"/build.sh | sha256sum | cut -c1-12)"
