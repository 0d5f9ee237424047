#!/usr/bin/env bash
# Writes the files of sources/sops/testdata anew with SOPS' own library (hack/sops), for keys that are made for it. The program
# is built once into the cache; a cold build takes some minutes.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"

cd "$(dirname "$0")/.."
program=$GITVIRT_CACHE/bin/sops-$(cat hack/sops/go.mod hack/sops/go.sum hack/sops/*.go | sha256sum | cut -c1-12)
if [ ! -x "$program" ]; then
  mkdir -p "$GITVIRT_CACHE/bin"
  (cd hack/sops && progress "building SOPS' library (once)" go build -o "$program.new" .) >&2
  mv "$program.new" "$program"
fi

data=sources/sops/testdata
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME"' EXIT
gpg --quiet --batch --passphrase '' --quick-generate-key 'Test <test@example.org>' rsa2048 encrypt never
gpg --quiet --batch --armor --export-secret-keys test@example.org >"$data/pgp.asc"
go run filippo.io/age/cmd/age-keygen >"$data/age.txt" 2>/dev/null
age=age=$(sed -n 's/^# public key: //p' "$data/age.txt")
pgp=pgp=$(gpg --list-keys --with-colons | awk -F: '/^fpr/ { print $10; exit }')
regex='regex=^(data|stringData)$'

"$program" yaml "$data/plain/secret.yaml" "$age" "$pgp" "$regex" >"$data/secret.yaml"
"$program" yaml "$data/plain/secret.yaml" "$pgp" "$regex" >"$data/pgp.yaml"
"$program" yaml "$data/plain/secret.yaml" "$age" "$regex" mac-only >"$data/mac-only.yaml"
"$program" yaml "$data/plain/secret.yaml" "$age" >"$data/all.yaml"
"$program" yaml "$data/plain/several.yaml" "$age" "$regex" >"$data/several.yaml"
"$program" yaml "$data/plain/machine.yaml" "$age" 'regex=^userData$' >"$data/machine.yaml"
"$program" yaml "$data/plain/machine.yaml" "$age" 'regex=^guest$' >"$data/shown.yaml"
"$program" json "$data/plain/secret.json" "$age" "$regex" >"$data/secret.json"
