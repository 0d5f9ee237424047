package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// after makes a machine depend on others.
func after(manifest, others string) string {
	return strings.Replace(manifest, "metadata:\n", "metadata:\n  annotations: {gitvirt.io/depends-on: \""+others+"\"}\n", 1)
}

// TestOrderedPlanInterruptedAnywhere ends the agent at the n-th call of the hypervisor while machines that depend on each
// other are made, restarted and removed, for every n: the end is the same, and no guest is ever started before the one that it
// depends on runs.
func TestOrderedPlanInterruptedAnywhere(t *testing.T) {
	calls := orderedInterruptedAt(t, math.MaxInt64)
	for n := range calls {
		t.Run(fmt.Sprintf("call %d of %d", n+1, calls), func(t *testing.T) {
			t.Parallel()
			orderedInterruptedAt(t, n+1)
		})
	}
}

func orderedInterruptedAt(t *testing.T, n int64) int64 {
	t.Helper()
	r := newRig(t)
	machines := func(memory string) *schemas.Desired {
		return desired(t, manifest("db", "Always", memory), after(manifest("app", "Always", memory), "db"), after(manifest("web", "Always", memory), "app"))
	}
	needs := map[string]string{"default_app": "default_db", "default_web": "default_app"}
	var calls, early atomic.Int64
	inside := atomic.Bool{}
	for _, method := range []fake.Method{fake.Define, fake.SetPower, fake.SetMetadata, fake.Undefine} {
		r.hypervisor.Fail(method, func(_ context.Context, name string) error {
			if calls.Add(1) == n {
				r.end()
				return context.Canceled
			}
			other, needed := needs[name]
			if method != fake.SetPower || !needed || !inside.CompareAndSwap(false, true) {
				return nil
			}
			defer inside.Store(false)
			now, err := r.hypervisor.Domain(context.Background(), name)
			if err == nil && now.State == hypervisor.StateShutoff {
				if needed, err := r.hypervisor.Domain(context.Background(), other); err != nil || needed.State != hypervisor.StateRunning {
					early.Add(1)
				}
			}
			return nil
		})
	}
	mended := false
	for _, want := range []*schemas.Desired{machines("64Mi"), machines("128Mi"), desired(t)} {
		r.converge(want, func() {
			if !mended && calls.Load() >= n {
				mended = true
				r.restart()
			}
		})
	}
	if early.Load() > 0 {
		t.Errorf("%d guests were started before what they depend on", early.Load())
	}
	if r.state("default_db")+r.state("default_app")+r.state("default_web") != "" {
		t.Error("something is left")
	}
	return calls.Load()
}

// TestConsoleOfAGuestThatIsNotReady: whoever applies sees why, and the error, which others see, holds none of it.
func TestConsoleOfAGuestThatIsNotReady(t *testing.T) {
	r := newRig(t)
	want := desired(t, strings.Replace(manifest("a", "Always", "64Mi"), "metadata:\n", "metadata:\n  annotations: {gitvirt.io/ready: agent}\n", 1))
	p := r.eventually(want, "known", func(p *plan.Plan) bool { return p.Unknown == "" })
	r.hypervisor.Fail(fake.SetPower, func(context.Context, string) error {
		return os.WriteFile(filepath.Join(r.dir, "agent", "vms", "default", "a", "console.log"), []byte("booting\nroot password is hunter2\n"), 0o600)
	})
	var console []string
	results := apply.Run(context.Background(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, p.Executable(), r.host, apply.Options{
		Pace: apply.Pace{ReadyTimeout: time.Second}, ConsoleLines: 10,
		Report: func(event apply.Event) { console = append(console, event.Console...) },
	})
	if err := results[0].Err; !errors.Is(err, apply.ErrNotReady) || strings.Contains(err.Error(), "hunter2") ||
		!strings.HasSuffix(err.Error(), ": the guest is not ready: the guest agent does not answer") {
		t.Errorf("got %v", err)
	}
	if strings.Join(console, "|") != "booting|root password is hunter2" {
		t.Errorf("the console said %q", console)
	}
}
