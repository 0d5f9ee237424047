package kubernetes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const web = `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: web}
spec:
  runStrategy: Always
  template:
    metadata: {labels: {app: web, tier: front}}
    spec:
      terminationGracePeriodSeconds: 1
      domain:
        cpu: {sockets: 1, maxSockets: 4}
        memory: {guest: 128Mi}
        devices: {disks: [{name: scratch, disk: {bus: virtio}}], autoattachPodInterface: false}
      volumes: [{name: scratch, emptyDisk: {capacity: 1Gi}}]
`

func edited(old, with string) string { return strings.Replace(web, old, with, 1) }

// TestLife is that of a machine: made, changed while it lives, given another Pod, switched off, on again, and gone.
func TestLife(t *testing.T) {
	r := newRig(t)
	r.apply(web)
	if diff := cmp.Diff([]string{"patch secrets", "patch pods"}, r.writes()); diff != "" {
		t.Errorf("what it takes to make one: %s", diff)
	}
	first := r.pod()
	if domain := r.domain(); domain.State != plan.StateRunning || domain.Node != "node-1" || domain.Pod != "virt-launcher-web" || domain.Ready != "true" {
		t.Errorf("%+v", domain)
	}

	r.apply(edited("sockets: 1,", "sockets: 2,"))
	now := r.pod()
	if now.UID != first.UID || now.Spec.Containers[0].Resources.Requests.Cpu().Cmp(*first.Spec.Containers[0].Resources.Requests.Cpu()) <= 0 {
		t.Errorf("plugging a CPU: %s, was %s", now.UID, first.UID)
	}
	if diff := cmp.Diff([]string{"patch pods/resize", "patch secrets", "patch pods"}, r.writes()); diff != "" {
		t.Errorf("what it takes to change one: %s", diff)
	}
	if last := r.steps[len(r.steps)-1]; !last.Live || last.Power != "" || !last.Define || last.Precondition == "" {
		t.Errorf("the agent was asked %+v", last)
	}

	r.apply(edited("{app: web, tier: front}", "{app: shop}"))
	if labels := r.pod().Labels; labels["app"] != "shop" || labels["tier"] != "" || labels[podapi.LabelVM] != "web" {
		t.Errorf("labels: %+v", labels)
	}
	if r.pod().UID != first.UID {
		t.Error("labels made another Pod")
	}

	r.apply(edited("    spec:\n", "    spec:\n      nodeSelector: {disk: ssd}\n"))
	second := r.pod()
	if second.UID == first.UID || second.Spec.NodeSelector["disk"] != "ssd" {
		t.Errorf("another node: %+v", second.Spec.NodeSelector)
	}

	r.writes()
	r.apply(edited("Always", "Halted"))
	if diff := cmp.Diff([]string{"delete pods", "delete secrets"}, r.writes()); diff != "" {
		t.Errorf("what it takes to switch one off: %s", diff)
	}
	if r.domain() != nil {
		t.Errorf("%+v", r.domain())
	}
	r.apply(web)
	r.apply()
	if r.domain() != nil {
		t.Errorf("%+v", r.domain())
	}
}

// TestRestartStaysInThePod: what needs a restart and no other Pod is carried out in the one that there is.
func TestRestartStaysInThePod(t *testing.T) {
	r := newRig(t)
	r.apply(web)
	first := r.pod()
	r.apply(edited("autoattachPodInterface: false", "autoattachPodInterface: false, rng: {}"))
	if last := r.steps[len(r.steps)-1]; last.Power != "cycle" || r.pod().UID != first.UID {
		t.Errorf("the agent was asked %+v; Pod %s, was %s", last, r.pod().UID, first.UID)
	}
}

// TestOutcomes: what an agent tells of a step becomes the kinds of failures, and what was not done is planned again.
func TestOutcomes(t *testing.T) {
	for _, test := range []struct {
		outcome podapi.Outcome
		want    error
	}{{podapi.Stale, apply.ErrStale}, {podapi.Stalled, apply.ErrStalled}, {podapi.Retry, apply.ErrRetry}} {
		t.Run(string(test.outcome), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.apply(web)
			before := desired(t, web).VMs[0]
			r.mu.Lock()
			r.agent = func(_ *podapi.Step, told *podapi.Observed) *podapi.Observed {
				told.Outcome, told.Message = test.outcome, "no such thing"
				told.Domain.Hash, told.Domain.RunningHash, told.Domain.Record = before.Hash, before.Hash, before.Record
				return told
			}
			r.mu.Unlock()
			if err := r.carryOut(edited("sockets: 1,", "sockets: 2,")); !errors.Is(err, test.want) || !strings.Contains(err.Error(), "no such thing") {
				t.Errorf("%v, want %v", err, test.want)
			}
			r.eventually("it is planned again", func() bool { return len(r.plan(edited("sockets: 1,", "sockets: 2,")).Steps) == 1 })
		})
	}
}

// TestPodsThatWait: a Pod that cannot be scheduled, or whose image cannot be pulled, is on its way and says why; nobody makes another.
func TestPodsThatWait(t *testing.T) {
	r := newRig(t)
	r.mu.Lock()
	r.agent = func(*podapi.Step, *podapi.Observed) *podapi.Observed { return nil }
	r.mu.Unlock()
	failed := make(chan error, 1)
	go func() { failed <- r.carryOut(web) }()
	r.eventually("the Pod is there", func() bool { return r.domain() != nil })
	r.edit(func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}
	})
	if err := <-failed; !errors.Is(err, apply.ErrRetry) || !strings.Contains(err.Error(), "0/1 nodes") {
		t.Error(err)
	}
	if domain := r.domain(); domain.Ready != "false" || domain.ReadyReason != "0/1 nodes are available" {
		t.Errorf("%+v", domain)
	}
	if steps := r.plan(web).Steps; len(steps) > 0 {
		t.Errorf("there is more to do: %+v", steps)
	}
}

// TestEndings: how a Pod ended becomes the reason that run strategies go by.
func TestEndings(t *testing.T) {
	for _, test := range []struct {
		name, message, reason, stop string
		phase                       corev1.PodPhase
		rerun                       bool // with RerunOnFailure
	}{
		{"shut down", `{"fate":"shutdown"}`, "Completed", plan.StopShutdown, corev1.PodSucceeded, false},
		{"crashed", `{"fate":"crashed","qemu":"signal: killed"}`, "Error", plan.StopCrashed, corev1.PodFailed, true},
		{"switched off", `{"fate":"destroyed"}`, "Error", plan.StopDestroyed, corev1.PodFailed, true},
		{"out of memory", "", "OOMKilled", plan.StopCrashed, corev1.PodFailed, true},
		{"garbage", "[", "Error", plan.StopCrashed, corev1.PodFailed, true},
		{"never began", `{"fate":"never-started"}`, "Error", plan.StopFailed, corev1.PodFailed, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.apply(web)
			first := r.pod().UID
			r.edit(func(pod *corev1.Pod) {
				pod.Status.Phase = test.phase
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
					Terminated: &corev1.ContainerStateTerminated{Message: test.message, Reason: test.reason},
				}}}
			})
			r.eventually("it is over", func() bool { return r.domain().State == plan.StateStopped })
			if got := r.domain().Stop; got != test.stop {
				t.Errorf("it ended as %q, want %q", got, test.stop)
			}
			if steps := r.plan(edited("Always", "RerunOnFailure")).Steps; (len(steps) > 0) != test.rerun {
				t.Errorf("RerunOnFailure: %+v", steps)
			}
			r.apply(web)
			if r.pod().UID == first {
				t.Error("it is the same Pod")
			}
		})
	}
}

// TestEvicted: a Pod that the node threw out has ended without a word of its launcher.
func TestEvicted(t *testing.T) {
	r := newRig(t)
	r.apply(web)
	r.edit(func(pod *corev1.Pod) {
		pod.Status.Phase, pod.Status.Reason, pod.Status.ContainerStatuses = corev1.PodFailed, "Evicted", nil
	})
	r.eventually("it is over", func() bool { return r.domain().Stop == plan.StopCrashed })
	r.apply(web)
}

// TestOthersPods: whoever makes or changes a Pod with our labels gets nothing done by it, and the machine of its name is held.
func TestOthersPods(t *testing.T) {
	foreign := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "virt-launcher-web", Namespace: "default", UID: "1", Labels: map[string]string{podapi.LabelManagedBy: podapi.ManagedBy},
	}}
	r := newRig(t, foreign)
	held := func() {
		t.Helper()
		p := r.plan(web)
		if len(p.Steps) > 0 || len(p.Held) != 1 || !strings.Contains(p.Held[0].Reason, podapi.ErrForged.Error()) {
			t.Errorf("steps: %+v, held: %+v", p.Steps, p.Held)
		}
	}
	held()
	if r.platform.Forged() != 1 || len(r.writes()) > 0 {
		t.Errorf("%d were counted, %v", r.platform.Forged(), r.writes())
	}
	if p := r.plan(); len(p.Executable()) > 0 {
		t.Errorf("it would be removed: %+v", p.Steps)
	}
	step := plan.Step{Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}, Action: plan.ActionDestroy, Precondition: "1"}
	if err := r.platform.Execute(t.Context(), apply.Target{}, step, func(string) {}); !errors.Is(err, apply.ErrStalled) {
		t.Errorf("it was removed: %v", err)
	}

	other := newRig(t)
	other.apply(web)
	other.edit(func(pod *corev1.Pod) {
		pod.Annotations = merged(pod.Annotations, podapi.AnnotationStep, strings.Replace(pod.Annotations[podapi.AnnotationStep], `"on"`, `"off"`, 1))
	})
	other.eventually("the edit is seen", func() bool { return other.domain().Problem != "" })
	r = other
	held()
}

// TestSilentNodes: a machine on a node that does not answer is neither touched nor made elsewhere, nor is one whose Pod is on its way out.
func TestSilentNodes(t *testing.T) {
	r := newRig(t)
	r.apply(web)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}},
	}}
	if _, err := r.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := func(why string) {
		t.Helper()
		r.eventually("it is left: "+why, func() bool { return strings.Contains(r.domain().Leave, why) })
		for _, manifests := range [][]string{{edited("Always", "Halted")}, {edited("sockets: 1,", "sockets: 2,")}, nil} {
			if p := r.plan(manifests...); len(p.Steps) > 0 || len(p.Held) != 1 {
				t.Errorf("%s: %+v", why, p.Steps)
			}
		}
	}
	left("node-1 does not answer")
	node.Status.Conditions[0].Status = corev1.ConditionTrue
	if _, err := r.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the node is back", func() bool { return r.domain().Leave == "" })
	now := metav1.Now()
	r.edit(func(pod *corev1.Pod) { pod.DeletionTimestamp, pod.Finalizers = &now, []string{"test/stay"} })
	left("its Pod is being deleted")
}

// TestStalePlans: a step is carried out on exactly the Pod that it was planned for.
func TestStalePlans(t *testing.T) {
	r := newRig(t)
	made := r.plan(web).Steps[0]
	r.apply(web)
	changed := r.plan(edited("sockets: 1,", "sockets: 2,")).Steps[0]
	r.apply(edited("{app: web", "{app: shop"))
	for _, step := range []plan.Step{made, changed} {
		if err := r.platform.Execute(context.Background(), apply.Target{Fleet: "demo"}, step, func(string) {}); !errors.Is(err, apply.ErrStale) {
			t.Errorf("%s: %v", step.Action, err)
		}
	}
}

// TestAwait: a guest is ready when its Pod says so, and never when its Pod has ended.
func TestAwait(t *testing.T) {
	r := newRig(t)
	address := schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}
	wait := func(kind schemas.ReadyKind, patience time.Duration) error {
		return r.platform.Await(t.Context(), apply.Guest{Address: address, Ready: schemas.Ready{Kind: kind}}, patience)
	}
	var not apply.NotReadyError
	if err := wait(schemas.ReadyAgent, time.Millisecond); !errors.As(err, &not) || not.Never {
		t.Error(err)
	}
	r.apply(web)
	if err := wait(schemas.ReadyAgent, patience); err != nil {
		t.Error(err)
	}
	r.edit(func(pod *corev1.Pod) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: podapi.GuestReady, Status: corev1.ConditionFalse, Message: "the guest agent does not answer"}}
	})
	r.eventually("it is not ready", func() bool { return r.domain().Ready == "false" })
	if err := wait(schemas.ReadyAgent, time.Millisecond); !errors.As(err, &not) || not.Never || not.Reason != "the guest agent does not answer" {
		t.Error(err)
	}
	if err := wait(schemas.ReadyRunning, patience); err != nil {
		t.Error(err)
	}
	r.edit(func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed })
	r.eventually("it is over", func() bool { return r.domain().State == plan.StateStopped })
	if err := wait(schemas.ReadyAgent, patience); !errors.As(err, &not) || !not.Never {
		t.Error(err)
	}
}

// TestRefused: what cannot be carried out in a Pod, or where gitvirt was not let in, is blocked by its field.
func TestRefused(t *testing.T) {
	r := newRig(t)
	p := r.plan(edited("emptyDisk: {capacity: 1Gi}", "hostDisk: {path: /etc/shadow, type: Disk}"))
	if len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, "spec.template.spec.volumes[scratch].hostDisk") {
		t.Errorf("%+v", p.Steps)
	}
	for reason, c := range map[string]struct {
		manifest, fleet string
		in              kubernetes.InPods
		says            string
		refused         []string
	}{
		"a path of the node": {manifest: edited("emptyDisk: {capacity: 1Gi}", "hostDisk: {path: /etc/shadow, type: Disk}"), says: "volumes[scratch].hostDisk", refused: []string{"host path"}},
		"a foreign namespace": {
			manifest: edited("{name: web}", "{name: web, namespace: bank}"), in: kubernetes.InPods{Namespaces: []string{"default", "shop"}},
			says: `a.yaml:3: metadata.namespace: gitvirt was not let into the namespace "bank"; install it for that one too`, refused: []string{"namespace"},
		},
		"a ServiceAccount": {
			manifest: edited("      domain:\n", "      serviceAccountName: admin\n      domain:\n"), fleet: "serviceAccounts: [shop/admin, default/other]",
			says: `may not have the ServiceAccount "admin"; whoever keeps the Fleet allows it with spec.kubernetes.serviceAccounts: [default/admin]`, refused: []string{"service account"},
		},
		"a ServiceAccount that is allowed": {
			manifest: edited("      domain:\n", "      serviceAccountName: admin\n      domain:\n"), fleet: "serviceAccounts: [default/admin]",
		},
		"the ServiceAccount of everybody": {manifest: edited("      domain:\n", "      serviceAccountName: default\n      domain:\n")},
		"emulation":                       {manifest: web, fleet: "emulation: never", in: kubernetes.InPods{Emulation: true}, says: "the Fleet does not allow emulation", refused: []string{"emulation"}},
		"emulation that nobody forbids":   {manifest: web, fleet: "emulation: installed", in: kubernetes.InPods{Emulation: true}},
		"KVM":                             {manifest: web, fleet: "emulation: never"},
		"all of it": {
			manifest: edited("      domain:\n", "      serviceAccountName: admin\n      domain:\n"), fleet: "emulation: never", in: kubernetes.InPods{Emulation: true, Namespaces: []string{"bank"}},
			says: "the ServiceAccount", refused: []string{"namespace", "service account", "emulation"},
		},
	} {
		want := desired(t, c.manifest)
		want.Fleet = schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nspec: {platform: kubernetes, kubernetes: {"+c.fleet+"}}\n")).Fleet
		p, err := plan.Build(want, plan.Observed{}, plan.Options{Pods: c.in})
		if err != nil || len(p.Steps) != 1 || !strings.Contains(p.Steps[0].Blocked, c.says) || (c.says == "") != (p.Steps[0].Blocked == "") || !slices.Equal(p.Steps[0].Refused, c.refused) {
			t.Errorf("%s: %+v, %v", reason, p.Steps, err)
		}
	}
}

// TestLiveIsWhatEveryNodeCan: a plan promises what no node refuses.
func TestLiveIsWhatEveryNodeCan(t *testing.T) {
	r := newRig(t)
	r.apply(web)
	r.mu.Lock()
	r.agent = func(_ *podapi.Step, told *podapi.Observed) *podapi.Observed {
		told.Live = []string{"balloon", "disk-plug"}
		return told
	}
	r.mu.Unlock()
	if err := r.carryOut(web, edited("{name: web}", "{name: db}")); err != nil {
		t.Fatal(err)
	}
	r.eventually("both are told", func() bool { return len(r.platform.Observed().Live) == 2 })
	if live := r.platform.Observed().Live; slices.Contains(live, plan.LiveCPU) {
		t.Errorf("%v", live)
	}
}
