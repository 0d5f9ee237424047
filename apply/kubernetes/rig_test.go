package kubernetes_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// patience bounds every wait.
const patience = 2 * time.Minute

// keys are those of a controller.
type keys struct {
	public  ed25519.PublicKey
	private ed25519.PrivateKey
}

func newKeys(t *testing.T) keys {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return keys{public, private}
}

func (k keys) Sign(payload []byte) ([]byte, error) { return ed25519.Sign(k.private, payload), nil }

func (k keys) Verify(payload, signature []byte) bool {
	return ed25519.Verify(k.public, payload, signature)
}

// rig is a platform before a fake API server, with an agent that carries out every step at once, unless told otherwise.
type rig struct {
	t        *testing.T
	client   *fake.Clientset
	platform *kubernetes.Platform
	keys     keys
	// agent changes what the agent tells of a step; nil from it is silence.
	mu    sync.Mutex
	agent func(step *podapi.Step, told *podapi.Observed) *podapi.Observed
	steps []podapi.Step
}

func newRig(t *testing.T, objects ...*corev1.Pod) *rig {
	t.Helper()
	r := &rig{t: t, client: fake.NewClientset(), keys: newKeys(t)}
	for _, pod := range objects {
		if err := r.client.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	r.uids()
	var err error
	r.platform, err = kubernetes.New(r.client, kubernetes.Config{Image: "launcher:1", Emulation: kubernetes.EmulationAlways, Keys: r.keys, Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.platform.Follow(ctx) })
	running.Go(func() { r.follow(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	r.eventually("the cluster is known", func() bool { return r.platform.Observed().Unknown == "" })
	return r
}

// uids gives every Pod that is made a UID of its own, as the API server does.
func (r *rig) uids() {
	r.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchActionImpl)
		if !ok || patch.PatchType != types.ApplyPatchType {
			return false, nil, nil
		}
		if _, err := r.client.Tracker().Get(patch.GetResource(), patch.Namespace, patch.Name); err == nil {
			return false, nil, nil
		}
		pod := &corev1.Pod{}
		if err := json.Unmarshal(patch.Patch, pod); err != nil {
			return true, nil, err
		}
		pod.UID = types.UID(rand.Text())
		pod.Status.Phase = corev1.PodPending
		return true, pod, r.client.Tracker().Create(patch.GetResource(), pod, patch.Namespace)
	})
}

// follow is the agent: it tells of every step that it sees.
func (r *rig) follow(ctx context.Context) {
	watch, err := r.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-watch.ResultChan():
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != "DELETED" {
				r.take(ctx, pod)
			}
		}
	}
}

func (r *rig) take(ctx context.Context, pod *corev1.Pod) {
	step, record, err := podapi.Read(pod.Namespace, pod.Name, pod.Annotations, r.keys.Verify)
	if err != nil {
		return
	}
	before, _ := podapi.DecodeObserved(pod.Annotations)
	if before != nil && before.Step == step.ID {
		return
	}
	domain := &api.Domain{
		Address: step.Address, Name: "default_web", Fleet: step.Fleet, Revision: step.Revision, State: "running", Ran: true, Hash: step.Hash,
		Record: record, RunningHash: step.Hash, Fingerprint: "after " + step.ID, Headroom: &api.Headroom{MaxVcpus: 4, BalloonBytes: 1 << 30, FreePciSlots: 4},
	}
	told := &podapi.Observed{
		Step: step.ID, Outcome: podapi.Done, Node: "node-1", Domain: podapi.Trim(domain, step.Hash), Live: []string{"cpu-plug", "balloon", "disk-plug"},
	}
	r.mu.Lock()
	r.steps = append(r.steps, *step)
	if r.agent != nil {
		told = r.agent(step, told)
	}
	r.mu.Unlock()
	if told == nil {
		return
	}
	r.tell(ctx, pod, told)
}

// tell writes what an agent tells onto a Pod.
func (r *rig) tell(ctx context.Context, pod *corev1.Pod, told *podapi.Observed) {
	text, err := told.Encode()
	if err != nil {
		r.t.Error(err)
		return
	}
	pod = pod.DeepCopy()
	pod.Annotations[podapi.AnnotationObserved] = text
	pod.Spec.NodeName, pod.Status.Phase = "node-1", corev1.PodRunning
	ready := corev1.ConditionFalse
	if told.Domain.GetState() == "running" {
		ready = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: podapi.GuestReady, Status: ready}}
	if _, err := r.client.CoreV1().Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
		r.t.Error(err)
	}
}

func (r *rig) eventually(what string, holds func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if holds() {
			return
		}
	}
	r.t.Fatalf("never: %s\n%+v", what, r.platform.Observed())
}

// pod is the one of web.
func (r *rig) pod() *corev1.Pod {
	r.t.Helper()
	pod, err := r.client.CoreV1().Pods("default").Get(context.Background(), "virt-launcher-web", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

// edit changes the Pod of web as others would.
func (r *rig) edit(change func(*corev1.Pod)) {
	r.t.Helper()
	pod := r.pod()
	change(pod)
	if _, err := r.client.CoreV1().Pods("default").Update(context.Background(), pod, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// domain is what plans see of web; nil when there is nothing.
func (r *rig) domain() *plan.Domain {
	observed := r.platform.Observed()
	return observed.Domain(schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"})
}

func desired(t *testing.T, manifests ...string) *schemas.Desired {
	t.Helper()
	files := []*schemas.File{schemas.Parse("gitvirt.yaml", []byte("apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: demo}\nspec: {platform: kubernetes}\n"))}
	for i, manifest := range manifests {
		files = append(files, schemas.Parse(string(rune('a'+i))+".yaml", []byte(manifest)))
	}
	want := schemas.Assemble(files)
	if want.Diagnostics.Errors() > 0 {
		t.Fatal(want.Diagnostics)
	}
	return want
}

func (r *rig) plan(manifests ...string) *plan.Plan {
	r.t.Helper()
	p, err := plan.Build(desired(r.t, manifests...), r.platform.Observed(), plan.Options{Revision: "4fa1c7e", Pods: r.platform.Pods()})
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// apply plans one step, carries it out and waits until the plan is empty.
func (r *rig) apply(manifests ...string) {
	r.t.Helper()
	if err := r.carryOut(manifests...); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("nothing is left to do", func() bool {
		domain, p := r.domain(), r.plan(manifests...)
		return len(p.Steps) == 0 && len(p.Held) == 0 && (domain == nil || domain.Ready == "true")
	})
}

func (r *rig) carryOut(manifests ...string) error {
	r.t.Helper()
	p := r.plan(manifests...)
	if len(p.Steps) != 1 || p.Steps[0].Blocked != "" {
		r.t.Fatalf("steps: %+v, held: %+v", p.Steps, p.Held)
	}
	return r.platform.Execute(context.Background(), apply.Target{Fleet: "demo", Revision: "4fa1c7e"}, p.Steps[0], func(string) {})
}

// writes are the calls that changed something, since the last time, in the API server's words.
func (r *rig) writes() []string {
	var out []string
	for _, action := range r.client.Actions() {
		if verb := action.GetVerb(); !slices.Contains([]string{"get", "list", "watch"}, verb) {
			text := verb + " " + action.GetResource().Resource
			if action.GetSubresource() != "" {
				text += "/" + action.GetSubresource()
			}
			out = append(out, text)
		}
	}
	r.client.ClearActions()
	return slices.DeleteFunc(out, func(text string) bool { return text == "update pods" }) // the rig's own
}

func merged(base map[string]string, more ...string) map[string]string {
	out := maps.Clone(base)
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}
