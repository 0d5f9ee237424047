#!/usr/bin/env bash
# Builds the programs of Kubernetes and containerd from Go modules into the folder that path.sh prints, once. A cold build
# takes about ten minutes on two cores and needs the Go module proxy; nothing is downloaded that is not checked against
# go.sum. containerd is a module of its own: the two want different versions of what they share.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh

programs=$(hack/cluster/path.sh)
version=$(basename "$programs" | cut -d- -f2)
if [ -e "$programs/complete" ]; then
  say "cluster: Kubernetes $version is ready in $programs"
  exit 0
fi
command -v go >/dev/null || die "Go is not in PATH: install the version go.mod asks for from https://go.dev/dl/"

mkdir -p "$GITVIRT_CACHE"
exec 9>"$GITVIRT_CACHE/kubernetes.lock"
flock -n 9 || {
  say "cluster: waiting for another build"
  flock 9
}
if [ -e "$programs/complete" ]; then
  say "cluster: Kubernetes $version is ready in $programs"
  exit 0
fi

say "cluster: building Kubernetes $version in $programs"
work=$(mktemp -d "$GITVIRT_CACHE/.kubernetes.XXXXXX")
trap 'stop_progress; rm -rf "$work"' EXIT
chmod 755 "$work"

download() { (cd "$1" && retry go mod download); }

# Nobody debugs them, and a compiler that writes nothing for debuggers and collects its garbage less often takes two thirds of the time.
# kubectl and the API server compare their versions, which a build that is not from git does not know.
build_kubernetes() {
  local package=k8s.io/component-base/version
  (cd hack/cluster && CGO_ENABLED=0 GOFLAGS='' GOGC=400 nice -n 10 go build -trimpath -gcflags=all=-dwarf=false -o "$work/" \
    -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$(cut -d. -f2 <<<"$version") -X $package.gitTreeState=clean" tool)
}

build_containerd() {
  (cd hack/cluster/containerd && CGO_ENABLED=0 GOFLAGS='' GOGC=400 nice -n 10 go build -trimpath -gcflags=all=-dwarf=false -o "$work/" -ldflags "-s -w" tool)
}

# The process that holds a Pod's namespaces is Kubernetes' own: seventy lines of C, which the module carries.
build_pause() {
  local source
  source=$(cd hack/cluster && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
  gcc -Os -Wall -static -s -DVERSION="$version" -o "$work/pause" "$source"
}

unreachable="cannot download the modules; is the Go module proxy ($(go env GOPROXY)) within reach?"
progress "downloading Kubernetes' modules" download hack/cluster || die "$unreachable"
progress "downloading containerd's modules" download hack/cluster/containerd || die "$unreachable"
progress "building containerd (once)" build_containerd || die "containerd does not build: see above"
progress "building Kubernetes (once)" build_kubernetes || die "Kubernetes $version does not build: see above"
progress "building pause" build_pause || die "pause does not build: see above; make setup installs gcc"
touch "$work/complete"
rm -rf "$programs"
mv "$work" "$programs"
say "cluster: Kubernetes $version is ready in $programs"
