#!/usr/bin/env bash
# Installs what the demo and the tests need on Debian: libvirt, QEMU, and the parts of the test guest. What is there
# already is left alone; with everything there it only looks. `setup.sh cluster` installs what a Kubernetes cluster needs
# besides, which only `make cluster` asks for.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

packages=(
  # what runs the virtual machines
  libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-system libvirt-clients
  qemu-system-x86 qemu-utils seabios ipxe-qemu
  # UEFI, TPM and shared folders of virtual machines (virtiofsd is in qemu-system-common)
  ovmf swtpm swtpm-tools qemu-system-common
  # building gitvirt-agent and running go test -race
  libvirt-dev pkg-config gcc libc6-dev
  # starting libvirtd on a machine without systemd
  tini
  # building the test guest
  busybox-static kmod cpio syslinux mtools qemu-guest-agent
  # real peers of the tests and the demo
  git gnupg openssh-server openssh-client docker-registry ca-certificates
  # building container images
  mmdebstrap
  # what looks at the rules that the agent makes for a Pod's network
  nftables
  # checks: libvirt's RELAX NG schemas, the shell scripts, generated code
  libxml2-utils shellcheck protobuf-compiler
  # small helpers of the scripts
  curl python3 procps iproute2 util-linux
)

what=setup
if [ "${1:-}" = cluster ]; then
  what="setup for a cluster"
  packages=(
    # what Kubernetes stands on
    etcd-server containernetworking-plugins
    # what its programs call: kube-proxy, kubelet, and the CNI plugin for ports
    nftables iptables conntrack mount kmod
    # certificates, and looking whether a component is well
    openssl curl
    # building pause, and the namespaces of nodes
    gcc libc6-dev busybox-static tini iproute2 util-linux procps
  )
  # Docker's packages bring a runc of their own, and Debian's would remove them.
  if ! command -v runc >/dev/null; then packages+=(runc); fi
fi

# Daemons that are wanted as programs only. Where systemd runs, installing one starts it for the whole machine.
programs_only=(docker-registry openssh-server qemu-guest-agent etcd-server containernetworking-plugins)

missing_packages() {
  dpkg-query -W -f='${binary:Package} ${db:Status-Status}\n' 2>/dev/null |
    awk -v want="${packages[*]}" '
      $2 == "installed" { sub(/:.*/, "", $1); have[$1] = 1 }
      END { n = split(want, name, " "); for (i = 1; i <= n; i++) if (!(name[i] in have)) print name[i] }'
}

update_lists() { retry apt-get -q update -o Acquire::Retries=3; }

install_packages() {
  DEBIAN_FRONTEND=noninteractive retry apt-get install -q -y --no-install-recommends -o Acquire::Retries=3 "$@"
}

stop_daemon() {
  # A package mostly names its service after itself.
  local services=("$1")
  case $1 in
  openssh-server) services=(ssh) ;;
  etcd-server) services=(etcd) ;;
  containernetworking-plugins) services=(cni-dhcp.socket cni-dhcp) ;;
  esac
  systemctl disable --now "${services[@]}" >/dev/null 2>&1 || true
  say "  ${services[*]} is installed for the tests and not left running as a service"
}

command -v go >/dev/null || die "Go is not in PATH: install the version go.mod asks for from https://go.dev/dl/"
command -v dpkg-query >/dev/null ||
  die "this script installs Debian packages and this is not Debian; install the equivalents of: ${packages[*]}"

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -eq 0 ]; then
  say "$what: everything is installed"
  exit 0
fi

need_root "installing packages (${missing[*]})"
say "$what: installing ${#missing[@]} Debian packages: ${missing[*]}"

# Fresh lists only when there are none or they do not serve: an update costs more than most installs.
known() { apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1; }
updated=
if ! known; then
  progress "apt-get update" update_lists || die "cannot read the package lists: check the network and /etc/apt/sources.list"
  updated=1
fi
if ! progress "apt-get install" install_packages "${missing[@]}"; then
  if [ -n "$updated" ]; then die "apt-get install failed: see above"; fi
  say "$what: trying again with fresh package lists"
  progress "apt-get update" update_lists || die "cannot read the package lists: check the network and /etc/apt/sources.list"
  progress "apt-get install" install_packages "${missing[@]}" || die "apt-get install failed: see above"
fi

if [ -d /run/systemd/system ]; then
  for package in "${programs_only[@]}"; do
    case " ${missing[*]} " in *" $package "*) stop_daemon "$package" ;; esac
  done
fi

mapfile -t missing < <(missing_packages)
if [ ${#missing[@]} -ne 0 ]; then die "still missing after the installation: ${missing[*]}"; fi
say "$what: done"
