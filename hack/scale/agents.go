package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// agents stand in for the agents of all nodes: they tell of every step that its guest runs as it says, at once, in the one write that an
// agent makes, with its rights. There is neither a guest nor a libvirt.
type agents struct {
	// config is that of who plays them.
	config  *rest.Config
	queue   chan *corev1.Pod
	running sync.WaitGroup
	factory informers.SharedInformerFactory
	failed  atomic.Pointer[error]

	mu sync.Mutex
	// written is when a step of a revision was seen on a Pod, told when its outcome was.
	written, told map[string]time.Time
	// ready says of each Pod whether it is, with its last step told of.
	ready map[types.UID]bool
	// sent is the step that each Pod was told of last.
	sent map[types.UID]string
	// clients are those of the nodes.
	clients map[string]kubernetes.Interface
}

// tellers is how many of the stand-ins write at the same time.
const tellers = 16

func followAgents(ctx context.Context, config *rest.Config) (*agents, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	a := &agents{config: config, clients: map[string]kubernetes.Interface{}, queue: make(chan *corev1.Pod, 1<<16), written: map[string]time.Time{}, told: map[string]time.Time{}, ready: map[types.UID]bool{}, sent: map[types.UID]string{}}
	a.factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector = podapi.LabelManagedBy + "=" + podapi.ManagedBy
	}))
	informer := a.factory.Core().V1().Pods().Informer()
	see := func(object any) {
		if pod, ok := object.(*corev1.Pod); ok {
			a.see(pod)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }}); err != nil {
		return nil, err
	}
	a.factory.Start(ctx.Done())
	for range tellers {
		a.running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case pod := <-a.queue:
					if err := a.tell(ctx, pod); err != nil && ctx.Err() == nil {
						a.failed.CompareAndSwap(nil, &err)
					}
				}
			}
		})
	}
	return a, nil
}

func (a *agents) wait() { a.factory.Shutdown(); a.running.Wait() }

// see notes what a Pod carries, and has it told of when its launcher runs.
func (a *agents) see(pod *corev1.Pod) {
	step, observed := stepOf(pod), ""
	if told, err := podapi.DecodeObserved(pod.Annotations); err == nil && told != nil {
		observed = told.Step
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range pod.Status.Conditions {
		if condition := &pod.Status.Conditions[i]; condition.Type == corev1.PodReady {
			a.ready[pod.UID] = condition.Status == corev1.ConditionTrue && observed == step.ID
		}
	}
	note(a.written, step.Revision)
	switch {
	case observed == step.ID:
		note(a.told, step.Revision)
	case pod.Status.Phase != corev1.PodRunning, pod.DeletionTimestamp != nil, a.sent[pod.UID] == step.ID:
	default:
		a.sent[pod.UID] = step.ID
		a.queue <- pod
	}
}

func note(times map[string]time.Time, revision string) {
	if _, known := times[revision]; !known {
		times[revision] = time.Now()
	}
}

// when returns when a step of a revision was written onto a Pod, and when it was told of; zero for not yet.
func (a *agents) when(revision string) (written, told time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.written[revision], a.told[revision]
}

// allReady is how many Pods are ready, with their last step told of.
func (a *agents) allReady() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	count := 0
	for _, ready := range a.ready {
		if ready {
			count++
		}
	}
	return count
}

// stepOf reads the step of a Pod. Whether it is the controller's is for real agents to find out.
func stepOf(pod *corev1.Pod) podapi.Step {
	var step podapi.Step
	_ = json.Unmarshal([]byte(pod.Annotations[podapi.AnnotationStep]), &step) // one that cannot be read has no ID
	return step
}

// of returns the client of the agent of a node: its account, with the token of a Pod on that node.
func (a *agents) of(node string) (kubernetes.Interface, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if client := a.clients[node]; client != nil {
		return client, nil
	}
	config := rest.CopyConfig(a.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:gitvirt-system:gitvirt-agent", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	client, err := kubernetes.NewForConfig(config)
	a.clients[node] = client
	return client, err
}

// problem says why an agent could not tell; nil when all could.
func (a *agents) problem() error {
	if failed := a.failed.Load(); failed != nil {
		return errors.Join(errGivenUp, *failed)
	}
	return nil
}

// tell writes what an agent writes: the outcome of the step, the domain, and that the guest is ready.
func (a *agents) tell(ctx context.Context, pod *corev1.Pod) error {
	step := stepOf(pod)
	domain := &api.Domain{
		Address: step.Address, Name: pod.Namespace + "_" + pod.Labels[podapi.LabelVM], Uuid: string(pod.UID), Fleet: step.Fleet, Revision: step.Revision,
		State: "running", Ran: true, Hash: step.Hash, RunningHash: step.Hash, Fingerprint: podapi.Digest([]byte(step.ID)), Addresses: []string{"10.0.2.2"},
		Disks: []*api.Disk{
			{Volume: "root", Kind: "containerDisk", Path: "/disks/root.qcow2"},
			{Volume: "data", Kind: "emptyDisk", Path: "/disks/data.qcow2", CapacityBytes: 1 << 30, Keep: true},
			{Volume: "init", Kind: "cloudInitNoCloud", Path: "/disks/init.iso"},
		},
		Headroom: &api.Headroom{MaxVcpus: 4, MaxMemoryBytes: 4 << 30, BalloonBytes: 1 << 30, FreePciSlots: 12},
	}
	observed := podapi.Observed{
		Step: step.ID, Outcome: podapi.Done, Node: pod.Spec.NodeName, Domain: domain,
		Live: []string{"balloon", "cpu-plug", "disk-grow", "disk-plug", "interface-plug", "link", "media", "memory-plug"},
	}
	text, err := observed.Encode()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]string{podapi.AnnotationObserved: text}},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: podapi.GuestReady, Status: corev1.ConditionTrue, Reason: "GuestReady", Message: "the guest runs", LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	client, err := a.of(pod.Spec.NodeName)
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: "gitvirt-agent"}, "status"); err != nil {
		return fmt.Errorf("telling of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
