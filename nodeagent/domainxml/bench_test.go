package domainxml_test

import (
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/schemas"
)

// What KubeVirt v1.9.0 takes on a machine of the kind that these benchmarks were written on, in nanoseconds: to convert a spec
// and to marshal the domain, and both from the YAML.
const (
	kubevirtSmall, kubevirtSmallYAML     = 95_000, 410_000
	kubevirtWindows, kubevirtWindowsYAML = 169_000, 1_000_000
)

// named returns an example.
func named(b *testing.B, name string) example {
	b.Helper()
	for _, example := range append(examples(b), corpus(b)...) {
		if example.name == name {
			return example
		}
	}
	b.Fatalf("no example %s", name)
	return example{}
}

// report tells the time as a part of KubeVirt's.
func report(b *testing.B, kubevirt float64) {
	b.ReportAllocs()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/kubevirt, "of-KubeVirt")
}

// BenchmarkRender renders a VM that is decoded already, with the record in its metadata.
func BenchmarkRender(b *testing.B) {
	for _, bench := range []struct {
		name     string
		kubevirt float64
	}{{"vm-cirros", kubevirtSmall}, {"vmi-windows", kubevirtWindows}, {"windows-full", kubevirtWindows}} {
		b.Run(bench.name, func(b *testing.B) {
			machine := machineOf(named(b, bench.name).vm)
			for b.Loop() {
				if _, err := domainxml.Render(machine); err != nil {
					b.Fatal(err)
				}
			}
			report(b, bench.kubevirt)
		})
	}
}

// BenchmarkRenderYAML decodes, checks and renders.
func BenchmarkRenderYAML(b *testing.B) {
	for _, bench := range []struct {
		name     string
		kubevirt float64
	}{{"vm-cirros", kubevirtSmallYAML}, {"vmi-windows", kubevirtWindowsYAML}, {"windows-full", kubevirtWindowsYAML}} {
		b.Run(bench.name, func(b *testing.B) {
			manifest := []byte(named(b, bench.name).manifest)
			if file := schemas.Parse("vm.yaml", manifest); len(file.VMs) != 1 {
				b.Skip(file.Diagnostics)
			}
			for b.Loop() {
				if _, err := domainxml.Render(machineOf(schemas.Parse("vm.yaml", manifest).VMs[0])); err != nil {
					b.Fatal(err)
				}
			}
			report(b, bench.kubevirt)
		})
	}
}
