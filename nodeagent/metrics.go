package nodeagent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/guestmetrics"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/schemas"
)

// usageReader is a hypervisor that knows what its guests use.
type usageReader interface {
	// Usage returns what a running guest has and has used.
	Usage(ctx context.Context, name string) (hypervisor.Usage, error)
}

// metricsInterval is how often the disks of guests with downwardMetrics are written, KubeVirt's.
const metricsInterval = 5 * time.Second

// metricsLimit bounds the reading of one guest's figures: a hypervisor that hangs must not hold up the others.
const metricsLimit = 2 * time.Second

// metricsFollower gives running guests their downward metrics. It keeps nothing that it could not read again: an agent that
// restarts goes on.
type metricsFollower struct {
	agent *Agent
	// devices remembers, by the hash of a record, whether it has the device.
	devices map[string]bool
	// serving are the guests that are being answered, by domain.
	mu      sync.Mutex
	serving map[string]context.CancelFunc
	servers sync.WaitGroup
}

// followMetrics runs until ctx ends.
func (a *Agent) followMetrics(ctx context.Context) {
	f := &metricsFollower{agent: a, devices: map[string]bool{}, serving: map[string]context.CancelFunc{}}
	defer f.servers.Wait()
	tick := time.NewTicker(metricsInterval)
	defer tick.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look writes the disks of all running guests, and sees to it that those with a device are answered.
func (f *metricsFollower) look(ctx context.Context) {
	domains, _ := f.agent.view.all()
	devices := map[string]bool{}
	answered := map[string]bool{}
	for _, now := range domains {
		record := now.record
		if now.running != nil {
			record = now.running
		}
		if record == nil || !now.domain.State.Active() {
			continue
		}
		for _, volume := range record.Volumes {
			if volume.Kind == "downwardMetrics" {
				f.write(ctx, now.domain.Name, record, volume.Path)
			}
		}
		has, known := f.devices[record.Hash]
		if !known {
			has = hasMetricsDevice(record)
		}
		devices[record.Hash] = has
		if has {
			answered[now.domain.Name] = true
			f.serve(ctx, now.domain.Name, record)
		}
	}
	f.devices = devices
	f.stopOthers(answered)
}

func hasMetricsDevice(record *domainxml.Record) bool {
	object, _, err := schemas.ParseRecord(record.Spec, true)
	return err == nil && object.Spec.Template.Spec.Domain.Devices.DownwardMetrics != nil
}

// write puts the present figures on a disk. What fails now is tried again in a moment.
func (f *metricsFollower) write(ctx context.Context, name string, record *domainxml.Record, path string) {
	body, err := f.report(ctx, name, record)
	if err == nil {
		err = guestmetrics.WriteDisk(path, body)
	}
	if err != nil && ctx.Err() == nil {
		f.agent.config.Logger.Debug("cannot write downward metrics", "domain", name, "error", err)
	}
}

// report returns the figures of one guest.
func (f *metricsFollower) report(ctx context.Context, name string, record *domainxml.Record) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsLimit)
	defer cancel()
	host := guestmetrics.ReadHost("/", f.agent.config.Node, time.Now())
	reader, ok := f.agent.hypervisor.(usageReader)
	if !ok {
		object, _, err := schemas.ParseRecord(record.Spec, true)
		if err != nil {
			return nil, fmt.Errorf("reading the record: %w", err)
		}
		vcpus, memory := domainxml.Size(&object.Spec.Template.Spec)
		return guestmetrics.Document(host, guestmetrics.Guest{VCPUs: vcpus, MemoryKiB: uint64(memory) / 1024})
	}
	usage, err := reader.Usage(ctx, name)
	if err != nil {
		return nil, err
	}
	host.Hypervisor = usage.Hypervisor
	return guestmetrics.Document(host, guestmetrics.Guest{VCPUs: usage.VCPUs, MemoryKiB: usage.MemoryKiB, CPUTime: usage.CPUTime})
}

// serve answers a guest until it is off; a connection that broke is made again at the next look.
func (f *metricsFollower) serve(ctx context.Context, name string, record *domainxml.Record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.serving[name] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	f.serving[name] = cancel
	server := guestmetrics.Server{
		Socket: f.agent.local.files.MetricsSocket(record.Made()),
		Report: func(ctx context.Context) ([]byte, error) { return f.report(ctx, name, record) },
	}
	f.servers.Go(func() {
		defer cancel()
		if err := server.Serve(ctx); err != nil && ctx.Err() == nil {
			f.agent.config.Logger.Debug("cannot answer a guest's questions for metrics", "domain", name, "error", err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.serving, name)
	})
}

// stopOthers ends the answers to guests that do not run any more.
func (f *metricsFollower) stopOthers(answered map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, cancel := range f.serving {
		if !answered[name] {
			cancel()
		}
	}
}
