#!/usr/bin/env bash
# Writes the image of the test guest into an archive, as gitvirt.test/guest:1: its kernel, as kernelBoot takes it, and a container disk:
# image.sh ARCHIVE.
set -euo pipefail
archive=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
guest=$(hack/guest/path.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
truncate -s 1M "$work/disk.img"
CGO_ENABLED=0 go run -trimpath -gcflags=all=-dwarf=false ./hack/ociimage -out "$archive" -name gitvirt.test/guest:1 -user 107:107 \
  -file "/boot/vmlinuz=$guest/vmlinuz" -file "/boot/initrd=$guest/initramfs.img" -file "/disk/disk.img=$work/disk.img"
