#!/usr/bin/env bash
# A real Kubernetes on this machine, for tests: README.md tells what runs and how to look into it.
#
#   cluster.sh up               installs, builds and starts what is missing; GITVIRT_CLUSTER_NODES=2 makes two nodes
#   cluster.sh able             says what this machine lacks for it, and fails if there is something
#   cluster.sh down             removes every trace but the built programs and images
#   cluster.sh status           what runs
#   cluster.sh stop NAME        ends a component: kube-apiserver, node-1/kubelet, ... or a whole node: node-1
#   cluster.sh start NAME       starts it again
#   cluster.sh signal SIG NAME  sends it a signal, such as STOP or CONT
#   cluster.sh in NODE COMMAND  runs a command on a node
#   cluster.sh load FILE...     gives every node the images of archives
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh
. hack/cluster/env.sh
. hack/cluster/processes.sh
. hack/cluster/pki.sh
. hack/cluster/control.sh
. hack/cluster/node.sh

lock() {
  mkdir -p "$GITVIRT_CACHE"
  exec 9>"$GITVIRT_CACHE/cluster.lock"
  flock -n 9 || {
    say "cluster: waiting for another start or stop"
    flock 9
  }
}

# able says why there can be no cluster on this machine: what nodes are made of, tried out.
able() {
  local root folder=$cluster.try
  need_root "the cluster"
  [ "$(uname -m)" = x86_64 ] || die "the cluster is built for amd64 only, and this machine is $(uname -m)"
  unshare --mount --pid --net --uts --ipc --fork true 2>/dev/null ||
    die "the cluster's nodes are made of namespaces, and this machine gives none (unshare fails): it needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
  mkdir -p "$folder"/{lower,upper,work,all}
  unshare --mount mount -t overlay overlay -o "lowerdir=$folder/lower,upperdir=$folder/upper,workdir=$folder/work" "$folder/all" 2>/dev/null || {
    rm -rf "$folder"
    die "the cluster's nodes have overlays, and $(dirname "$cluster") cannot be below one: name another folder in GITVIRT_CLUSTER"
  }
  rm -rf "$folder"
  for root in $(cgroup_roots); do
    mkdir "$root/$cgroup-try" 2>/dev/null || die "the cluster's Pods have cgroups, and none can be made in $root"
    rmdir "$root/$cgroup-try"
  done
  [ -n "$(cgroup_roots)" ] || die "the cluster's Pods have cgroups, and there are none below /sys/fs/cgroup"
  [ -c /dev/net/tun ] || die "guests have their network from /dev/net/tun, which is not there"
}

# begin NAME starts a component if it does not run.
begin() {
  running "$1" && return 0
  case $1 in
  */*) "start_${1#*/}" "${1%/*}" ;;
  *) "start_$1" ;;
  esac
}

# await NAME waits until a component does its work.
await() {
  case $1 in
  */*) "ready_${1#*/}" "${1%/*}" ;;
  *) "ready_$1" ;;
  esac
}

# begin_node makes a node that has no kubelet yet; join_node lets it into the cluster.
begin_node() {
  # One that was cut short while it was made is made again.
  if running "$1/init" && [ ! -e "$cluster/processes/$1/connected" ]; then end_node "$1"; fi
  begin "$1/init"
  configure_node "$1"
  begin "$1/containerd"
}
join_node() {
  begin "$1/kubelet"
  begin "$1/kube-proxy"
}

up() {
  local start=$1 node part
  claim_bridge
  mkdir -p "$cluster"/{logs,processes,nodes}
  (umask 077 && make_pki)
  chmod 600 "$cluster/kubeconfig"
  if [ "$(cat "$cluster/node-count" 2>/dev/null || echo 1)" -gt "$node_count" ]; then
    die "the cluster has more than $node_count nodes; make cluster-down first, or cluster.sh stop NODE"
  fi
  printf '%s\n' "$node_count" >"$cluster/node-count"
  remember_kernel_settings
  make_bridge
  begin etcd
  # Nodes and the API server take about equally long and do not wait for each other.
  for node in "${nodes[@]}"; do begin_node "$node"; done
  await etcd
  begin kube-apiserver
  for node in "${nodes[@]}"; do load_into "$node" "$images"/*.tar; done
  await kube-apiserver
  say "  API server: ready after $(seconds_since "$start")"
  begin kube-controller-manager
  begin kube-scheduler
  for node in "${nodes[@]}"; do join_node "$node"; done
  await kube-controller-manager
  await kube-scheduler
  for node in "${nodes[@]}"; do
    for part in kubelet kube-proxy; do await "$node/$part"; done
    say "  $node: ready after $(seconds_since "$start")"
  done
  ready kube-controller-manager 60 kubectl get serviceaccount default
}

# load_into NODE FILE... imports archives that the node has not had yet.
load_into() {
  local node=$1 file mark
  shift
  await "$node/containerd"
  for file; do
    mark=$(node_folder "$node")/loaded-$(sha256sum <"$file" | cut -c1-16)
    if [ -e "$mark" ]; then continue; fi
    import "$file" "$node" || failed "$node/containerd" "cannot import $file"
    touch "$mark"
  done
}

# end_node NODE kills the first process of a node's namespaces, which takes everything with it: daemons, shims, containers,
# mounts, links, rules.
end_node() {
  end_process "$1/init" 0
  end_process "$1/namespaces"
  rm -rf "$cluster/processes/$1"
  ip link del "gvk-$1" 2>/dev/null || true
}

remove_cgroups() {
  local root
  cgroup_roots | while read -r root; do
    if [ -d "$root/$cgroup" ]; then find "$root/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true; fi
  done
}
cgroups_are_gone() {
  remove_cgroups
  ! cgroup_roots | while read -r root; do if [ -d "$root/$cgroup" ]; then echo "$root"; fi; done | grep -q .
}

down() {
  local name setting value
  if [ ! -e "$cluster/bridge" ]; then
    if bridge_is_there; then warn "the link $bridge is there and nothing in $cluster says that it is this cluster's; GITVIRT_CLUSTER names another folder"; fi
    say "cluster: there is none in $cluster"
    return 0
  fi
  if [ -d "$cluster/processes" ]; then
    for name in "$cluster"/processes/node-*; do
      if [ -d "$name" ]; then end_node "$(basename "$name")"; fi
    done
    for name in "${control_plane[@]}"; do end_process "$name" 0; done
  fi
  wait_for 10 no_strays || warn "these processes are left: $(strays | xargs)"
  ip link del "$bridge" 2>/dev/null || true
  wait_for 10 cgroups_are_gone || warn "these cgroups are left: $(find /sys/fs/cgroup -type d -path "*/$cgroup*" | head -n 3)"
  if [ -e "$cluster/kernel-settings" ]; then
    while read -r setting value; do printf '%s\n' "$value" >"/proc/sys/$setting"; done <"$cluster/kernel-settings"
  fi
  rm -rf --one-file-system "$cluster"
  say "cluster: removed in $(seconds_since "$1"); the programs stay in $GITVIRT_CACHE"
}

status() {
  local name pid
  [ -d "$cluster/processes" ] || die "no cluster in $cluster: make cluster starts one"
  for name in "${control_plane[@]}" $(cd "$cluster/processes" && ls -d node-*/{init,containerd,kubelet,kube-proxy} 2>/dev/null); do
    if pid=$(pid_of "$name"); then
      printf '%-26s pid %-8s %4d MiB\n' "$name" "$pid" $(($(awk '/^VmRSS/ { print $2 }' "/proc/$pid/status") / 1024))
    else
      printf '%-26s does not run\n' "$name"
    fi
  done
}

# known NAME fails for what is no component.
known() {
  local part
  case $1 in
  node-*/*) for part in "${node_parts[@]}"; do if [ "${1#*/}" = "$part" ]; then return 0; fi; done ;;
  *) for part in "${control_plane[@]}"; do if [ "$1" = "$part" ]; then return 0; fi; done ;;
  esac
  die "there is no component $1; there are: ${control_plane[*]} and NODE/{${node_parts[*]}}"
}

need_root "the cluster"
command=${1:-}
shift || true
case $command in
able) able ;;
up)
  able
  hack/setup.sh cluster
  hack/cluster/build.sh
  lock
  progress "the images of pause and busybox" hack/cluster/images.sh "$programs" "$images"
  began=$(now)
  say "cluster: starting Kubernetes in $cluster"
  up "$began"
  say "cluster: ready after $(seconds_since "$began"); look into it with"
  say "  export KUBECONFIG=$cluster/kubeconfig"
  say "  $programs/kubectl get pods -A"
  ;;
down)
  lock
  down "$(now)"
  ;;
status) status ;;
stop)
  lock
  case ${1:-} in
  node-[1-9]) end_node "$1" ;;
  *) known "${1:-}" && end_process "$1" ;;
  esac
  ;;
start)
  lock
  case ${1:-} in
  node-[1-9])
    begin_node "$1"
    await "$1/containerd"
    join_node "$1"
    await "$1/kubelet"
    await "$1/kube-proxy"
    ;;
  *)
    known "${1:-}"
    begin "$1"
    await "$1"
    ;;
  esac
  ;;
signal)
  known "${2:-}"
  pid=$(pid_of "$2") || die "$2 does not run"
  kill -s "$1" "$pid"
  ;;
in) in_node "$@" ;;
load)
  lock
  for node in "${nodes[@]}"; do load_into "$node" "$@"; done
  ;;
*) die "want one of: able, up, down, status, stop NAME, start NAME, signal SIG NAME, in NODE COMMAND, load FILE..." ;;
esac
