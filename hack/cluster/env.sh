# shellcheck shell=bash
# Where the cluster is and what its addresses are. Sourced by the scripts of this folder, after ../lib.sh; it changes
# nothing but variables and functions.
# shellcheck disable=SC2034 # used by the scripts that source this file

# Everything of the cluster that is a file is below this folder.
cluster=$(realpath -m "${GITVIRT_CLUSTER:-/var/lib/gitvirt-cluster}")
programs=$(hack/cluster/path.sh)
images=$GITVIRT_CACHE/cluster-images-$(cat hack/cluster/images.sh hack/ociimage/{main,image}.go | sha256sum | cut -c1-12)

# Nodes are numbered from 1: node-1 has address 11 on the bridge and the Pods' network 1. A cluster that is there keeps its
# number unless another is asked for.
node_count=${GITVIRT_CLUSTER_NODES:-$(cat "$cluster/node-count" 2>/dev/null || echo 1)}
case $node_count in [1-9]) ;; *) die "GITVIRT_CLUSTER_NODES=$node_count: want 1 to 9" ;; esac
nodes=()
for ((number = 1; number <= node_count; number++)); do nodes+=("node-$number"); done

# The control plane listens on the bridge of the nodes, in the host's network, and nowhere else.
bridge=gvk0
net4=172.29.77
net6=fd47:7669:7274
api=https://$net4.1:6443
etcd=https://$net4.1:2379
services4=10.248.0.0/16
services6=$net6:2000::/112

mac() { printf '02:67:76:00:00:%02x' "$1"; }
node_ip4() { printf '%s.%d' "$net4" $((10 + ${1#node-})); }
node_ip6() { printf '%s::%d' "$net6" $((10 + ${1#node-})); }
node_pods4() { printf '10.247.%d.0/24' "${1#node-}"; }
node_pods6() { printf '%s:100%x::/64' "$net6" "${1#node-}"; }

# The cgroup below which everything of the nodes runs, in every hierarchy that is mounted.
cgroup=gitvirt-cluster

# kubelet writes these for the whole machine; they are put back.
kernel_settings=(vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

control_plane=(etcd kube-apiserver kube-controller-manager kube-scheduler)
node_parts=(containerd kubelet kube-proxy)

kubectl() { "$programs/kubectl" --kubeconfig "$cluster/kubeconfig" "$@"; }
