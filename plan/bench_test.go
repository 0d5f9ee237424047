package plan_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
)

func fleetOf(b *testing.B, n int, memory func(i int) string) []string {
	b.Helper()
	manifests := []string{fleet}
	for i := range n {
		manifests = append(manifests, manifest(fmt.Sprintf("vm-%05d", i), "Always", memory(i)))
	}
	return manifests
}

// BenchmarkBuild5000 is a warm plan of 5,000 VMs: both sides are in memory. Goal with one changed: 5 ms.
func BenchmarkBuild5000(b *testing.B) {
	base := running(b, fleetOf(b, 5000, func(int) string { return "128Mi" })...)
	for _, test := range []struct {
		name   string
		memory func(i int) string
	}{
		{"none changed", func(int) string { return "128Mi" }},
		{"one changed", func(i int) string { return map[bool]string{true: "256Mi", false: "128Mi"}[i == 77] }},
		{"all changed", func(int) string { return "256Mi" }},
	} {
		b.Run(test.name, func(b *testing.B) {
			want := desired(b, fleetOf(b, 5000, test.memory)...)
			b.ReportAllocs()
			var p *plan.Plan
			for b.Loop() {
				p = build(b, want, base)
			}
			encoded, err := json.Marshal(p)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(encoded)), "JSON-bytes")
		})
	}
}
