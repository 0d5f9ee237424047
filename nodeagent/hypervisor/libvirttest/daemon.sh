#!/bin/sh
# Runs a libvirtd of its own for a test: `unshare -m sh daemon.sh DIR`, with commands on its standard input.
#
# The mount namespace puts DIR's folders over the ones that libvirt has compiled in, so that this daemon is a real
# qemu:///system and yet sees, locks and writes nothing of the host's. The end of the input, however the test ended, ends
# the daemon and its guests. tini adopts what they leave behind: libvirt waits until dead processes are reaped.
set -eu
dir=$1

if [ "${2:-}" != inside ]; then
	mount --make-rprivate /
	for pair in etc:/etc/libvirt lib:/var/lib/libvirt run:/run/libvirt cache:/var/cache/libvirt log:/var/log/libvirt; do
		target=${pair#*:}
		mkdir -p "$dir/${pair%%:*}" "$target"
		mount --bind "$dir/${pair%%:*}" "$target"
	done
	exec tini -s -- sh "$0" "$dir" inside
fi

while read -r command; do
	case $command in
	start) libvirtd -f /etc/libvirt/libvirtd.conf -p "$dir/libvirtd.pid" </dev/null >>"$dir/log/libvirtd.log" 2>&1 & ;;
	esac
done

for file in "$dir/libvirtd.pid" "$dir"/run/qemu/*.pid "$dir"/run/network/*.pid "$dir"/run/libvirt/network/*.pid; do
	[ -s "$file" ] || continue
	[ "${file##*/}" != driver.pid ] || continue # libvirtd's own
	kill -9 "$(cat "$file")" 2>/dev/null || true
done
rm -rf "$dir" # the test does this too, unless it was killed
