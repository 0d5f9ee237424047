package host_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirttest"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestRetirement is the end of a removed machine where the Fleet keeps it for a day: it is shut down, waits, is started again
// when it comes back, and is destroyed a day after it was removed for good.
func TestRetirement(t *testing.T) { retirement(t, newRig(t)) }

// TestRetirementOnLibvirt is TestRetirement with a guest of a real libvirt.
func TestRetirementOnLibvirt(t *testing.T) {
	t.Parallel()
	daemon := libvirttest.Start(t)
	driver := libvirt.New(daemon.URI)
	defer func() { _ = driver.Close() }()
	dir, err := os.MkdirTemp("", "gitvirt-retire-") // not t.TempDir: QEMU's user must reach it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &rig{t: t, driver: driver, dir: dir}
	r.start()
	defer func() { r.stop() }()
	retirement(t, r)
}

func retirement(t *testing.T, r *rig) {
	t.Helper()
	kept := strings.Replace(fleet, "metadata:", "spec: {policy: {removalGrace: 24h, apply: {destroy: automatic}}}\nmetadata:", 1)
	with, without := desiredWith(t, kept, manifest("a", "RerunOnFailure", "64Mi")), desiredWith(t, kept)
	build := func(want *schemas.Desired, now time.Time) *plan.Plan {
		p, err := plan.Build(want, r.host.Observed(), plan.Options{Revision: "rev", Policy: policy.New(want.Fleet, policy.Options{Now: now})})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// step waits for a plan with one step that satisfies a condition, carries it out when it may be, and returns it.
	step := func(want *schemas.Desired, now time.Time, what string, condition func(*plan.Step) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			p := build(want, now)
			if len(p.Steps) == 1 && condition(&p.Steps[0]) {
				err := r.apply(p)
				if err == nil {
					return
				}
				if !errors.Is(err, apply.ErrStale) { // what happened last was still being seen
					t.Fatalf("%s: %v", what, err)
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("never %s: %q %+v", what, p.Unknown, p.Steps)
			}
		}
	}
	now := time.Now()
	r.converge(with)
	for range 2 { // it is removed, and comes back
		step(without, now, "to be retired", func(s *plan.Step) bool { return s.Action == plan.ActionRetire && s.Power == plan.PowerOff && s.Runs() })
		step(without, now.Add(23*time.Hour), "kept", func(s *plan.Step) bool {
			return s.Action == plan.ActionDestroy && len(s.Waits) == 1 && s.Waits[0].For == plan.WaitGrace && s.Waits[0].Until.After(now.Add(23*time.Hour))
		})
		step(with, now, "to come back", func(s *plan.Step) bool {
			return s.Action == plan.ActionUpdate && s.Reason == plan.ReasonReturned && s.Power == plan.PowerOn && s.Runs()
		})
		r.converge(with)
	}
	step(without, now, "to be retired once more", func(s *plan.Step) bool { return s.Action == plan.ActionRetire })
	step(without, time.Now().Add(25*time.Hour), "to be destroyed", func(s *plan.Step) bool { return s.Action == plan.ActionDestroy && s.Runs() })
	r.converge(without)
}
