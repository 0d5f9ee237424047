package reconciler

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

const benchFleet = 5000

func benchManifest(i int, memory string) string {
	return fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: vm-%05d, labels: {app: web, tier: front}}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 30
      domain:
        cpu: {cores: 2}
        memory: {guest: %s}
        devices:
          disks:
          - {name: root, disk: {bus: virtio}}
          - {name: data, disk: {bus: virtio}}
          - {name: init, disk: {bus: virtio}}
          interfaces:
          - {name: default, masquerade: {}}
      networks:
      - {name: default, pod: {}}
      volumes:
      - name: root
        containerDisk: {image: "registry.example/os:1"}
      - name: data
        emptyDisk: {capacity: 1Gi}
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh\necho hello"}
`, i, memory)
}

func benchSnapshot(revision string, changed int) *sources.Snapshot {
	snapshot := &sources.Snapshot{Revision: revision}
	for i := range benchFleet {
		memory := "128Mi"
		if i < changed {
			memory = "256Mi"
		}
		snapshot.Files = append(snapshot.Files, schemas.Parse(fmt.Sprintf("vms/vm-%05d.yaml", i), []byte(benchManifest(i, memory))))
	}
	return snapshot
}

// still is a host whose picture only changes when it is told.
type still struct{ observed plan.Observed }

func (s *still) Observed() plan.Observed  { return s.observed }
func (s *still) Changed() <-chan struct{} { return nil }
func (s *still) Execute(ctx context.Context, _ apply.Target, _ plan.Step, _ func(string)) error {
	<-ctx.Done()
	return ctx.Err()
}
func (s *still) Await(context.Context, apply.Guest, time.Duration) error { return nil }

type nowhere struct{}

func (nowhere) Poll(context.Context) (*sources.Snapshot, error) { return nil, sources.ErrUnreadable }

func benchLoop(b *testing.B) (*loop, *still) {
	b.Helper()
	host := &still{}
	r, err := New(nowhere{}, host, Config{})
	if err != nil {
		b.Fatal(err)
	}
	l := newLoop(r)
	snapshot := benchSnapshot("1111111111111111111111111111111111111111", 0)
	host.observed = plan.FromDesired(schemas.Assemble(snapshot.Files), snapshot.Revision)
	l.polled(poll{snapshot: snapshot})
	l.round(b.Context(), time.Now())
	if p := r.View().Plan; len(p.Steps) > 0 || p.Unchanged != benchFleet {
		b.Fatalf("the plan is %s", p.SummaryLine())
	}
	return l, host
}

// BenchmarkRound5000 is a round of 5,000 VMs that are in memory. The goal with nothing to do is 5 ms.
func BenchmarkRound5000(b *testing.B) {
	b.Run("nothing changed", func(b *testing.B) {
		l, _ := benchLoop(b)
		b.ReportAllocs()
		for b.Loop() {
			l.round(b.Context(), time.Now())
		}
	})
	b.Run("host changed, nothing to do", func(b *testing.B) {
		l, host := benchLoop(b)
		b.ReportAllocs()
		for b.Loop() {
			domains := append([]*plan.Domain(nil), host.observed.Domains...)
			next := *domains[7]
			next.Addresses = []string{"192.0.2.7"}
			domains[7] = &next
			host.observed.Domains = domains
			l.round(b.Context(), time.Now())
		}
	})
	b.Run("one crashed", func(b *testing.B) {
		l, host := benchLoop(b)
		domains := append([]*plan.Domain(nil), host.observed.Domains...)
		next := *domains[7]
		next.State, next.Stop, next.RunningHash, next.RunningRecord = plan.StateStopped, plan.StopCrashed, "", nil
		domains[7] = &next
		host.observed.Domains = domains
		ctx, cancel := context.WithCancel(context.Background())
		b.ReportAllocs()
		for b.Loop() {
			l.replan = true
			l.round(ctx, time.Now())
		}
		cancel()
		l.workers.running.Wait()
	})
}

// BenchmarkRevision5000 is a new revision that changes one of 5,000 VMs, parsing left out: it is cached by the source.
func BenchmarkRevision5000(b *testing.B) {
	l, _ := benchLoop(b)
	first, second := l.snapshot, *l.snapshot
	second.Revision = "2222222222222222222222222222222222222222"
	second.Files = append([]*schemas.File(nil), first.Files...)
	second.Files[77] = schemas.Parse(second.Files[77].Path, []byte(benchManifest(77, "256Mi")))
	ctx, cancel := context.WithCancel(context.Background())
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.polled(poll{snapshot: []*sources.Snapshot{&second, first}[i%2]})
		l.round(ctx, time.Now())
	}
	b.StopTimer()
	cancel()
	l.workers.running.Wait()
}

// BenchmarkStatus5000 is the status of 5,000 VMs as it is written to git.
func BenchmarkStatus5000(b *testing.B) {
	l, _ := benchLoop(b)
	view := l.r.View()
	history := status.NewHistory(history(view))
	b.ReportAllocs()
	var files map[string][]byte
	for b.Loop() {
		fleet := &status.Fleet{Name: "demo", Revision: view.Revision(), VMs: history.Merge(view.Statuses(), view.Time)}
		files = fleet.Files()
	}
	size := 0
	for _, content := range files {
		size += len(content)
	}
	b.ReportMetric(float64(size), "file-bytes")
}

func history(view *View) []status.VM { return status.NewHistory(nil).Merge(view.Statuses(), view.Time) }

// BenchmarkMemory5000 is the heap of a loop with 5,000 VMs: manifests, domains, plan, view, status and its files. The
// goal for the whole controller is 200 MiB.
func BenchmarkMemory5000(b *testing.B) {
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / (1 << 20)
	}
	before := heap()
	for b.Loop() {
		l, _ := benchLoop(b)
		manifests := heap()
		p := newPublisher(l.r)
		vms := p.remember(l.r.View())
		p.published = (&status.Fleet{Name: "demo", VMs: vms}).Files()
		all := heap()
		b.ReportMetric(manifests-before, "loop-MiB")
		b.ReportMetric(all-manifests, "status-MiB")
		b.ReportMetric(all-before, "heap-MiB")
		runtime.KeepAlive(l)
		runtime.KeepAlive(p)
	}
}
