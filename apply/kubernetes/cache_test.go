package kubernetes

import (
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// countingKeys takes every signature, and counts how many it was asked about.
type countingKeys struct{ asked atomic.Int64 }

func (k *countingKeys) Sign(payload []byte) ([]byte, error) { return payload[:1], nil }

func (k *countingKeys) Verify(_, signature []byte) bool {
	k.asked.Add(1)
	return len(signature) > 0
}

// TestHeartbeatsAreNoNews: what a kubelet tells of its node every few minutes must not have the whole fleet planned again.
func TestHeartbeatsAreNoNews(t *testing.T) {
	node := func(version string, change func(*corev1.Node)) *corev1.Node {
		out := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "1", ResourceVersion: version},
			Status: corev1.NodeStatus{
				Allocatable: corev1.ResourceList{pods.ResourceKVM: resource.MustParse("110")},
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
		change(out)
		stripped, err := stripNode(out)
		if err != nil {
			t.Fatal(err)
		}
		return stripped.(*corev1.Node)
	}
	before := node("1", func(*corev1.Node) {})
	for what, c := range map[string]struct {
		change func(*corev1.Node)
		news   int
	}{
		"a heartbeat":     {func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.Now() }, 0},
		"images":          {func(n *corev1.Node) { n.Status.Images = []corev1.ContainerImage{{SizeBytes: 1}} }, 0},
		"it is silent":    {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, 1},
		"it has no KVM":   {func(n *corev1.Node) { n.Status.Allocatable = nil }, 1},
		"it was made new": {func(n *corev1.Node) { n.UID = "2" }, 1},
	} {
		news := 0
		handled := unlessSame(sameNode, handler(func(*corev1.Node) { news++ }, func(*corev1.Node) { news += 10 }, func() {}))
		handled.OnUpdate(before, node("2", c.change))
		if news != c.news {
			t.Errorf("%s: told %d times, want %d", what, news, c.news)
		}
	}
	seen, lost := 0, 0
	handled := unlessSame(sameNode, handler(func(*corev1.Node) { seen++ }, func(*corev1.Node) { lost++ }, func() {}))
	handled.OnAdd(before, true)
	handled.OnDelete(before)
	if seen != 1 || lost != 1 {
		t.Errorf("seen %d times, lost %d times, want once each", seen, lost)
	}
}

// TestSignaturesAreVerifiedOnce: a Pod is told of many times, and what the controller wrote on it is looked at again only when it is another.
func TestSignaturesAreVerifiedOnce(t *testing.T) {
	keys := &countingKeys{}
	p, err := New(fake.NewClientset(), Config{Image: "launcher:1", Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	record := []byte(`{"metadata":{"name":"web"},"spec":{"runStrategy":"Always","template":{"spec":{"domain":{},"networks":[{"name":"default","pod":{}}]}}}}`)
	step := podapi.Step{ID: "1", Address: "VirtualMachine/default/web", Hash: podapi.Digest(record)}
	annotations, err := step.Annotate("default", "virt-launcher-web", record, keys.Sign)
	if err != nil {
		t.Fatal(err)
	}
	tell := func(phase corev1.PodPhase) *guest {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "virt-launcher-web", UID: "1", Annotations: annotations}}
		pod.Status.Phase, pod.Status.PodIPs = phase, []corev1.PodIP{{IP: "10.0.0.7"}}
		p.sawPod(pod)
		seen, _ := p.get("default", "virt-launcher-web")
		return seen
	}
	for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodRunning} {
		if seen := tell(phase); seen.forged != nil || seen.phase != phase || !slices.Equal(seen.addresses, []string{"10.0.0.7"}) {
			t.Fatalf("%s: %+v", phase, seen)
		}
	}
	if asked := keys.asked.Load(); asked != 1 {
		t.Errorf("%d signatures were verified, want one", asked)
	}
	// The same step and signature, and another record.
	annotations[podapi.AnnotationRecord] += " "
	if seen := tell(corev1.PodRunning); seen.forged == nil || p.Forged() != 1 {
		t.Errorf("another record under the same step is taken: %+v", seen)
	}
	annotations[podapi.AnnotationRecord] = string(record)
	if seen := tell(corev1.PodRunning); seen.forged != nil || seen.step == nil {
		t.Errorf("what was put right again is refused: %v", seen.forged)
	}
}
