#!/usr/bin/env bash
# Builds the guest of the tests and the demo from Debian's cloud kernel and busybox; README.md tells what it does.
# The result is kept in the folder that path.sh prints and is built once.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh

guest=$(hack/guest/path.sh)
if [ -e "$guest/complete" ]; then
  touch "$guest"
  say "guest: ready in $guest"
  exit 0
fi
[ -z "${GITVIRT_GUEST:-}" ] || die "GITVIRT_GUEST=$GITVIRT_GUEST holds no guest; unset it to have one built"
[ "$(dpkg --print-architecture)" = amd64 ] || die "the test guest is built for amd64 only"

one_build_at_a_time guest
if [ -e "$guest/complete" ]; then
  say "guest: ready in $guest"
  exit 0
fi

say "guest: building it in $guest"
work=$(mktemp -d "$GITVIRT_CACHE/.guest.XXXXXX")
trap 'stop_progress; rm -rf "$work"' EXIT

# What the guest's drivers are; modprobe finds what they depend on. Debian's cloud kernel has ext4 built in and no
# AHCI: a CD-ROM is seen on SCSI, a disk on virtio or SCSI.
modules=(
  virtio_pci virtio_blk virtio_net virtio_console virtio_balloon virtio_mem virtio_scsi virtio_rng
  sd_mod sr_mod isofs button evdev virtiofs vmw_vsock_virtio_transport i6300esb
)

fetch_kernel() {
  local package
  package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  if [ -z "$package" ]; then
    echo "the package lists do not know linux-image-cloud-amd64"
    return 1
  fi
  (cd "$work" && apt-get -q -o APT::Sandbox::User=root download "$package")
}

fetch_kernel_with_fresh_lists() {
  apt-get -q update
  retry fetch_kernel
}

if ! progress "downloading Debian's cloud kernel" fetch_kernel; then
  progress "downloading it with fresh package lists" fetch_kernel_with_fresh_lists ||
    die "cannot download the guest's kernel: check the network and /etc/apt/sources.list"
fi
mkdir "$work/kernel"
progress "unpacking the kernel" dpkg -x "$work"/linux-image-*.deb "$work/kernel"
version=$(basename "$work"/kernel/boot/vmlinuz-* | sed 's/^vmlinuz-//')

make_initramfs() {
  local root=$work/root module applet file
  mkdir -p "$root"/{bin,etc/init.d,etc/acpi/PWRF,proc,sys,dev,run,tmp,mnt,cidata,www,var/log,root}
  ln -s bin "$root/sbin"
  mkdir "$root/usr"
  ln -s ../bin "$root/usr/bin"
  ln -s ../bin "$root/usr/sbin"
  ln -s ../run "$root/var/run"
  cp /bin/busybox "$root/bin/busybox"
  for applet in $(/bin/busybox --list); do
    if [ "$applet" != busybox ]; then ln -s busybox "$root/bin/$applet"; fi
  done
  ln -s bin/busybox "$root/init"

  install -m 755 hack/guest/init "$root/etc/init.d/rcS"
  install -m 755 hack/guest/watch hack/guest/console hack/guest/udhcpc.sh "$root/etc/"
  printf '%s\n' '::sysinit:/etc/init.d/rcS' 'ttyS0::respawn:-/etc/console' >"$root/etc/inittab"
  printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
  # busybox init takes two seconds to stop its children; nothing here needs them.
  rm -f "$root"/bin/{poweroff,halt,reboot}
  printf '#!/bin/sh\necho "gitvirt-guest: powering off" >/dev/console\nsync\nexec busybox poweroff -f\n' >"$root/bin/poweroff"
  printf '#!/bin/sh\necho "gitvirt-guest: rebooting" >/dev/console\nsync\nexec busybox reboot -f\n' >"$root/bin/reboot"
  ln -s poweroff "$root/bin/halt"
  printf '#!/bin/sh\nexec /bin/poweroff\n' >"$root/etc/acpi/PWRF/00000080"
  chmod 755 "$root"/bin/{poweroff,reboot} "$root/etc/acpi/PWRF/00000080"

  # modprobe in the guest wants modules.dep of exactly what is there.
  depmod -b "$work/kernel" "$version"
  for module in "${modules[@]}"; do
    if ! modprobe -d "$work/kernel" -S "$version" --show-depends "$module" >"$work/depends"; then
      echo "this kernel has no module $module"
      continue
    fi
    printf '%s\n' "$module" >>"$root/etc/modules"
    sed -n 's/^insmod \([^ ]*\).*/\1/p' "$work/depends" | while read -r file; do
      file=${file#"$work/kernel/"}
      mkdir -p "$root/${file%/*}"
      cp "$work/kernel/$file" "$root/$file"
    done
  done
  cp "$work/kernel/lib/modules/$version"/modules.{order,builtin,builtin.modinfo} "$root/lib/modules/$version/"
  depmod -b "$root" "$version"
  rm -f "$root/lib/modules/$version"/*.bin "$root/lib/modules/$version"/modules.{order,builtin.modinfo}

  find "$root" -exec touch -h -d @0 {} +
  (cd "$root" && find . | LC_ALL=C sort | cpio --quiet -o -H newc --reproducible --owner 0:0) | gzip -9n >"$work/initramfs.img"
  cp "$work/kernel/boot/vmlinuz-$version" "$work/vmlinuz"
}

# make_disk makes a disk that a BIOS boots: one FAT file system with syslinux, the kernel and the initramfs.
make_disk() {
  local raw=$work/disk.raw
  export SOURCE_DATE_EPOCH=315532800 MTOOLS_SKIP_CHECK=1
  printf '%s\n' 'DEFAULT guest' 'PROMPT 0' 'LABEL guest' '  LINUX /vmlinuz' '  INITRD /initramfs.img' \
    '  APPEND console=ttyS0 quiet no_timer_check swiotlb=noforce' >"$work/syslinux.cfg"
  touch -d @315532800 "$work/vmlinuz" "$work/initramfs.img" "$work/syslinux.cfg"
  truncate -s 64M "$raw"
  mformat -i "$raw" -N 67697476 -v GUEST -h 255 -s 63 -T $((64 * 2048)) ::
  mcopy -m -i "$raw" "$work/vmlinuz" "$work/initramfs.img" "$work/syslinux.cfg" ::
  syslinux --install "$raw"
  qemu-img convert -q -c -f raw -O qcow2 "$raw" "$work/disk.qcow2"
}

make_image() {
  go run ./hack/ociimage -layout "$work/guest.oci" -name gitvirt.test/guest:latest \
    -file "/disk/disk.qcow2=$work/disk.qcow2" \
    -file "/boot/vmlinuz=$work/vmlinuz" -file "/boot/initramfs.img=$work/initramfs.img"
}

progress "making the initramfs" make_initramfs
progress "making the bootable disk" make_disk
progress "making the OCI image" make_image

mkdir "$work/out"
mv "$work"/{vmlinuz,initramfs.img,disk.qcow2,guest.oci} "$work/out/"
touch "$work/out/complete"
chmod -R a+rX "$work/out"
rm -rf "$guest"
mv "$work/out" "$guest"

# Guests that no checkout has used for a month.
find "$GITVIRT_CACHE" -maxdepth 1 -name 'guest-*' -type d -mtime +30 -exec rm -rf {} +
say "guest: built"
