#!/usr/bin/env bash
# Builds the container images of the three programs, without a container engine, as archives for `ctr images import`, `podman
# load` and `docker load`: hack/image.sh VERSION, after the programs were built into bin. The Debian packages below them are
# unpacked once, into the cache; equal packages and programs make equal images, digests included.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

version=${1:?usage: hack/image.sh VERSION}
repository=${IMAGE_REPOSITORY:-gitvirt.io}
suite=bookworm
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
security=${DEBIAN_SECURITY_MIRROR:-http://deb.debian.org/debian-security}
out=bin/images

# One layer of packages for the launcher and the agent: a node that has both keeps it once.
packages=(
  # libvirt's daemon with its driver for QEMU, and libvirt's library, which the agent loads
  libvirt-daemon libvirt-daemon-driver-qemu
  # QEMU; the agent proves KVM with it and makes disks with qemu-img
  qemu-system-x86 qemu-utils
  # UEFI and TPM of VMs (virtiofsd is in qemu-system-common)
  ovmf swtpm swtpm-tools
  # imports: compressed images, servers with TLS
  xz-utils ca-certificates
  # in place of usrmerge, which needs perl: the tree is merged from the start
  usr-is-merged
)

# tidy is run on the unpacked tree. libvirt serves only users whom it finds a name of; 107 is who runs VMs' Pods (KubeVirt's
# number). What nobody reads in a container goes, but for licences; so do emulators and firmware of other machines, of libvirt's
# drivers all but QEMU's, and what the installation left behind that would differ each time.
# shellcheck disable=SC2016 # $1 is for the shell that runs it
tidy='set -eu
cd "${1:?}"
printf "qemu:x:107:107:VMs:/run/gitvirt/home:/usr/sbin/nologin\n" >>etc/passwd
printf "qemu:x:107:\n" >>etc/group
mkdir -p run/gitvirt
find usr/share/doc -depth ! -name copyright ! -type d -delete
find usr/share/doc -depth -type d -empty -delete
cd usr/share
rm -rf alsa bash-completion bug i18n info iso-codes lintian locale man perl5 systemtap xml/iso-codes zoneinfo
rm -rf qemu/openbios-* qemu/opensbi-* qemu/s390-* qemu/hppa-* qemu/palcode-* qemu/skiboot.lid qemu/slof.bin qemu/trace-events-all
cd ../..
rm -f usr/bin/qemu-system-i386 usr/libexec/qemu-system-i386 usr/bin/qemu-system-x86_64-microvm usr/bin/qemu-storage-daemon
find usr/lib -name "libvirt_driver_*.so" ! -name libvirt_driver_qemu.so -delete
rm -rf var/log/* var/cache/* var/lib/apt var/lib/dpkg/*-old var/lib/libvirt var/tmp/* etc/*- etc/machine-id etc/resolv.conf etc/hostname tmp/*'

[ "$(dpkg --print-architecture)" = amd64 ] || die "the images are built for amd64 only"
for program in gitvirt gitvirt-agent gitvirt-launcher; do
  [ -x "bin/$program" ] || die "bin/$program is missing: run make image, which builds it"
done

# The recipe is all that the layer is made from but the packages' versions: remove the folder to have newer ones.
recipe=$({ cat hack/image.sh && printf '%s\n' "$mirror" "$security"; } | sha256sum | cut -c1-12)
base=$GITVIRT_CACHE/image-$recipe
work=

# make_base is tried again when it fails, so nothing ends it but its own word.
make_base() {
  # The time of everything in the layer; gzip would write one of its own.
  SOURCE_DATE_EPOCH=0 mmdebstrap --variant=essential --format=tar --architectures=amd64 \
    --include="$(IFS=,; printf '%s' "${packages[*]}")" \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --customize-hook="$tidy" \
    "$suite" "$work/base.tar" \
    "deb $mirror $suite main" "deb $mirror $suite-updates main" "deb $security $suite-security main" || return 1
  tar -xOf "$work/base.tar" ./etc/ssl/certs/ca-certificates.crt >"$work/ca-certificates.crt" || return 1
  tar -xOf "$work/base.tar" ./var/lib/dpkg/status | awk '/^Package: /{p=$2} /^Version: /{print p, $2}' >"$work/packages" || return 1
  gzip -n -6 -f "$work/base.tar"
}

mkdir -p "$out"
one_build_at_a_time image
if [ ! -e "$base/complete" ]; then
  need_root "unpacking Debian packages"
  work=$(mktemp -d "$GITVIRT_CACHE/.image.XXXXXX")
  trap 'stop_progress; rm -rf "$work"' EXIT
  progress "unpacking Debian packages (once)" retry make_base || die "cannot make the layer of Debian packages: check the network, or name a mirror in DEBIAN_MIRROR"
  touch "$work/complete"
  chmod -R a+rX "$work"
  rm -rf "$base"
  mv "$work" "$base"
  find "$GITVIRT_CACHE" -maxdepth 1 -name 'image-*' -type d -mtime +30 -exec rm -rf {} +
fi

CGO_ENABLED=0 go run -trimpath -gcflags=all=-dwarf=false ./hack/ociimage -out "$out/gitvirt-launcher.tar" -name "$repository/gitvirt-launcher:$version" \
  -base "$base/base.tar.gz" -file /usr/bin/gitvirt-launcher=bin/gitvirt-launcher -user 107:107
CGO_ENABLED=0 go run -trimpath -gcflags=all=-dwarf=false ./hack/ociimage -out "$out/gitvirt-agent.tar" -name "$repository/gitvirt-agent:$version" \
  -base "$base/base.tar.gz" -file /usr/bin/gitvirt-agent=bin/gitvirt-agent -user 0:0
CGO_ENABLED=0 go run -trimpath -gcflags=all=-dwarf=false ./hack/ociimage -out "$out/gitvirt.tar" -name "$repository/gitvirt:$version" \
  -file /usr/bin/gitvirt=bin/gitvirt -file "/etc/ssl/certs/ca-certificates.crt=$base/ca-certificates.crt" -user 65532:65532
