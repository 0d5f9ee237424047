#!/usr/bin/env bash
# Starts, stops and removes the scratch libvirt of with-libvirtd.sh, which says what that is. Not for use by hand.
#
#   start   starts the daemons and waits until they answer; guests that run are found again
#   stop    stops libvirtd; guests go on running, as with any restart of libvirtd
#   remove  stops everything, guests included, and deletes the scratch folder
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

scratch=${GITVIRT_SCRATCH:?run me through hack/with-libvirtd.sh}
uri="qemu+unix:///system?socket=$scratch/run/libvirt-sock"

# alive PIDFILE reports whether the process runs that PIDFILE names.
alive() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
gone() { ! alive "$1"; }
answers() { virsh -q -c "$uri" version >/dev/null 2>&1; }

# virtlogd_isolated is what unshare runs: it sets the new mount namespace up and becomes virtlogd, which holds it open.
virtlogd_isolated() {
  local name
  mount --make-rprivate /
  for name in etc run var/lib var/log var/cache; do
    mkdir -p "/$name/libvirt"
    mount --bind "$scratch/${name##*/}" "/$name/libvirt"
  done
  # With a /dev/kvm that QEMU's user may not open, libvirt probes QEMU anew at every call.
  if [ -c "$scratch/kvm" ]; then mount --bind "$scratch/kvm" /dev/kvm; fi
  exec tini -s -- virtlogd --pid-file "$scratch/virtlogd.pid"
}

prepare() {
  local name
  for name in etc run lib log cache; do mkdir -p "$scratch/$name"; done
  # What a fresh installation has, but no networks, storage pools or guests of the host.
  mkdir -p "$scratch/etc/qemu"
  if [ -f /etc/libvirt/qemu.conf ]; then cp /etc/libvirt/qemu.conf "$scratch/etc/"; fi
  printf '%s\n' 'unix_sock_rw_perms = "0700"' 'auth_unix_rw = "none"' >"$scratch/etc/libvirtd.conf"
  if [ -c /dev/kvm ]; then mknod -m 666 "$scratch/kvm" c 10 232 2>/dev/null || true; fi
}

start() {
  if [ ! -d "$scratch/etc" ]; then prepare; fi
  if ! alive "$scratch/virtlogd.pid"; then
    setsid unshare -m hack/libvirtd.sh virtlogd-isolated >>"$scratch/virtlogd.out" 2>&1 </dev/null &
    wait_for 10 alive "$scratch/virtlogd.pid" || fail virtlogd
  fi
  if ! alive "$scratch/libvirtd.pid"; then
    setsid nsenter -m -t "$(cat "$scratch/virtlogd.pid")" \
      tini -s -- libvirtd --pid-file "$scratch/libvirtd.pid" >>"$scratch/libvirtd.out" 2>&1 </dev/null &
  fi
  wait_for 30 answers || fail libvirtd
}

fail() {
  tail -n 20 "$scratch/$1.out" >&2 || true
  die "the scratch $1 does not start"
}

# end PIDFILE stops the process that PIDFILE names, the hard way after ten seconds.
end() {
  if gone "$1"; then return 0; fi
  kill "$(cat "$1")" 2>/dev/null || true
  if ! wait_for 10 gone "$1"; then
    kill -9 "$(cat "$1")" 2>/dev/null || true
    wait_for 5 gone "$1" || die "process $(cat "$1") does not end"
  fi
}

remove() {
  local domain pid
  if answers; then
    virsh -q -c "$uri" list --name | while read -r domain; do
      if [ -n "$domain" ]; then virsh -q -c "$uri" destroy "$domain" || true; fi
    done
  fi
  end "$scratch/libvirtd.pid"
  # Guests that libvirtd could not be asked to stop.
  for pid in "$scratch"/run/qemu/*.pid; do end "$pid"; done
  end "$scratch/virtlogd.pid"
  rm -rf --one-file-system "$scratch"
}

case ${1:-} in
start) start ;;
virtlogd-isolated) virtlogd_isolated ;;
stop) end "$scratch/libvirtd.pid" ;;
remove) remove ;;
*) die "usage: hack/libvirtd.sh start|stop|remove" ;;
esac
