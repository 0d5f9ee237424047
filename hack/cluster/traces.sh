#!/usr/bin/env bash
# Lists all that a cluster could leave behind on a machine; the same list before `make cluster` and after `make cluster-down`
# shows that it left nothing.
set -euo pipefail
cluster=${GITVIRT_CLUSTER:-/var/lib/gitvirt-cluster}

echo "processes:"
for exe in /proc/[0-9]*/exe; do
  target=$(readlink "$exe" 2>/dev/null) || continue
  case ${target##*/} in
  etcd | kube-* | kubelet | containerd* | runc | pause | nsenter | unshare)
    tr '\0' ' ' <"${exe%exe}cmdline" | cut -c1-150
    ;;
  esac
done | sort
echo "mounts:"
grep -E "$cluster|kubelet|containerd|overlay|netns|/cni" /proc/self/mounts || true
echo "links:"
ip -o link | sed 's/^[0-9]*: \([^:]*\):.*/\1/' | grep -E '^(gvk|cni|veth)' || true
echo "routes:"
ip route
ip -6 route
echo "network namespaces with a name, and their number in all:"
if [ -d /run/netns ]; then ls /run/netns; fi
lsns -n -t net -o NS | wc -l
echo "nftables:"
if command -v nft >/dev/null; then nft list tables | grep -E 'kube|cni|gvk' || true; fi
echo "cgroups:"
find /sys/fs/cgroup -type d -path '*/gitvirt-cluster*' -prune -o -type d -path '*/kubepods*' -prune -print | head -n 5
find /sys/fs/cgroup -type d -name gitvirt-cluster
echo "kernel settings:"
(cd /proc/sys && grep -H . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes net/ipv4/ip_forward)
echo "folders:"
for folder in "$cluster" /var/lib/{kubelet,containerd,cni} /run/{containerd,netns,cni,kubernetes} /etc/{cni,kubernetes} /opt/{cni,containerd} /usr/libexec/kubernetes; do
  if [ -e "$folder" ]; then echo "$folder"; fi
done
