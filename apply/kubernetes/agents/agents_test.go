package agents

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gitvirt/gitvirt/schemas"
)

// TestWhereTheAgentIs: a VM's node is that of its Pod, and what is missing on the way is said with what to do about it.
func TestWhereTheAgentIs(t *testing.T) {
	pod := func(namespace, name, node string, phase corev1.PodPhase, labels map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	ours := map[string]string{"app": "agent"}
	leaving := pod("system", "leaving", "node-1", corev1.PodRunning, ours)
	leaving.DeletionTimestamp, leaving.Finalizers = &metav1.Time{}, []string{"test/wait"}
	client := fake.NewClientset(
		pod("shop", "virt-launcher-web", "node-1", corev1.PodRunning, nil), pod("shop", "virt-launcher-new", "", corev1.PodPending, nil),
		pod("system", "ended", "node-1", corev1.PodFailed, ours), leaving, pod("system", "stranger", "node-1", corev1.PodRunning, nil),
		pod("system", "here", "node-1", corev1.PodRunning, ours), pod("other", "elsewhere", "node-1", corev1.PodRunning, ours),
	)
	for vm, want := range map[string]string{
		"web": "node-1",
		"new": "the Pod shop/virt-launcher-new of the VM is on no node yet",
		"off": "the VM shop/off has no Pod (virt-launcher-off), so it is off or not there",
	} {
		node, err := nodeOf(t.Context(), client, schemas.Address{Kind: "VirtualMachine", Namespace: "shop", Name: vm})
		if err != nil {
			node = err.Error()
		}
		if !strings.HasPrefix(node, want) {
			t.Errorf("%s: %q, want %q", vm, node, want)
		}
	}
	cluster := Cluster{Namespace: "system", Labels: ours}
	if name, err := cluster.agentOn(t.Context(), client, "node-1"); name != "here" || err != nil {
		t.Errorf("%q, %v", name, err)
	}
	if _, err := (Cluster{Namespace: "nowhere", Labels: ours}).agentOn(t.Context(), client, "node-1"); err == nil || !strings.Contains(err.Error(), "no agent runs on the node node-1: no Pod of the DaemonSet in nowhere") {
		t.Error(err)
	}
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	})
	if _, err := cluster.agentOn(t.Context(), client, "node-1"); err == nil || !strings.Contains(err.Error(), "the Role gitvirt-user in system gives the rights") {
		t.Error(err)
	}
}
