#!/usr/bin/env bash
# Makes the images of the cluster, once: pause, which holds a Pod's namespaces, and busybox for tests: images.sh PROGRAMS OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh
programs=$1 out=$2
[ ! -e "$out/complete" ] || exit 0

work=$(mktemp -d "$GITVIRT_CACHE/.cluster-images.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

mkdir -p "$work"/busybox/{bin,etc,tmp,proc,sys,dev}
for applet in $(/bin/busybox --list); do
  if [ "$applet" != busybox ]; then ln -s busybox "$work/busybox/bin/$applet"; fi
done
chmod 1777 "$work/busybox/tmp"
printf '%s\n' root:x:0:0:root:/:/bin/sh qemu:x:107:107:qemu:/:/bin/sh >"$work/busybox/etc/passwd"
printf '%s\n' root:x:0: qemu:x:107: >"$work/busybox/etc/group"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$work/busybox" -cf "$work/busybox.layer" .

CGO_ENABLED=0 go build -trimpath -gcflags=all=-dwarf=false -o "$work/ociimage" ./hack/ociimage
"$work/ociimage" -name gitvirt.test/pause:1 -user 65535:65535 -file "/pause=$programs/pause" -out "$work/pause.tar"
"$work/ociimage" -name gitvirt.test/busybox:1 -user 0:0 -base "$work/busybox.layer" -file /bin/busybox=/bin/busybox -out "$work/busybox.tar"
rm -rf "$work"/{busybox,busybox.layer,ociimage}
touch "$work/complete"
rm -rf "$out"
mv "$work" "$out"
