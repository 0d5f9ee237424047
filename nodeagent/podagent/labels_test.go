package podagent_test

import (
	"errors"
	"maps"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gitvirt/gitvirt/nodeagent/podagent"
)

// The Node says which CPUs guests can have, what runs them, and what can be done while they run; what is not true any more goes, and
// what others say stays. An agent that has nothing new to say writes nothing.
func TestNodeLabels(t *testing.T) {
	n := newNode(t)
	_, err := n.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: nodeName, Labels: map[string]string{"zone": "a", "cpu-model.node.gitvirt.io/Gone": "true", "node.gitvirt.io/hypervisor": "kvm"},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var attempts atomic.Int32
	n.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return attempts.Add(1) == 1, nil, errors.New("connection refused")
	})
	labelled := func(c *podagent.Config) { c.DomainType, c.CPUModels = "qemu", []string{"Nehalem", "qemu64"} }
	_, stop := n.agent(labelled)
	want := map[string]string{
		"zone": "a", "cpu-model.node.gitvirt.io/Nehalem": "true", "cpu-model.node.gitvirt.io/qemu64": "true", "node.gitvirt.io/hypervisor": "qemu",
	}
	said := func(live string) func() (bool, any) {
		return func() (bool, any) {
			node, err := n.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
			return err == nil && maps.Equal(node.Labels, want) && node.Annotations["node.gitvirt.io/live"] == live, node.ObjectMeta
		}
	}
	n.eventually("the labels are right", said(""))
	g := n.guest(webUID)
	g.change(func() { g.sight.Live = []string{"cpu-plug", "balloon"} })
	emulated := createOn
	emulated.Emulation = true
	n.pod(web, emulated)
	n.eventually("what can be done is told", said("cpu-plug,balloon"))
	n.ready(web, "1")
	stop()
	before := attempts.Load()
	_, stop = n.agent(labelled)
	n.eventually("the Node was looked at", func() (bool, any) {
		reads := 0
		for _, action := range n.client.Actions() {
			if action.Matches("get", "nodes") {
				reads++
			}
		}
		return reads > 6, reads // the test's own count as well
	})
	stop()
	if after := attempts.Load(); after != before {
		t.Errorf("%d writes by an agent that has nothing new to say", after-before)
	}
}
