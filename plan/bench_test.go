package plan_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

const benchVMs = 5000

func fleetOf(b *testing.B, edit func(i int, manifest string) string) []string {
	b.Helper()
	manifests := []string{fleet}
	for i := range benchVMs {
		text := manifest(fmt.Sprintf("vm-%05d", i), "Always", "128Mi")
		if edit != nil {
			text = edit(i, text)
		}
		manifests = append(manifests, text)
	}
	return manifests
}

func moreMemory(_ int, manifest string) string {
	return strings.Replace(manifest, "guest: 128Mi", "guest: 256Mi", 1)
}

func anotherDisk(_ int, manifest string) string {
	manifest = strings.Replace(manifest, "          - name: init\n", "          - name: extra\n            disk: {bus: virtio}\n          - name: init\n", 1)
	return strings.Replace(manifest, "      volumes:\n", "      volumes:\n      - name: extra\n        emptyDisk: {capacity: 2Gi}\n", 1)
}

// muchElse adds a disk, an interface and labels.
func muchElse(i int, manifest string) string {
	manifest = strings.Replace(anotherDisk(i, manifest), "metadata:\n", "metadata:\n  labels: {app: web, tier: front}\n", 1)
	manifest = strings.Replace(manifest, "          disks:\n", "          interfaces:\n          - {name: default, masquerade: {}}\n          - {name: lan, bridge: {}}\n          disks:\n", 1)
	return strings.Replace(manifest, "      volumes:\n", "      networks:\n      - {name: default, pod: {}}\n      - {name: lan, multus: {networkName: lan}}\n      volumes:\n", 1)
}

// cpuTime measures the CPU that f takes in all threads, garbage collection included, per run of the loop.
func cpuTime(b *testing.B, f func()) {
	b.Helper()
	spent := func() float64 {
		var usage syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
			b.Fatal(err)
		}
		return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e6
	}
	b.ReportAllocs()
	start, runs := spent(), 0
	for b.Loop() {
		f()
		runs++
	}
	b.ReportMetric((spent()-start)/float64(runs), "CPU-ms/op")
}

func planOf(b *testing.B, want *schemas.Desired, have plan.Observed) *plan.Plan {
	b.Helper()
	p, err := plan.Build(want, have, plan.Options{Revision: "rev"})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// BenchmarkBuild5000 is a warm plan of 5,000 VMs: both sides are in memory. Goals: 5 ms with one changed, 250 ms of CPU with all
// changed.
func BenchmarkBuild5000(b *testing.B) {
	have := plan.FromDesired(desired(b, fleetOf(b, nil)...), "base")
	one := func(i int, manifest string) string {
		if i == 77 {
			return moreMemory(i, manifest)
		}
		return manifest
	}
	for _, test := range []struct {
		name string
		edit func(int, string) string
	}{
		{"none changed", nil},
		{"one changed", one},
		{"all changed: memory", moreMemory},
		{"all changed: a disk", anotherDisk},
		{"all changed: a disk, an interface, labels", muchElse},
	} {
		b.Run(test.name, func(b *testing.B) {
			want := desired(b, fleetOf(b, test.edit)...)
			var p *plan.Plan
			cpuTime(b, func() { p = planOf(b, want, have) })
			encoded, err := json.Marshal(p)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(len(encoded)), "JSON-bytes")
		})
	}
}

// BenchmarkRender5000 writes a plan of 5,000 changed VMs. Goal: 50 ms of CPU each.
func BenchmarkRender5000(b *testing.B) {
	have := plan.FromDesired(desired(b, fleetOf(b, nil)...), "base")
	p := planOf(b, desired(b, fleetOf(b, moreMemory)...), have)
	b.Run("text", func(b *testing.B) {
		cpuTime(b, func() {
			if err := p.Text(io.Discard, plan.TextOptions{}); err != nil {
				b.Fatal(err)
			}
		})
	})
	b.Run("JSON", func(b *testing.B) {
		cpuTime(b, func() {
			if err := p.JSON(io.Discard, ""); err != nil {
				b.Fatal(err)
			}
		})
	})
	for name, budget := range map[string]int{"Markdown": 0, "Markdown for a comment": 65536} {
		b.Run(name, func(b *testing.B) {
			cpuTime(b, func() {
				if p.Markdown(plan.MarkdownOptions{Budget: budget}) == "" {
					b.Fatal("nothing")
				}
			})
		})
	}
}
