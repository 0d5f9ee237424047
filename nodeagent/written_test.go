package nodeagent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// counts tells how often a method of the hypervisor was called since it was asked last.
func (r *rig) counts(method fake.Method) func() int64 {
	var calls atomic.Int64
	r.fake.Fail(method, func(context.Context, string) error {
		calls.Add(1)
		return nil
	})
	return func() int64 { return calls.Swap(0) }
}

// TestStepThatIsDoneWritesNothing: a step that finds its work done defines nothing, whether the guest runs or not; whatever is
// otherwise than it would be written is written.
func TestStepThatIsDoneWritesNothing(t *testing.T) {
	const spec = `{
		"domain": {"memory": {"guest": "64Mi"}, "devices": {"disks": [{"name": "data", "disk": {"bus": "virtio"}}, {"name": "init", "disk": {"bus": "virtio"}}]}},
		"volumes": [{"name": "data", "emptyDisk": {"capacity": "1Mi"}}, {"name": "init", "cloudInitNoCloud": {"userData": "#!/bin/sh"}}]
	}`
	in := vm{name: "a", change: specOf(t, spec)}
	moreCPUs := func(xml string) string { return strings.Replace(xml, ">1</vcpu>", ">2</vcpu>", 1) }
	for _, test := range []struct {
		name string
		// first is the power with which the VM is made, then with which it is applied again.
		first, then string
		disturb     func(r *rig)
		change      func(*api.ExecuteRequest)
		defines     int64
	}{
		{name: "running", first: "on"},
		{name: "running, started again", first: "on", then: "on"},
		{name: "off"},
		{name: "off, then on", then: "on"},
		{name: "a new revision", first: "on", change: func(in *api.ExecuteRequest) { in.Vm.Revision = "next" }, defines: 1},
		{name: "another fleet", first: "on", change: func(in *api.ExecuteRequest) { in.Vm.Fleet = "other" }, defines: 1},
		{name: "moved in the repository", change: func(in *api.ExecuteRequest) { in.Vm.Source = "b.yaml:1" }, defines: 1},
		{name: "restarted", first: "on", then: "cycle", defines: 1},
		{name: "made anew", change: func(in *api.ExecuteRequest) { in.Replace = true }, defines: 1},
		{name: "a definition that drifted", first: "on", disturb: func(r *rig) {
			r.fake.EditConfig("default_a", moreCPUs)
			r.eventually("a", "drifted", func(d *api.Domain) bool { return len(d.GetDrift()) == 1 })
		}, defines: 1},
		{name: "a definition with something unknown", disturb: func(r *rig) {
			r.fake.EditConfig("default_a", func(xml string) string {
				return strings.Replace(xml, "<devices>", "<novelty/><devices>", 1)
			})
			r.eventually("a", "unread", func(d *api.Domain) bool { return len(d.GetUnread()) > 0 })
		}, defines: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, nil)
			r.must(r.request(in, test.first))
			if test.disturb != nil {
				test.disturb(r)
			}
			defined, replaced := r.counts(fake.Define), r.counts(fake.Replace)
			again := func() int64 {
				request := r.request(in, test.then)
				if test.change != nil {
					test.change(request)
				}
				r.must(request)
				return defined() + replaced()
			}
			if got := again(); got != test.defines {
				t.Errorf("it is defined %d times, want %d", got, test.defines)
			}
			if domain := r.domain("a"); len(domain.GetDrift())+len(domain.GetUnread()) > 0 {
				t.Errorf("the definition is left as it was: %v", domain)
			}
			if got := again(); got > 0 && test.then == "" && !strings.Contains(test.name, "anew") {
				t.Errorf("once more, and it is defined %d times", got)
			}
		})
	}
}

// TestTraceOfAStepThatWasInterrupted: the definition is there and its trace is not; the step leaves it.
func TestTraceOfAStepThatWasInterrupted(t *testing.T) {
	r := newRig(t, nil)
	in := vm{name: "a", change: specOf(t, `{"domain": {"memory": {"guest": "64Mi"}}}`)}
	r.must(r.request(in, ""))
	trace := filepath.Join(r.dir, "state", "vms", "default", "a", "record.xml")
	if err := os.Remove(trace); err != nil {
		t.Fatal(err)
	}
	defined := r.counts(fake.Define)
	r.must(r.request(in, ""))
	if _, err := os.Stat(trace); err != nil || defined() > 0 {
		t.Errorf("the trace: %v; or it is defined again", err)
	}
}
