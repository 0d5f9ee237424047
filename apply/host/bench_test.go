package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/plan"
)

// BenchmarkStepsThatAreDone carries out update steps that find their work done, as after an interruption: of VMs that are on
// libvirt's test driver as git has them, through the agent and its socket. Goals: 2 s for 1,000, and five times that for 5,000.
func BenchmarkStepsThatAreDone(b *testing.B) {
	var few, many spent
	for b.Loop() {
		few.add(stepsThatAreDone(b, 1000))
		many.add(stepsThatAreDone(b, 5000))
	}
	b.ReportMetric(0, "ns/op") // most of it is the making of the domains
	few.report(b, "/1000-steps")
	many.report(b, "/5000-steps")
	b.ReportMetric(many.time.Seconds()/few.time.Seconds(), "ratio")
	b.ReportMetric(many.cpu.Seconds()/few.cpu.Seconds(), "CPU-ratio")
}

// spent is what something took: by the clock, which counts what else the machine does, and of CPU in all threads.
type spent struct{ time, cpu time.Duration }

func (s *spent) add(other spent) { s.time, s.cpu = s.time+other.time, s.cpu+other.cpu }

func (s *spent) report(b *testing.B, per string) {
	b.Helper()
	b.ReportMetric(float64(s.time.Milliseconds())/float64(b.N), "ms"+per)
	b.ReportMetric(float64(s.cpu.Milliseconds())/float64(b.N), "CPU-ms"+per)
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// stepsThatAreDone returns what it takes to carry out a step for each of n VMs that are as it wants them.
func stepsThatAreDone(b *testing.B, n int) spent {
	b.Helper()
	manifests := make([]string, n)
	for i := range manifests {
		manifests[i] = fmt.Sprintf(`apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  name: vm-%05d
spec:
  runStrategy: Halted
  template:
    spec:
      domain:
        memory: {guest: 64Mi}
        devices:
          disks:
          - name: data
            disk: {bus: virtio}
          - name: init
            disk: {bus: virtio}
          interfaces:
          - {name: default, masquerade: {}}
      networks:
      - {name: default, pod: {}}
      volumes:
      - name: data
        emptyDisk: {capacity: 1Mi}
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh"}
`, i)
	}
	want := desired(b, manifests...)
	planned := func(h *host.Host) *plan.Plan {
		p, err := plan.Build(want, h.Observed(), plan.Options{Revision: "rev"})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	dir := b.TempDir()
	defined, p := defineInMemory(b, dir, planned)
	if len(p.Steps) != n || len(defined) != n {
		b.Fatalf("%d steps, %d definitions, unknown %q", len(p.Steps), len(defined), p.Unknown)
	}
	driver, definitions := testDriver(b, dir, defined)
	h, stop := behindAgent(b, dir, driver)
	defer stop()
	for len(h.Observed().Domains) < n || len(planned(h).Steps) > 0 {
		<-h.Changed()
	}
	again := p.Executable()
	for i, domain := range h.Observed().Domains { // both are ordered by address
		if again[i].Domain != domain.Name {
			b.Fatalf("the step is of %s, the domain is %s", again[i].Domain, domain.Name)
		}
		again[i].Action, again[i].Power, again[i].Precondition = plan.ActionUpdate, "", domain.Fingerprint
	}
	took := carryOut(b, h, p, again)
	if definitions.Load() > 0 {
		b.Fatalf("%d of the steps were not done", definitions.Load())
	}
	return took
}

func carryOut(b *testing.B, h *host.Host, p *plan.Plan, steps []plan.Step) spent {
	b.Helper()
	began, before := time.Now(), cpuTime(b)
	results := apply.Run(b.Context(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, steps, h, apply.Options{})
	took := spent{time: time.Since(began), cpu: cpuTime(b) - before}
	for _, result := range results {
		if result.Err != nil {
			b.Fatal(result.Err)
		}
	}
	return took
}

// defineInMemory carries a plan out on a hypervisor in memory, and returns the definitions. libvirt takes 15 ms to check one against
// its schema, and how long the first apply takes is not what is measured.
func defineInMemory(b *testing.B, dir string, planned func(*host.Host) *plan.Plan) (definitions []string, p *plan.Plan) {
	b.Helper()
	memory := fake.New()
	h, stop := behindAgent(b, dir, memory)
	defer stop()
	p = planned(h)
	carryOut(b, h, p, p.Executable())
	names, err := memory.Names(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range names {
		definitions = append(definitions, memory.Secret(name))
	}
	return definitions, p
}

// testDriver is libvirt's test driver with domains that are off, which counts what is defined from then on.
func testDriver(b *testing.B, dir string, definitions []string) (hypervisor.Hypervisor, *atomic.Int64) {
	b.Helper()
	const off = `<test:runstate xmlns:test="http://libvirt.org/schemas/domain/test/1.0">5</test:runstate>`
	var node strings.Builder
	node.WriteString("<node>")
	for _, definition := range definitions {
		definition = strings.Replace(definition, `type="qemu"`, `type="test"`, 1)
		node.WriteString(strings.Replace(definition, "</domain>", off+"</domain>", 1))
	}
	node.WriteString("</node>")
	path := filepath.Join(dir, "node.xml")
	if err := os.WriteFile(path, []byte(node.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	driver := libvirt.New("test://" + path)
	b.Cleanup(func() { _ = driver.Close() })
	defined := &atomic.Int64{}
	return pretending{driver, defined}, defined
}

// behindAgent is a hypervisor behind a real agent on a real socket.
func behindAgent(b *testing.B, dir string, below hypervisor.Hypervisor) (h *host.Host, stop func()) {
	b.Helper()
	agent, err := nodeagent.New(nodeagent.Config{Node: "host-1", StateDir: filepath.Join(dir, "agent"), DomainType: "qemu"}, below)
	if err != nil {
		b.Fatal(err)
	}
	listener, err := api.Listen(filepath.Join(dir, "agent.sock"))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := api.NewGRPCServer()
	api.RegisterAgentServer(server, nodeagent.NewServer(ctx, agent))
	conn, err := api.Dial(filepath.Join(dir, "agent.sock"))
	if err != nil {
		b.Fatal(err)
	}
	h = host.New(conn)
	var group sync.WaitGroup
	group.Go(func() { agent.Run(ctx) })
	group.Go(func() { _ = server.Serve(listener) })
	if _, err := h.ReadOnce(ctx); err != nil {
		b.Fatal(err)
	}
	group.Go(func() { h.Follow(ctx) })
	return h, func() {
		cancel()
		server.Stop()
		_ = conn.Close()
		group.Wait()
	}
}

// pretending is libvirt's test driver for an agent whose guests are QEMU's: the driver has a type of its own for its domains.
type pretending struct {
	*libvirt.Hypervisor
	defined *atomic.Int64
}

func (p pretending) Define(ctx context.Context, definition string) error {
	p.defined.Add(1)
	return p.Hypervisor.Define(ctx, strings.Replace(definition, `type="qemu"`, `type="test"`, 1))
}

func (p pretending) Domain(ctx context.Context, name string) (hypervisor.Domain, error) {
	domain, err := p.Hypervisor.Domain(ctx, name)
	domain.Config = strings.Replace(domain.Config, "<domain type='test'", "<domain type='qemu'", 1)
	domain.Live = strings.Replace(domain.Live, "<domain type='test'", "<domain type='qemu'", 1)
	return domain, err
}
