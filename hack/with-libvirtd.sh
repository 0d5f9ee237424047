#!/usr/bin/env bash
# Runs a command next to a libvirt of its own: hack/with-libvirtd.sh go test ./...
#
# The daemon and its QEMU processes live in a mount namespace in which /etc/libvirt, /run/libvirt, /var/lib/libvirt,
# /var/log/libvirt and /var/cache/libvirt are folders of a scratch folder. So it sees none of the host's domains, and
# nothing of it is left afterwards. The command finds it by GITVIRT_TEST_LIBVIRT_URI and may restart it: it runs
# "$GITVIRT_TEST_LIBVIRTD stop" and "$GITVIRT_TEST_LIBVIRTD start".
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
. hack/lib.sh

need_root "running libvirtd"
[ $# -gt 0 ] || die "usage: hack/with-libvirtd.sh COMMAND..."

scratch=$(mktemp -d /tmp/gitvirt-libvirt.XXXXXX)
chmod 711 "$scratch"
export GITVIRT_SCRATCH=$scratch
export GITVIRT_TEST_LIBVIRTD="$root/hack/libvirtd.sh"
export GITVIRT_TEST_LIBVIRT_URI="qemu+unix:///system?socket=$scratch/run/libvirt-sock"
command_pid=

# shellcheck disable=SC2317 # the trap calls it
cleanup() {
  local status=$?
  trap - EXIT INT TERM
  if [ -n "$command_pid" ] && kill "$command_pid" 2>/dev/null; then wait "$command_pid" || true; fi
  "$GITVIRT_TEST_LIBVIRTD" remove || status=1
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$GITVIRT_TEST_LIBVIRTD" start
# In the background, so that a signal for this script is handled at once.
(cd "$OLDPWD" && exec "$@") <&0 &
command_pid=$!
status=0
wait "$command_pid" || status=$?
command_pid=
exit "$status"
