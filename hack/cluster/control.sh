# shellcheck shell=bash
# The control plane: etcd, API server, controller manager, scheduler, as processes of the host that listen on the nodes'
# bridge. Sourced by cluster.sh.
# shellcheck disable=SC2154 # env.sh and pki.sh set the variables

bridge_is_there() { ip link show "$bridge" >/dev/null 2>&1; }

# claim_bridge notes that the bridge is this cluster's: there is one cluster at a time on a machine.
claim_bridge() {
  if bridge_is_there && [ ! -e "$cluster/bridge" ]; then
    die "the link $bridge is another cluster's, which GITVIRT_CLUSTER named when it was started; if there is none, ip link del $bridge"
  fi
  mkdir -p "$cluster"
  touch "$cluster/bridge"
}

make_bridge() {
  # Without an address of its own a bridge takes one of its ports', another one whenever a node comes or goes, and for half
  # a minute nobody finds it.
  bridge_is_there || ip link add "$bridge" address "$(mac 1)" type bridge
  echo 0 >"/proc/sys/net/ipv6/conf/$bridge/disable_ipv6"
  ip link set "$bridge" up
  ip addr replace "$net4.1/24" dev "$bridge"
  ip addr replace "$net6::1/64" dev "$bridge" nodad
}

# get PATH asks the API server as the administrator.
get() { kubectl get --raw "$1"; }

start_etcd() {
  (umask 077 && mkdir -p "$cluster/etcd")
  daemon etcd etcd --name gitvirt --data-dir "$cluster/etcd" --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
    --listen-peer-urls "https://$net4.1:2380" --initial-advertise-peer-urls "https://$net4.1:2380" \
    --initial-cluster "gitvirt=https://$net4.1:2380" --client-cert-auth --trusted-ca-file "$pki/ca.crt" \
    --cert-file "$pki/etcd.crt" --key-file "$pki/etcd.key" --peer-client-cert-auth --peer-trusted-ca-file "$pki/ca.crt" \
    --peer-cert-file "$pki/etcd.crt" --peer-key-file "$pki/etcd.key" --logger zap
}
ready_etcd() {
  ready etcd 60 curl -fsS --max-time 5 --cacert "$pki/ca.crt" --cert "$pki/etcd-client.crt" --key "$pki/etcd-client.key" "$etcd/health"
}

# Writes are counted in logs/audit.log, one line of JSON each, so that a test can say how many a VM costs.
write_audit_policy() {
  cat >"$cluster/audit-policy.yaml" <<'EOF'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  resources: [{group: coordination.k8s.io, resources: [leases]}]
- level: None
  verbs: [get, list, watch]
- level: Metadata
EOF
}

start_kube-apiserver() {
  write_audit_policy
  daemon kube-apiserver "$programs/kube-apiserver" --etcd-servers "$etcd" --etcd-cafile "$pki/ca.crt" \
    --etcd-certfile "$pki/etcd-client.crt" --etcd-keyfile "$pki/etcd-client.key" \
    --bind-address "$net4.1" --advertise-address "$net4.1" --secure-port 6443 \
    --tls-cert-file "$pki/kube-apiserver.crt" --tls-private-key-file "$pki/kube-apiserver.key" --client-ca-file "$pki/ca.crt" \
    --kubelet-client-certificate "$pki/kubelet-client.crt" --kubelet-client-key "$pki/kubelet-client.key" \
    --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP \
    --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --allow-privileged \
    --service-account-issuer https://kubernetes.default.svc --service-account-signing-key-file "$pki/service-accounts.key" \
    --service-account-key-file "$pki/service-accounts.pub" --service-cluster-ip-range "$services4,$services6" \
    --requestheader-client-ca-file "$pki/front-proxy-ca.crt" --requestheader-allowed-names front-proxy-client \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --requestheader-extra-headers-prefix X-Remote-Extra- --proxy-client-cert-file "$pki/front-proxy-client.crt" \
    --proxy-client-key-file "$pki/front-proxy-client.key" --enable-aggregator-routing \
    --audit-policy-file "$cluster/audit-policy.yaml" --audit-log-path "$cluster/logs/audit.log"
}
ready_kube-apiserver() { ready kube-apiserver 120 get /readyz; }

start_kube-controller-manager() {
  daemon kube-controller-manager "$programs/kube-controller-manager" --kubeconfig "$pki/kube-controller-manager.kubeconfig" \
    --bind-address "$net4.1" --leader-elect=false --use-service-account-credentials --allocate-node-cidrs=false \
    --root-ca-file "$pki/ca.crt" --service-account-private-key-file "$pki/service-accounts.key" \
    --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key" \
    --flex-volume-plugin-dir "$cluster/volume-plugins"
}
ready_kube-controller-manager() { ready kube-controller-manager 60 curl -fsS --max-time 5 --insecure "https://$net4.1:10257/healthz"; }

start_kube-scheduler() {
  daemon kube-scheduler "$programs/kube-scheduler" --kubeconfig "$pki/kube-scheduler.kubeconfig" \
    --bind-address "$net4.1" --leader-elect=false
}
ready_kube-scheduler() { ready kube-scheduler 60 curl -fsS --max-time 5 --insecure "https://$net4.1:10259/healthz"; }
