#!/usr/bin/env bash
# Builds Gitea, the real forge of the tests, from its Go module into the folder that path.sh prints, once: the program and the
# files that it reads beside it, and its runner, on which the jobs of workflows run. A cold build takes some minutes on two cores
# and needs the Go module proxy; nothing is downloaded that is not checked against go.sum. The pages that a browser would see are
# not built: the tests use the API and git.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh

gitea=$(hack/gitea/path.sh)
if [ -e "$gitea/complete" ]; then
  touch "$gitea"
  say "gitea: ready in $gitea"
  exit 0
fi
[ -z "${GITVIRT_GITEA:-}" ] || die "GITVIRT_GITEA=$GITVIRT_GITEA holds no Gitea; unset it to have one built"
command -v go >/dev/null || die "Go is not in PATH: install the version go.mod asks for from https://go.dev/dl/"
version=$(basename "$gitea" | cut -d- -f2)

one_build_at_a_time gitea
if [ -e "$gitea/complete" ]; then
  say "gitea: ready in $gitea"
  exit 0
fi

say "gitea: building $version in $gitea"
work=$(mktemp -d "$GITVIRT_CACHE/.gitea.XXXXXX")
trap 'stop_progress; rm -rf "$work"' EXIT

download() {
  (cd hack/gitea && retry go mod download code.gitea.io/gitea && retry go list -deps tool >/dev/null) &&
    (cd hack/gitea/runner && retry go list -deps tool >/dev/null)
}

# SQLite is in C; the tags are Gitea's own for it. A build without optimisations takes three quarters of the time, and nobody debugs it.
# Go's own packages are as always: what else is built here has them too, and Gitea, which each push starts three times, compiles a
# thousand regular expressions first. A compiler that collects its garbage less often is a fifth faster. The runner is built in the same
# way, so that what both are made of is built once.
build_with() {
  CGO_ENABLED=1 GOFLAGS='' GOGC=400 nice -n 19 go build -trimpath -gcflags='all=-N -l -dwarf=false' -gcflags=std= -o "$work/" "$@" tool
}
build() {
  (cd hack/gitea && build_with -tags 'sqlite sqlite_unlock_notify' -ldflags "-s -w -X main.Version=${version#v} -X 'main.Tags=sqlite sqlite_unlock_notify'")
}
build_runner() { (cd hack/gitea/runner && build_with -ldflags '-s -w'); }

# What the program reads at run time; without the tag bindata it is not in it.
copy_files() {
  local module
  module=$(cd hack/gitea && go list -m -f '{{.Dir}}' code.gitea.io/gitea)
  cp -r "$module"/{templates,options,public} "$work/" && chmod -R u+w "$work"
}

progress "downloading Gitea's modules" download || die "cannot download the modules; is the Go module proxy ($(go env GOPROXY)) within reach?"
progress "building Gitea (once)" build || die "Gitea $version does not build: see above"
progress "building its runner (once)" build_runner || die "Gitea's runner does not build: see above"
progress "copying its files" copy_files
touch "$work/complete"
rm -rf "$gitea"
mv "$work" "$gitea"

# Those of branches long gone would pile up; one that is used is touched above.
find "$GITVIRT_CACHE" -maxdepth 1 -name 'gitea-*' -type d -mtime +30 -exec rm -rf {} +
say "gitea: built"
