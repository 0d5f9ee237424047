package kubernetes_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

const service = `apiVersion: v1
kind: Service
metadata: {name: web, labels: {team: shop}}
spec:
  selector: {gitvirt.io/vm: web}
  ports: [{port: 80}]
`

const claim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 1Gi}}
`

// all carries out whatever a plan has, and waits until it is empty.
func (r *rig) all(manifests ...string) {
	r.t.Helper()
	for _, step := range r.plan(manifests...).Executable() {
		if err := r.platform.Execute(context.Background(), apply.Target{Fleet: "demo", Revision: "4fa1c7e"}, step, func(string) {}); err != nil {
			r.t.Fatal(err)
		}
	}
	r.eventually("nothing is left to do", func() bool {
		p := r.plan(manifests...)
		return len(p.Steps) == 0 && len(p.Held) == 0
	})
}

// TestPassedOn: Services and claims are applied as they are; what somebody changes of what git says is put right, what Kubernetes fills
// in is not told, and a claim outlives its manifest.
func TestPassedOn(t *testing.T) {
	r := newRig(t)
	r.all(service, claim)
	services, claims := r.client.CoreV1().Services("default"), r.client.CoreV1().PersistentVolumeClaims("default")
	live, err := services.Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil || live.Spec.Selector["gitvirt.io/vm"] != "web" || live.Labels["team"] != "shop" {
		t.Fatalf("%+v, %v", live, err)
	}
	live.Spec.Ports[0].Protocol, live.Spec.ClusterIP = corev1.ProtocolTCP, "10.96.0.7"
	live.Spec.Ports[0].TargetPort = intstr.FromInt32(80)
	if live, err = services.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	live.Spec.Selector["gitvirt.io/vm"] = "other"
	if _, err := services.Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the edit is seen", func() bool { return len(r.plan(service, claim).Steps) == 1 })
	step := r.plan(service, claim).Steps[0]
	want := []plan.Change{{Path: "spec.selector.gitvirt.io/vm", Before: "web", After: "other", Consequence: plan.ConsequenceNone}}
	if diff := cmp.Diff(want, step.Drift); diff != "" || step.Reason != plan.ReasonDrift {
		t.Errorf("%s: %s", step.Reason, diff)
	}
	r.all(service, claim)

	more := strings.Replace(service, "port: 80", "port: 81", 1)
	step = r.plan(more, claim).Steps[0]
	if len(step.Changes) != 1 || step.Changes[0].Path != "spec.ports" || step.Action != plan.ActionUpdate {
		t.Errorf("%+v", step)
	}
	r.all(more, claim)

	r.all()
	if _, err := services.Get(t.Context(), "web", metav1.GetOptions{}); err == nil {
		t.Error("the Service is still there")
	}
	if _, err := claims.Get(t.Context(), "data", metav1.GetOptions{}); err != nil {
		t.Errorf("the claim: %v", err)
	}
}

// TestStaleObjects: a step about an object is for the object as it was.
func TestStaleObjects(t *testing.T) {
	r := newRig(t)
	step := r.plan(service).Steps[0]
	r.all(service)
	if err := r.platform.Execute(t.Context(), apply.Target{Fleet: "demo"}, step, func(string) {}); !errors.Is(err, apply.ErrStale) {
		t.Error(err)
	}
}

// TestClaimsOfTheCluster: a machine may use a claim that is in the cluster and not in git, and a claim a volume that is.
func TestClaimsOfTheCluster(t *testing.T) {
	r := newRig(t)
	p := r.plan(strings.Replace(web, "emptyDisk: {capacity: 1Gi}", "persistentVolumeClaim: {claimName: others}", 1))
	if len(p.Steps) != 1 || p.Steps[0].Blocked != "" {
		t.Errorf("%+v", p)
	}
	p = r.plan(strings.Replace(claim, "spec:\n", "spec:\n  volumeName: others\n", 1),
		strings.Replace(web, "emptyDisk: {capacity: 1Gi}", "persistentVolumeClaim: {claimName: data}", 1))
	if len(p.Steps) != 2 || p.Steps[0].Blocked != "" || p.Steps[1].Blocked != "" {
		t.Errorf("%+v", p)
	}
}
