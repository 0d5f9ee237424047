# shellcheck shell=bash
# The certificates of the cluster and the kubeconfigs that carry them, made with openssl. Sourced by cluster.sh.
# shellcheck disable=SC2154 # env.sh sets cluster and the addresses

pki=$cluster/pki

authority() {
  [ -s "$pki/$1.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=$2" \
    -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$pki/$1.key" -out "$pki/$1.crt" 2>/dev/null
}

# certificate NAME SUBJECT [SAN] [CA] makes a certificate for a client, and for a server when it has other names (SAN).
certificate() {
  local name=$1 subject=$2 san=${3:-} ca=${4:-ca} usage=clientAuth
  [ ! -s "$pki/$name.crt" ] || return 0
  if [ -n "$san" ]; then usage=clientAuth,serverAuth; fi
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "$subject" \
    -CA "$pki/$ca.crt" -CAkey "$pki/$ca.key" -addext basicConstraints=critical,CA:FALSE \
    -addext keyUsage=critical,digitalSignature -addext "extendedKeyUsage=$usage" ${san:+-addext "subjectAltName=$san"} \
    -keyout "$pki/$name.key" -out "$pki/$name.new" 2>/dev/null
  mv "$pki/$name.new" "$pki/$name.crt"
}

# kubeconfig NAME FILE writes who NAME is, with its certificate inside.
kubeconfig() {
  [ ! -s "$2" ] || return 0
  cat >"$2" <<EOF
apiVersion: v1
kind: Config
clusters:
- name: gitvirt
  cluster: {server: "$api", certificate-authority-data: $(base64 -w0 "$pki/ca.crt")}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 "$pki/$1.crt"), client-key-data: $(base64 -w0 "$pki/$1.key")}
contexts:
- name: gitvirt
  context: {cluster: gitvirt, user: $1}
current-context: gitvirt
EOF
}

make_pki() {
  local node
  mkdir -p "$pki"
  authority ca gitvirt-cluster
  authority front-proxy-ca gitvirt-cluster-front-proxy
  certificate etcd /CN=etcd "IP:$net4.1"
  certificate etcd-client /CN=kube-apiserver-etcd-client
  certificate kube-apiserver /CN=kube-apiserver \
    "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:$net4.1,IP:$net6::1,IP:127.0.0.1,IP:${services4%.0/16}.1,IP:${services6%/112}1"
  certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
  certificate front-proxy-client /CN=front-proxy-client "" front-proxy-ca
  certificate admin /O=system:masters/CN=admin
  certificate kube-controller-manager /CN=system:kube-controller-manager
  certificate kube-scheduler /CN=system:kube-scheduler
  certificate kube-proxy /CN=system:kube-proxy
  for node in "${nodes[@]}"; do
    certificate "$node" "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$(node_ip4 "$node"),IP:$(node_ip6 "$node")"
  done
  [ -s "$pki/service-accounts.key" ] || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$pki/service-accounts.key"
  [ -s "$pki/service-accounts.pub" ] || openssl pkey -in "$pki/service-accounts.key" -pubout -out "$pki/service-accounts.pub"
  kubeconfig admin "$cluster/kubeconfig"
  kubeconfig kube-controller-manager "$pki/kube-controller-manager.kubeconfig"
  kubeconfig kube-scheduler "$pki/kube-scheduler.kubeconfig"
}
