#!/usr/bin/env bash
# Asks a running cluster whether it does what the tests build on: Pods without any privilege run, reach each other at their
# addresses and through a Service, over IPv4 and IPv6, on every node, and are stopped gracefully; a kubelet may not read all.
set -euo pipefail
cd "$(dirname "$0")/../.."
. hack/lib.sh
. hack/cluster/env.sh

kubectl get --raw /readyz >/dev/null || die "no cluster answers: make cluster starts one"

namespace=cluster-check-$$
work=$(mktemp -d)
k() { kubectl --namespace "$namespace" "$@"; }

# shellcheck disable=SC2317 # the trap calls it
finish() {
  local status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then
    warn "the check failed; Pods and events:"
    k get pods -o wide >&2 || true
    k get events --sort-by .lastTimestamp 2>/dev/null | tail -n 15 >&2 || true
  fi
  kubectl delete namespace "$namespace" --wait=false >/dev/null 2>&1 || true
  rm -rf "$work"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# pod NAME NODE LABEL SCRIPT prints a Pod that has what a launcher has, and no more: user 107, no capabilities, no way to
# more privileges, a root that is read only.
pod() {
  cat <<EOF
apiVersion: v1
kind: Pod
metadata: {name: $1, labels: {app: $3}}
spec:
  nodeSelector: {kubernetes.io/hostname: $2}
  restartPolicy: Never
  automountServiceAccountToken: false
  dnsPolicy: Default
  terminationGracePeriodSeconds: 20
  securityContext: {runAsUser: 107, runAsGroup: 107, runAsNonRoot: true, fsGroup: 107, seccompProfile: {type: RuntimeDefault}}
  volumes:
  - {name: www, emptyDir: {}}
  - {name: image, image: {reference: "gitvirt.test/busybox:1", pullPolicy: Never}}
  containers:
  - name: main
    image: gitvirt.test/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, $(printf '%s' "$4" | json_string)]
    volumeMounts: [{name: www, mountPath: /www}, {name: image, mountPath: /image}]
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
EOF
}
# json_string prints its input as a string of JSON, which is one of YAML.
json_string() { python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))'; }

# What the server serves is who it is; a write to its root has to fail.
serve='trap "echo stopping; kill %1; exit 0" TERM
{ id -u; sed -n "s/^\(CapEff\|CapBnd\|NoNewPrivs\):\s*/\1=/p" /proc/self/status; touch /x 2>/dev/null && echo writable || echo "root is read only"; test -x /image/bin/busybox && echo "image is mounted"; } >/www/index.html
httpd -f -p 8080 -h /www & echo serving; wait'

ready_pod() { k wait --for=condition=Ready "pod/$1" --timeout=60s >/dev/null; }
finished_pod() { k wait --for=jsonpath='{.status.phase}'=Succeeded "pod/$1" --timeout=60s >/dev/null; }

kubectl create namespace "$namespace" >/dev/null
has_account() { k get serviceaccount default >/dev/null 2>&1; }
wait_for 60 has_account || die "the controller manager makes no service account for the namespace $namespace"
began=$(now)
pod server node-1 server "$serve" | k apply -f - >/dev/null
ready_pod server
say "  a Pod without privileges is ready: $(seconds_since "$began")"
k logs server >"$work/log"
grep -qx serving "$work/log" || die "the server's log lacks what it wrote"

k apply -f - >/dev/null <<EOF
apiVersion: v1
kind: Service
metadata: {name: server}
spec:
  selector: {app: server}
  ipFamilyPolicy: RequireDualStack
  ports: [{port: 80, targetPort: 8080}]
EOF
read -r -a pod_ips < <(k get pod server -o 'jsonpath={.status.podIPs[*].ip}{"\n"}')
read -r -a service_ips < <(k get service server -o 'jsonpath={.spec.clusterIPs[*]}{"\n"}')
[ "${#pod_ips[@]} ${#service_ips[@]}" = "2 2" ] || die "want an IPv4 and an IPv6 address: ${pod_ips[*]}, ${service_ips[*]}"
urls=("http://${pod_ips[0]}:8080" "http://[${pod_ips[1]}]:8080" "http://${service_ips[0]}" "http://[${service_ips[1]}]")

# busybox's wget waits for ever, and a Service takes a moment to be known to each node.
# shellcheck disable=SC2016 # the Pod's shell expands it
fetch="for url in ${urls[*]}; do"'
  n=0; until timeout 2 wget -qO- $url; do n=$((n + 1)); [ $n -lt 15 ] || { echo "$url does not answer"; exit 1; }; sleep 0.2; done
  echo "reached $url"
done'
for node in "${nodes[@]}"; do
  began=$(now)
  pod "client-$node" "$node" client "$fetch" | k apply -f - >/dev/null
  finished_pod "client-$node" || {
    k logs "client-$node" >&2
    die "a Pod on $node does not reach the server"
  }
  k logs "client-$node" >"$work/answer"
  for url in "${urls[@]}"; do grep -qxF "reached $url" "$work/answer" || die "$node did not reach $url"; done
  say "  a Pod on $node reached the server at its addresses and through the Service, over IPv4 and IPv6: $(seconds_since "$began")"
done
for line in 107 CapEff=0000000000000000 CapBnd=0000000000000000 NoNewPrivs=1 "root is read only" "image is mounted"; do
  grep -qxF "$line" "$work/answer" || die "the server should say $line, it says: $(tr '\n' ' ' <"$work/answer")"
done
say "  the server runs as user 107, without capabilities, on a root that is read only, with an image as a volume"

for url in "${urls[@]}"; do curl -fsS -g --noproxy '*' --max-time 5 -o /dev/null "$url" || die "the host does not reach $url"; done
say "  the host reaches Pods and Services"
[ "$(k exec server -- cat /etc/hostname)" = server ] || die "exec does not reach the Pod"
say "  exec and logs work"

if KUBECONFIG=$cluster/pki/node-1.kubeconfig "$programs/kubectl" get secrets --all-namespaces >"$work/refusal" 2>&1; then die "a kubelet reads every Secret"; fi
grep -q 'Forbidden.*can only read namespaced object' "$work/refusal" || die "a kubelet should be refused, it got: $(cat "$work/refusal")"
say "  a kubelet reads no Secret that is none of its Pods'"

k logs -f server >"$work/log" &
follower=$!
began=$(now)
k delete pod server --wait --timeout=60s >/dev/null
took=$(($(now) - began))
wait "$follower" || true
grep -qx stopping "$work/log" || die "the Pod was not asked to stop before it was killed"
[ "$took" -lt 20000 ] || die "deleting a Pod took $took ms: it was killed, not asked"
say "  the Pod was deleted gracefully: $(seconds_since "$began")"
began=$(now)
kubectl delete namespace "$namespace" --wait --timeout=60s >/dev/null
say "  its namespace is gone: $(seconds_since "$began")"
say "cluster: works"
