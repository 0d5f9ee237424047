package nodeagent_test

import (
	"sync/atomic"
	"testing"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
)

// TestRetire: the domain of a removed VM is shut down, and says since when it is retired until it is defined again. Retiring
// it again does not begin the time anew.
func TestRetire(t *testing.T) {
	var now atomic.Int64
	r := unstartedRig(t)
	r.now = func() time.Time { return time.Unix(now.Load(), 0) }
	r.begin()
	now.Store(1000)
	a := vm{name: "a", change: func(*kubevirtv1.VirtualMachineInstanceSpec) {}}
	r.must(r.request(a, "on"))
	retire := func() {
		t.Helper()
		request := r.request(a, "off")
		request.Define, request.Vm, request.Retire = false, nil, true
		r.must(request)
	}
	want := func(what, state string, since int64) {
		t.Helper()
		r.eventually("a", what, func(d *api.Domain) bool { return d.GetState() == state && d.GetRetiredSinceUnix() == since })
	}
	retire()
	want("retired", "stopped", 1000)
	now.Store(2000)
	retire()
	want("retired once more", "stopped", 1000)
	r.stop()
	r.begin()
	want("told by an agent that was started anew", "stopped", 1000)
	r.must(r.request(a, "on"))
	want("back again", "running", 0)
	now.Store(3000)
	retire()
	want("retired anew", "stopped", 3000)
}
