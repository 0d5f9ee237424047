package nodeagent_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
)

// TestInterruptedAnywhere lets the n-th call of a story fail, for every n, or ends the agent at it: the VM comes to have
// its device and its credentials all the same, no device is lost or handed out twice, and nothing is left of what is gone.
func TestInterruptedAnywhere(t *testing.T) {
	for _, kill := range []bool{false, true} {
		calls := interruptAt(t, math.MaxInt64, kill)
		for n := range calls {
			t.Run(fmt.Sprintf("killed %v, call %d of %d", kill, n+1, calls), func(t *testing.T) {
				t.Parallel()
				interruptAt(t, n+1, kill)
			})
		}
	}
}

// interruptAt plays the story with a fault at its n-th call, and returns how many calls there were.
func interruptAt(t *testing.T, n int64, kill bool) int64 {
	t.Helper()
	r := newRig(t, pciDevice("0000:01:00.0", "1"))
	var calls atomic.Int64
	var hit atomic.Bool
	methods := []fake.Method{fake.Domain, fake.Define, fake.SetPower, fake.SetMetadata, fake.Undefine}
	for _, method := range methods {
		r.fake.Fail(method, func(context.Context, string) error {
			if calls.Add(1) != n {
				return nil
			}
			hit.Store(true)
			return hypervisor.ErrUnavailable
		})
	}
	agent := &recorder{}
	step := func(make func() *api.ExecuteRequest) {
		t.Helper()
		r.insist(make, func() {
			if kill && hit.CompareAndSwap(true, false) {
				r.stop()
				r.start(r.fake, nodeagent.WithHostRoot(filepath.Join(r.dir, "host")))
			}
		})
	}
	a := gpu("a")
	device := a.change
	credentials := specOf(t, `{"accessCredentials":[{"userPassword":{"source":{"secret":{"secretName":"p"}},"propagationMethod":{"qemuGuestAgent":{}}}}]}`)
	a.change = func(s *kubevirtv1.VirtualMachineInstanceSpec) { credentials(s); device(s) }
	a.contents = map[string]map[string]string{"accessCredentials/0": {"admin": "secret"}}
	step(func() *api.ExecuteRequest { return r.request(a, "on") })
	r.fake.SetGuestAgent("default_a", agent.answer)
	agent.saw(t, `"username":"admin"`)
	step(func() *api.ExecuteRequest { return r.request(a, "cycle") })
	step(func() *api.ExecuteRequest { return r.remove("a") })
	step(func() *api.ExecuteRequest { return r.request(gpu("b"), "on") })
	for _, method := range methods {
		r.fake.Fail(method, nil) // the story is over; what it makes fail must not fail here
	}
	if config := r.config("b"); !strings.Contains(config, `bus="0x01"`) {
		t.Errorf("b has not the device that a gave back:\n%s", config)
	}
	if left, _ := filepath.Glob(filepath.Join(r.dir, "state", "vms", "default", "a", "*")); len(left) > 0 {
		t.Errorf("left of a: %q", left)
	}
	return calls.Load()
}

func (r *rig) remove(name string) *api.ExecuteRequest {
	return &api.ExecuteRequest{
		Address: "VirtualMachine/default/" + name, Domain: "default_" + name, Precondition: r.domain(name).GetFingerprint(), Destroy: true,
	}
}

// insist repeats a step, made anew for what is there each time, until it is done.
func (r *rig) insist(make func() *api.ExecuteRequest, between func()) {
	r.t.Helper()
	var err error
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		request := make()
		if request.GetDestroy() && r.domain(strings.TrimPrefix(request.GetDomain(), "default_")) == nil {
			return
		}
		err = r.execute(request)
		between()
		if err == nil {
			return
		}
		if code := status.Code(err); code != codes.Unavailable && code != codes.Aborted && code != codes.Canceled {
			r.t.Fatalf("the step failed for good: %v", err)
		}
	}
	r.t.Fatalf("the step is never done: %v", err)
}
