#!/usr/bin/env bash
# The first process of a node, in mount, PID, network, UTS and IPC namespaces of its own: node-init.sh NODE FOLDER PROGRAMS.
# It lays out the file system and becomes tini. The node has its own /proc, /sys, /run and /var (below FOLDER) and its own
# changes to /etc; the rest is the host's. So programs and Pods find everything where they find it on any node, two nodes
# do not meet, and all mounts and processes go when the node goes.
set -euo pipefail
node=$1 folder=$2 programs=$3

mount --make-rprivate /
hostname "$node"
mount -t proc proc /proc

# A view of the node's own network devices; the cgroups are the host's.
cgroups=$folder/cgroups
mkdir -p "$cgroups"
mount --rbind /sys/fs/cgroup "$cgroups"
mount -t sysfs sysfs /sys
mount --move "$cgroups" /sys/fs/cgroup

mkdir -p "$folder"/{etc,work}
mount -t overlay overlay -o "lowerdir=/etc,upperdir=$folder/etc,workdir=$folder/work" /etc
mount -t tmpfs -o mode=755 run /run
mkdir -p /run/kubernetes /run/netns /run/lock
mount --bind "$programs" /run/kubernetes

mkdir -p "$folder"/var/{lib,log,cache,tmp}
chmod 1777 "$folder/var/tmp"
ln -sfn /run "$folder/var/run"
ln -sfn /run/lock "$folder/var/lock"
mount --bind "$folder/var" /var

# Mounts of kubelet are passed on to Pods, as on a machine where systemd has made everything shared.
mount --make-rshared /

ip link set lo up
sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.accept_dad=0
cd /
exec tini -s -- sleep infinity
