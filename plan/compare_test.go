package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/plan"
)

// TestCompare is about a plan that creates new, restarts changed and leaves same, and what became of the world since.
func TestCompare(t *testing.T) {
	same, before, after := manifest("same", "Always", "64Mi"), manifest("changed", "Always", "64Mi"), manifest("changed", "Always", "128Mi")
	fresh := manifest("new", "Always", "64Mi")
	wanted := []string{fresh, after, same}
	saved := build(t, desired(t, wanted...), running(t, before, same))
	touched := func(manifests []string, name string, change func(*plan.Domain)) []*plan.Domain {
		domains := running(t, manifests...)
		for _, domain := range domains {
			if domain.Address.Name == name {
				change(domain)
				domain.Fingerprint += "'"
			}
		}
		return domains
	}
	for _, test := range []struct {
		reason string
		have   []*plan.Domain
		done   int
		rest   int
		moved  []string
	}{
		{"nothing happened", running(t, before, same), 0, 2, nil},
		{"all of it was carried out", running(t, wanted...), 2, 0, nil},
		{"one step was", running(t, fresh, before, same), 1, 1, nil},
		{"the domain was touched", touched([]string{before, same}, "changed", func(*plan.Domain) {}), 0, 1, []string{"changed: the domain has changed"}},
		{
			"somebody edited it", touched([]string{before, same}, "changed", func(d *plan.Domain) {
				d.Drift = []plan.Change{{Path: "vcpu", Before: "1", After: "4"}, {Path: "password", Sensitive: true}}
			}), 0, 1,
			[]string{"changed: the domain has changed; changed outside gitvirt: vcpu was 1, is 4, password"},
		},
		{"it went down", touched([]string{before, same}, "changed", stopped(plan.StopCrashed)), 0, 1, []string{"changed: the domain has changed; planned: must be restarted (memory.guest: 64Mi -> 128Mi); now: will be changed and started"}},
		{"it vanished", running(t, same), 0, 1, []string{"changed: the domain was there, and is gone; planned: must be restarted (memory.guest: 64Mi -> 128Mi); now: will be created and started"}},
		{"somebody made the new one", touched([]string{manifest("new", "Halted", "64Mi"), before, same}, "new", func(*plan.Domain) {}), 0, 1, []string{"new: the domain was not there, and exists now"}},
		{"another one went down", touched([]string{before, same}, "same", stopped(plan.StopCrashed)), 0, 2, []string{"same: was as git wants it, and now it crashed; it will be started again"}},
		{"another appeared", running(t, before, same, manifest("stray", "Always", "64Mi")), 0, 2, []string{"stray: was as git wants it, and now it will be destroyed"}},
		{"a record cannot be read", touched([]string{before, same}, "changed", func(d *plan.Domain) { d.Problem = "garbage" }), 0, 1, []string{"changed: it is left as it is now: its domain's record cannot be understood: garbage"}},
		{"another's cannot", touched([]string{before, same}, "same", func(d *plan.Domain) { d.Problem = "garbage" }), 0, 2, []string{"same: was as git wants it, and is left as it is now"}},
	} {
		c := plan.Compare(saved, build(t, desired(t, wanted...), test.have))
		if len(c.Done) != test.done || len(c.Rest) != test.rest || len(c.Moved) != len(test.moved) {
			t.Errorf("%s: %+v", test.reason, c)
			continue
		}
		for i, moved := range c.Moved {
			if got := moved.Address.Name + ": " + moved.What; !strings.HasPrefix(got, test.moved[i]) {
				t.Errorf("%s: %q, want %q", test.reason, got, test.moved[i])
			}
		}
	}
}

func TestCompareWholePlans(t *testing.T) {
	one := manifest("a", "Always", "64Mi")
	saved := build(t, desired(t, one), nil)
	unknown, err := plan.Build(desired(t, one), plan.Observed{Unknown: "libvirt is down"}, plan.Options{Revision: "rev"})
	if err != nil {
		t.Fatal(err)
	}
	blocked, waits := *saved, *saved
	blocked.Steps, waits.Steps = slices.Clone(saved.Steps), slices.Clone(saved.Steps)
	blocked.Steps[0].Blocked = "no space"
	waits.Steps[0].Waits = []plan.Wait{{For: plan.WaitWindow, Reason: "the window nights opens at 2"}}
	if c := plan.Compare(&waits, saved); len(c.Moved) != 0 || len(c.Rest) != 1 {
		t.Errorf("a step that waited and need not any more is the same step: %+v", c)
	}
	policy := *saved
	policy.Policy = "another"
	for _, test := range []struct {
		saved, now *plan.Plan
		want       string
	}{
		{saved, unknown, "the host cannot be read: libvirt is down"},
		{unknown, saved, "the host could not be read when the plan was made"},
		{saved, &blocked, "blocked was (no), is no space"},
		{saved, &waits, "it waits now: the window nights opens at 2"},
		{saved, &policy, "the policy is another one"},
		{saved, build(t, desired(t, strings.Replace(fleet, "name: fleet", "name: other", 1), one), nil), `is "other"`},
	} {
		if got := fmt.Sprint(plan.Compare(test.saved, test.now).Moved); !strings.Contains(got, test.want) {
			t.Errorf("%s, want %q", got, test.want)
		}
	}
}
