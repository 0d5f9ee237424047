#!/usr/bin/env bash
# Prints the folder that holds Gitea and its runner: GITVIRT_GITEA if that is set, else one in the cache for each content of their
# go.mod, go.sum and build.sh, so that branches which want different versions do not fight. build.sh fills it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"

if [ -n "${GITVIRT_GITEA:-}" ]; then
  say "$GITVIRT_GITEA"
  exit 0
fi
source=$(cd "$(dirname "$0")" && pwd)
version=$(sed -n 's|^require code.gitea.io/gitea \(v[0-9.]*\).*|\1|p; s|^\tcode.gitea.io/gitea \(v[0-9.]*\).*|\1|p' "$source/go.mod")
[ -n "$version" ] || die "$source/go.mod names no version of code.gitea.io/gitea"
say "$GITVIRT_CACHE/gitea-$version-$(cat "$source"/{,runner/}go.{mod,sum} "$source"/build.sh | sha256sum | cut -c1-12)"
