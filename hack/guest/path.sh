#!/usr/bin/env bash
# Prints the folder of the test guest: GITVIRT_GUEST if that is set, else one in the cache that is named after
# everything the guest is made from, so that a change of any of it makes a new guest. build.sh fills it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh

if [ -n "${GITVIRT_GUEST:-}" ]; then
  say "$GITVIRT_GUEST"
  exit 0
fi
hash=$(cat hack/guest/{build.sh,init,watch,console,udhcpc.sh} hack/ociimage/{main,image}.go | sha256sum | cut -c1-12)
say "$GITVIRT_CACHE/guest-$hash"
