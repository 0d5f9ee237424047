# shellcheck shell=bash
# A node: containerd, kubelet and kube-proxy in namespaces of their own, on the bridge. Sourced by cluster.sh.
# shellcheck disable=SC2154 # env.sh and pki.sh set the variables

node_folder() { printf '%s/nodes/%s\n' "$cluster" "$1"; }

# cgroup_roots lists the hierarchies that are mounted: one with cgroup 2, a dozen with cgroup 1.
cgroup_roots() { awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/self/mounts; }

make_cgroup() {
  local root
  cgroup_roots | while read -r root; do
    mkdir -p "$root/$cgroup/$1"
    # A cpuset of cgroup 1 begins empty and takes no process until it is filled.
    for folder in "$root/$cgroup" "$root/$cgroup/$1"; do
      for file in cpuset.cpus cpuset.mems; do
        if [ "${root##*/}" = cpuset ]; then cat "$root/$file" >"$folder/$file"; fi
      done
    done
  done
}

remember_kernel_settings() {
  local setting
  [ ! -e "$cluster/kernel-settings" ] || return 0
  for setting in "${kernel_settings[@]}"; do
    printf '%s %s\n' "$setting" "$(cat "/proc/sys/$setting")"
  done >"$cluster/kernel-settings.new"
  mv "$cluster/kernel-settings.new" "$cluster/kernel-settings"
}

# start_init makes the namespaces of a node and connects them to the bridge.
start_init() {
  local node=$1 folder parent init other link=gvk-$1
  folder=$(node_folder "$node")
  mkdir -p "$folder" "$cluster/logs/$node"
  make_cgroup "$node"
  daemon "$node/namespaces" unshare --mount --pid --net --uts --ipc --fork --kill-child \
    "$PWD/hack/cluster/node-init.sh" "$node" "$folder" "$programs"
  parent=$(pid_of "$node/namespaces") || failed "$node/namespaces" "has ended"
  wait_for 5 child_of "$parent" >/dev/null || failed "$node/namespaces" "has no child"
  init=$(child_of "$parent")
  record "$node/init" "$init"
  # shellcheck disable=SC2317 # ready calls it
  init_is_tini() { [ "$(cat "/proc/$init/comm" 2>/dev/null)" = tini ]; }
  ready "$node/namespaces" 10 init_is_tini

  ip link del "$link" 2>/dev/null || true
  ip link add "$link" type veth peer name eth0 address "$(mac $((10 + ${node#node-})))" netns "$init"
  ip link set "$link" master "$bridge" up
  in_node "$node" ip addr add "$(node_ip4 "$node")/24" dev eth0
  in_node "$node" ip addr add "$(node_ip6 "$node")/64" dev eth0 nodad
  in_node "$node" ip link set eth0 up
  in_node "$node" ip route add default via "$net4.1"
  in_node "$node" ip -6 route add default via "$net6::1"
  # The host reaches Pods, and Services by way of the first node. Nodes reach each other's Pods.
  ip route replace "$(node_pods4 "$node")" via "$(node_ip4 "$node")"
  ip -6 route replace "$(node_pods6 "$node")" via "$(node_ip6 "$node")"
  if [ "$node" = node-1 ]; then
    ip route replace "$services4" via "$(node_ip4 "$node")"
    ip -6 route replace "$services6" via "$(node_ip6 "$node")"
  fi
  for other in "${nodes[@]}"; do
    if [ "$other" = "$node" ]; then continue; fi
    in_node "$node" ip route replace "$(node_pods4 "$other")" via "$(node_ip4 "$other")"
    in_node "$node" ip -6 route replace "$(node_pods6 "$other")" via "$(node_ip6 "$other")"
  done
  touch "$cluster/processes/$node/connected"
}

# configure_node writes what the node's programs read, into the node's /etc.
configure_node() {
  local node=$1
  # An overlay's upper folder is written through the node, not beside it.
  in_node "$node" mkdir -p /etc/kubernetes /etc/cni/net.d /etc/containerd
  containerd_config | in_node "$node" tee /etc/containerd/config.toml >/dev/null
  cni_config "$node" | in_node "$node" tee /etc/cni/net.d/10-gitvirt.conflist >/dev/null
  kubelet_config "$node" | in_node "$node" tee /etc/kubernetes/kubelet.yaml >/dev/null
  kube_proxy_config "$node" | in_node "$node" tee /etc/kubernetes/kube-proxy.yaml >/dev/null
  kubeconfig "$node" "$pki/$node.kubeconfig"
  kubeconfig kube-proxy "$pki/kube-proxy.kubeconfig"
  (umask 077 && tar -C "$pki" -c ca.crt "$node".{crt,key,kubeconfig} kube-proxy.kubeconfig | in_node "$node" tar -C /etc/kubernetes -x)
}

containerd_config() {
  cat <<EOF
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# What is not needed, and what would leave a folder in the host's /opt.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "gitvirt.test/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  # Where root has no CAP_SYS_RESOURCE, runc may not lower the score of a process.
  restrict_oom_score_adj = true
  # A device that a Pod is given belongs to the Pod's user: an unprivileged QEMU opens it.
  device_ownership_from_security_context = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
EOF
}

cni_config() {
  cat <<EOF
{"cniVersion": "1.0.0", "name": "gitvirt", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "$(node_pods4 "$1")"}], [{"subnet": "$(node_pods6 "$1")"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true}
]}
EOF
}

kubelet_config() {
  cat <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(node_ip4 "$1")
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /etc/kubernetes/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: /etc/kubernetes/$1.crt
tlsPrivateKeyFile: /etc/kubernetes/$1.key
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$1
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
maxPods: 250
volumePluginDir: /var/lib/kubelet/volume-plugins
# The disk is the machine's: it is not this cluster that fills it, and Pods are not evicted for it.
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%, imagefs.inodesFree: 1%}
EOF
}

kube_proxy_config() {
  cat <<EOF
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: $(node_ip4 "$1")
hostnameOverride: $1
clientConnection: {kubeconfig: /etc/kubernetes/kube-proxy.kubeconfig}
mode: nftables
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: cni0}
oomScoreAdj: 0
# The limits of connection tracking are the machine's.
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
EOF
}

start_containerd() { node_daemon "$1" containerd containerd --config /etc/containerd/config.toml; }
ready_containerd() { ready "$1/containerd" 60 in_node "$1" ctr --connect-timeout 2s version; }

start_kubelet() {
  node_daemon "$1" kubelet /run/kubernetes/kubelet --config /etc/kubernetes/kubelet.yaml \
    --kubeconfig "/etc/kubernetes/$1.kubeconfig" --hostname-override "$1" --node-ip "$(node_ip4 "$1"),$(node_ip6 "$1")"
}
# After a kubelet was started again the node is Ready for a while because it was so before: the time says who it was.
kubelet_is_well() {
  local status heard
  in_node "$1" curl -fsS --max-time 5 http://127.0.0.1:10248/healthz || return 1
  read -r status heard < <(kubectl get node "$1" -o \
    'jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastHeartbeatTime}{"\n"}{end}') || return 1
  [ "$status" = True ] && [ "$(date -d "$heard" +%s)" -ge "$(stat -c %Y "$cluster/processes/$1/kubelet")" ]
}
ready_kubelet() { ready "$1/kubelet" 120 kubelet_is_well "$1"; }

start_kube-proxy() { node_daemon "$1" kube-proxy /run/kubernetes/kube-proxy --config /etc/kubernetes/kube-proxy.yaml; }
ready_kube-proxy() { ready "$1/kube-proxy" 60 in_node "$1" curl -fsS --max-time 5 http://127.0.0.1:10256/healthz; }

# import FILE NODE gives a node the images of an archive.
import() { CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1 in_node "$2" ctr --namespace k8s.io images import - <"$1" >/dev/null; }
