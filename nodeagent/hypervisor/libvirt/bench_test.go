package libvirt

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
)

// BenchmarkStart compares defining and starting domains through this package with `virsh define && virsh start`, and
// one connection with several. Both ways take turns on the same daemon, so that a busy machine is busy for both.
// virsh/op and ratio are the comparison; below 1 this package is the faster one.
func BenchmarkStart(b *testing.B) {
	for _, parallel := range []int{1, 20} {
		for _, connections := range []int{1, DefaultConnections} {
			if parallel == 1 && connections > 1 {
				continue // the pool would open one
			}
			b.Run(fmt.Sprintf("parallel=%d/connections=%d", parallel, connections), func(b *testing.B) {
				daemon := libvirttest.Start(b)
				h := connect(b, daemon.URI, WithConnections(connections))
				kernel := libvirttest.GuestIdle.Kernel(b)
				names := make([]string, parallel)
				for i := range names {
					names[i] = fmt.Sprintf("vm-%02d", i)
				}
				files := b.TempDir()
				for _, name := range names {
					if err := os.WriteFile(filepath.Join(files, name), []byte(libvirttest.DomainXML(name, "", kernel)), 0o600); err != nil {
						b.Fatal(err)
					}
				}
				var ours, virsh time.Duration
				for b.Loop() {
					ours += each(b, names, func(name string) error {
						if err := h.Define(b.Context(), libvirttest.DomainXML(name, "", kernel)); err != nil {
							return err
						}
						return h.SetPower(b.Context(), name, hypervisor.PowerOn)
					})
					remove(b, h, names)
					virsh += each(b, names, func(name string) error {
						script := fmt.Sprintf("virsh -q -c '%[1]s' define --validate '%[2]s' && virsh -q -c '%[1]s' start '%[3]s'",
							daemon.URI, filepath.Join(files, name), name)
						output, err := exec.Command("sh", "-c", script).CombinedOutput()
						if err != nil {
							return fmt.Errorf("%w: %s", err, output)
						}
						return nil
					})
					remove(b, h, names)
				}
				b.ReportMetric(0, "ns/op") // the sum of both and of the removals says nothing
				b.ReportMetric(ours.Seconds()/float64(b.N), "s/op")
				b.ReportMetric(virsh.Seconds()/float64(b.N), "virsh-s/op")
				b.ReportMetric(ours.Seconds()/virsh.Seconds(), "ratio")
			})
		}
	}
}

// each does something for all names at once and returns how long that takes.
func each(b *testing.B, names []string, do func(name string) error) time.Duration {
	b.Helper()
	began := time.Now()
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if err := do(name); err != nil {
				b.Error(err)
			}
		})
	}
	all.Wait()
	return time.Since(began)
}

func remove(b *testing.B, h *Hypervisor, names []string) {
	b.Helper()
	each(b, names, func(name string) error {
		if err := h.SetPower(b.Context(), name, hypervisor.PowerOff); err != nil {
			return err
		}
		return h.Undefine(b.Context(), name)
	})
}

// BenchmarkDomains reads 200 domains that are off.
func BenchmarkDomains(b *testing.B) {
	daemon := libvirttest.Start(b)
	h := connect(b, daemon.URI)
	const domains = 200
	for i := range domains {
		if err := h.Define(b.Context(), libvirttest.DomainXML(fmt.Sprintf("vm-%03d", i), "", "")); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if all, err := h.Names(b.Context()); err != nil || len(all) != domains {
			b.Fatalf("%d domains, %v", len(all), err)
		}
	}
}

// BenchmarkReadDuringStarts reads one domain while 20 others start: what a call waits for when libvirtd has the five
// requests of a connection that it works on at a time.
func BenchmarkReadDuringStarts(b *testing.B) {
	for _, connections := range []int{1, DefaultConnections} {
		b.Run(fmt.Sprintf("connections=%d", connections), func(b *testing.B) {
			daemon := libvirttest.Start(b)
			h := connect(b, daemon.URI, WithConnections(connections))
			kernel := libvirttest.GuestIdle.Kernel(b)
			var names []string
			for i := range 20 {
				names = append(names, fmt.Sprintf("vm-%02d", i))
			}
			if err := h.Define(b.Context(), libvirttest.DomainXML("quiet", "", "")); err != nil {
				b.Fatal(err)
			}
			var reads int
			var total, longest time.Duration
			for b.Loop() {
				started := make(chan struct{})
				go func() {
					defer close(started)
					each(b, names, func(name string) error {
						if err := h.Define(b.Context(), libvirttest.DomainXML(name, "", kernel)); err != nil {
							return err
						}
						return h.SetPower(b.Context(), name, hypervisor.PowerOn)
					})
				}()
				for done := false; !done; {
					time.Sleep(20 * time.Millisecond)
					began := time.Now()
					if _, err := h.Domain(b.Context(), "quiet"); err != nil {
						b.Fatal(err)
					}
					took := time.Since(began)
					reads, total, longest = reads+1, total+took, max(longest, took)
					select {
					case <-started:
						done = true
					default:
					}
				}
				remove(b, h, names)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(total.Milliseconds())/float64(reads), "ms/read")
			b.ReportMetric(float64(longest.Milliseconds()), "ms-longest")
		})
	}
}
