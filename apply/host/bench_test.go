package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/host"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/plan"
)

// BenchmarkStepsThatAreDone carries out update steps that find their work done, as after an interruption: of VMs that are on
// libvirt's test driver as git has them, through the agent and its socket. Goals: 2 s for 1,000, and five times that for 5,000.
func BenchmarkStepsThatAreDone(b *testing.B) {
	var few, many time.Duration
	for b.Loop() {
		few += stepsThatAreDone(b, 1000)
		many += stepsThatAreDone(b, 5000)
	}
	b.ReportMetric(0, "ns/op") // most of it is the making of the domains
	b.ReportMetric(float64(few.Milliseconds())/float64(b.N), "ms/1000-steps")
	b.ReportMetric(float64(many.Milliseconds())/float64(b.N), "ms/5000-steps")
	b.ReportMetric(many.Seconds()/few.Seconds(), "ratio")
}

// stepsThatAreDone returns how long it takes to carry out a step for each of n VMs that are as it wants them.
func stepsThatAreDone(b *testing.B, n int) time.Duration {
	b.Helper()
	var defined atomic.Int64
	h := testDriverHost(b, &defined)
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
	now := func() *plan.Plan {
		p, err := plan.Build(want, h.Observed(), plan.Options{Revision: "rev"})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	run := func(p *plan.Plan, steps []plan.Step) time.Duration {
		began := time.Now()
		results := apply.Run(b.Context(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, steps, h, apply.Options{})
		took := time.Since(began)
		for _, result := range results {
			if result.Err != nil {
				b.Fatal(result.Err)
			}
		}
		return took
	}
	first := now()
	if len(first.Steps) != n {
		b.Fatalf("%d steps, unknown %q", len(first.Steps), first.Unknown)
	}
	run(first, first.Executable())
	preconditions := map[string]string{}
	for len(preconditions) < n || len(now().Steps) > 0 {
		<-h.Changed()
		for _, domain := range h.Observed().Domains {
			preconditions[domain.Name] = domain.Fingerprint
		}
	}
	again := first.Executable()
	for i := range again {
		again[i].Action, again[i].Power, again[i].Precondition = plan.ActionUpdate, "", preconditions[again[i].Domain]
	}
	defined.Store(0)
	took := run(first, again)
	if defined.Load() > 0 {
		b.Fatalf("%d of the steps were not done", defined.Load())
	}
	return took
}

// testDriverHost is libvirt's test driver, without domains, behind a real agent on a real socket. It counts the definitions.
func testDriverHost(b *testing.B, defined *atomic.Int64) *host.Host {
	b.Helper()
	dir := b.TempDir()
	node := filepath.Join(dir, "node.xml")
	if err := os.WriteFile(node, []byte("<node/>"), 0o600); err != nil {
		b.Fatal(err)
	}
	driver := libvirt.New("test://" + node)
	agent, err := nodeagent.New(nodeagent.Config{Node: "host-1", StateDir: filepath.Join(dir, "agent"), DomainType: "qemu"}, pretending{driver, defined})
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
	h := host.New(conn)
	var group sync.WaitGroup
	group.Go(func() { agent.Run(ctx) })
	group.Go(func() { _ = server.Serve(listener) })
	if _, err := h.ReadOnce(ctx); err != nil {
		b.Fatal(err)
	}
	group.Go(func() { h.Follow(ctx) })
	b.Cleanup(func() {
		cancel()
		server.Stop()
		_ = conn.Close()
		group.Wait()
		_ = driver.Close()
	})
	return h
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
