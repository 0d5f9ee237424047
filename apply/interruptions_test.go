package apply_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/plan/policy"
	"github.com/gitvirt/gitvirt/schemas"
)

// TestAPlaceIsKept: a guest that is interrupted keeps its place of a budget until it is ready, although its machine has
// another label meanwhile, and although another process has begun it.
func TestAPlaceIsKept(t *testing.T) {
	one := intstr.FromInt32(1)
	selector := schemas.Selector{LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "db"}}}
	fleet := &schemas.Fleet{Spec: schemas.FleetSpec{Policy: schemas.Policy{Budgets: []schemas.Budget{{Name: "db", Selector: selector, RestartPerHost: &one}}}}}
	bounds := func(tier string) []policy.HostBound {
		domain := func(name string) *plan.Domain {
			return &plan.Domain{
				Name: "default_" + name, Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name},
				State: plan.StateRunning, Record: []byte(`{"metadata":{"labels":{"tier":"` + tier + `"}}}`),
			}
		}
		return policy.New(fleet, policy.Options{}).HostBounds("", &schemas.Desired{}, plan.Observed{Domains: []*plan.Domain{domain("a"), domain("b")}})
	}
	step := func(name, tier string) *plan.Step {
		vm := &schemas.VM{Object: &kubevirtv1.VirtualMachine{}}
		vm.Object.Labels = map[string]string{"tier": tier}
		return &plan.Step{Address: schemas.Address{Kind: schemas.KindVirtualMachine, Namespace: "default", Name: name}, Domain: "default_" + name, Power: plan.PowerCycle, VM: vm}
	}
	same := apply.NewInterruptions()
	same.Bound(bounds("db"))
	same.Begin(step("a", "x"))
	next := apply.NewInterruptions()
	next.Resume(step("a", "x"), []policy.Named{{Namespace: "default", Labels: map[string]string{"tier": "db"}}})
	for why, n := range map[string]*apply.Interruptions{"the same process": same, "the next process": next} {
		n.Bound(bounds("x"))
		if n.Hold(step("b", "db")) == "" {
			t.Errorf("%s: a second guest is interrupted", why)
		}
		n.End("default_a")
		if why := n.Hold(step("b", "db")); why != "" {
			t.Errorf("a guest waits for nobody: %s", why)
		}
	}
}
