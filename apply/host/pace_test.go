package host_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/fake"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
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

// TestRealGuestThatIsNeverReady boots a guest on a real libvirt that gives up: its step is not done although libvirt started it, whoever
// applies sees what its console said last, and what depends on it is not begun.
func TestRealGuestThatIsNeverReady(t *testing.T) {
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	t.Cleanup(func() { _ = driver.Close() })
	r := &rig{t: t, driver: driver, dir: t.TempDir()}
	r.start()
	t.Cleanup(func() { r.stop() })
	db := `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: db, annotations: {gitvirt.io/ready: agent}}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 128Mi}
        firmware:
          kernelBoot:
            kernelArgs: ` + libvirttest.GuestArguments + `
            container: {image: "` + libvirttest.PushGuest(t) + `", kernelPath: /boot/vmlinuz, initrdPath: /boot/initramfs.img}
        devices:
          disks:
          - {name: init, disk: {bus: virtio}}
      volumes:
      - name: init
        cloudInitNoCloud: {userData: "#!/bin/sh\necho the disk of the database is full\nexec /bin/poweroff\n"}
`
	want := desired(t, db, after(manifest("app", "Always", "64Mi"), "db"))
	p := r.eventually(want, "known", func(p *plan.Plan) bool { return p.Unknown == "" })
	var console []string
	results := apply.Run(t.Context(), apply.Target{Fleet: p.Fleet, Revision: p.Revision}, p.Executable(), r.host, apply.Options{
		Pace: apply.Pace{ReadyTimeout: 5 * time.Minute}, ConsoleLines: 3,
		Report: func(event apply.Event) { console = append(console, event.Console...) },
	})
	said := map[string]string{}
	for _, result := range results {
		if result.Err != nil {
			said[result.Step.Address.Name] = result.Err.Error()
		}
	}
	if !strings.HasSuffix(said["db"], ": the guest is not ready: the guest shut itself down") || !strings.Contains(said["app"], "db") {
		t.Errorf("got %q", said)
	}
	if len(console) != 3 || !slices.Equal(console[:2], []string{"the disk of the database is full", "gitvirt-guest: powering off"}) {
		t.Errorf("the console said %q", console)
	}
	if domains := daemon.Virsh("list", "--all", "--name"); strings.Contains(domains, "app") {
		t.Errorf("what depends on it was begun: %s", domains)
	}
}
