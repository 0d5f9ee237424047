#!/usr/bin/env bash
# Measures rendering against KubeVirt's own converter in one run, on this machine, and prints the ratios.
set -euo pipefail
cd "$(dirname "$0")/.."
. hack/lib.sh

manifests=schemas/testdata/conformance
theirs=$(hack/kubevirt.sh bench "$manifests/vm-cirros.yaml" "$manifests/vmi-windows.yaml")
ours=$(go test -run '^$' -bench '^BenchmarkRender(YAML)?$/^(vm-cirros|vmi-windows)$' -benchmem ./nodeagent/domainxml)
printf '%s\n%s\n' "$theirs" "$ours" | awk '
  function allocs() { for (i = 1; i < NF; i++) if ($(i + 1) == "allocs/op") return $i }
  function ns() { for (i = 1; i < NF; i++) if ($(i + 1) == "ns/op") return $i }
  $1 ~ /^KubeVirt\// { split($1, name, "/"); key = (name[2] == "FromYAML" ? "YAML" : "") "/" name[3]; time[key] = ns(); count[key] = allocs() }
  $1 ~ /^BenchmarkRender/ {
    sub(/^BenchmarkRender/, "", $1); sub(/-[0-9]+$/, "", $1)
    printf "%-22s gitvirt %6.1f us, %4d allocs   KubeVirt %6.1f us, %4d allocs   ratio %.2f\n",
      ($1 ~ /^YAML/ ? "from " $1 : "render " substr($1, 2)), ns() / 1000, allocs(), time[$1] / 1000, count[$1], ns() / time[$1]
  }'
