// Package podagent is the node agent on Kubernetes: it looks after the launcher Pods of one node. For each it opens an agent of its own
// (package nodeagent, with the libvirt of the Pod), has it carry out the steps that the controller signed and wrote on the Pod, and tells
// what became of them, and of the guest, on the Pod again (package podapi). It decides nothing about what should run.
//
// One worker looks after one Pod. It is level-triggered: whatever happens, it looks at the Pod, at what the kubelet has on disk and at
// the guest, and does what is next. It remembers nothing that it could not read again, so that the agent may end at any moment: guests do
// not notice, and the next one goes on from what is told on the Pods.
//
// The agent stops no guest by itself, whatever it finds. A Pod that carries gitvirt's labels and was not signed for by the controller is
// left alone and told of; so is a guest that belongs to no Pod.
package podagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// Guest is the agent of one Pod; *nodeagent.PodAgent is one.
type Guest interface {
	// Run follows the Pod's libvirt until ctx ends.
	Run(ctx context.Context)
	// Watch tells what is known of the guest, at once and at every change, until ctx ends.
	Watch(ctx context.Context, tell func(nodeagent.PodState))
	Execute(ctx context.Context, request *api.ExecuteRequest, progress func(string)) (fingerprint string, err error)
	Await(ctx context.Context, request *api.AwaitRequest) (found string, err error)
}

// Pod is where a guest lives, as the node sees it.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	// Dir is the kubelet's folder of the Pod, StateDir one of the agent's own that lives as long as the Pod.
	Dir, StateDir string
	// PID is that of the Pod's launcher, IP the Pod's address; "" for none.
	PID int
	IP  string
	// Networks is what Multus tells of the Pod's interfaces (networks.AttachedLinks); VHost says that the Pod was given /dev/vhost-net.
	Networks string
	VHost    bool
	// Address is the machine's, Object the machine as it is wanted when the Pod's agent is opened.
	Address schemas.Address
	Object  *kubevirtv1.VirtualMachine
}

// launcherProgram is the launcher's executable, and computeContainer the container that it is in (apply/kubernetes/pods).
const (
	launcherProgram  = "gitvirt-launcher"
	computeContainer = "compute"
)

// secretVolume is the folder of the machine's Secret in that of the Pod.
const secretVolume = "volumes/kubernetes.io~secret/gitvirt-secret"

// Config is what an Agent needs to know. All without a default is required.
type Config struct {
	// Node is the name of the Node.
	Node string
	// KubeletDir is the kubelet's root folder; "" means /var/lib/kubelet.
	KubeletDir string
	// StateDir is a folder of the agent's own on the node.
	StateDir string
	// ProcDir is where the processes of the node are seen; "" means /proc.
	ProcDir string
	Client  kubernetes.Interface
	// Trust has the keys by which the controller signs (identity.Trust); they may change. The error says why it is not known yet.
	Trust func() (Trust, error)
	// Open returns the agent of a Pod whose launcher runs, and what lets go of it once Run has returned.
	Open func(ctx context.Context, pod Pod) (guest Guest, closeGuest func(), err error)
	// Events is told what people should know; nil means nobody is.
	Events record.EventRecorder
	Logger *slog.Logger
	// Steps is how many steps may be carried out at the same time; 0 means 16.
	Steps int
	// Settle is how long news of a Pod is gathered until it is written; 0 means 150 ms.
	Settle time.Duration
	// Quiet is how long a Pod may wait for something before people are told; 0 means 10 s.
	Quiet time.Duration
	// Leave is how long steps may go on when the agent stops; 0 means 5 s.
	Leave time.Duration
	// Sweep is how often guests are looked for that belong to no Pod; 0 means a minute.
	Sweep time.Duration
	// DomainType is "kvm" or "qemu", CPUModels are those that guests can have: the Node is labelled with them. "" labels nothing.
	DomainType string
	CPUModels  []string
}

// Trust knows the controller's signatures; *identity.Trust is one.
type Trust interface {
	// VerifyStep checks the signature under a step.
	VerifyStep(payload, signature []byte) error
}

// Agent looks after the Pods of a node.
type Agent struct {
	config    Config
	metrics   *metrics
	processes processes
	lanes     chan struct{}
	orphans   *orphans
	labels    *nodeLabels

	mu      sync.Mutex
	workers map[types.UID]*worker
	// complete says that there is a worker for each of gitvirt's Pods that the API server has on this node.
	complete bool
	work     sync.WaitGroup
}

// New returns an agent. Run makes it work.
func New(config Config) (*Agent, error) {
	if config.Node == "" || config.StateDir == "" || config.Client == nil || config.Trust == nil || config.Open == nil {
		return nil, errors.New("an agent of Pods needs a node name, a state directory, a client, the controller's key and libvirt")
	}
	setDefault(&config.KubeletDir, "/var/lib/kubelet")
	setDefault(&config.ProcDir, "/proc")
	setDefault(&config.Steps, 16)
	setDefault(&config.Settle, 150*time.Millisecond)
	setDefault(&config.Quiet, 10*time.Second)
	setDefault(&config.Leave, 5*time.Second)
	setDefault(&config.Sweep, time.Minute)
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Events == nil {
		config.Events = &record.FakeRecorder{}
	}
	if os.Getpid() == 1 {
		return nil, errors.New("the agent sees its own processes only and could not tell when a guest is off; run its Pod with hostPID: true")
	}
	if err := os.MkdirAll(filepath.Join(config.StateDir, "pods"), 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	a := &Agent{
		config: config, processes: processes{dir: config.ProcDir}, lanes: make(chan struct{}, config.Steps), workers: map[types.UID]*worker{},
	}
	a.orphans, a.labels = newOrphans(a), newNodeLabels(a)
	a.metrics = newMetrics(a)
	return a, nil
}

func setDefault[T comparable](value *T, usual T) {
	var none T
	if *value == none {
		*value = usual
	}
}

// Registry has the agent's metrics.
func (a *Agent) Registry() *prometheus.Registry { return a.metrics.registry }

// Ready is nil when the Pods of the node are known.
func (a *Agent) Ready() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.complete {
		return errors.New("the Pods of the node are not known yet")
	}
	return nil
}

// Run works until ctx ends. Steps that are on their way then get a moment to end; whatever is left is found by the next agent. Guests
// go on.
func (a *Agent) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	informer, seen, err := a.informer(ctx, life)
	if err != nil {
		return err
	}
	var others sync.WaitGroup
	others.Go(func() { informer.RunWithContext(ctx) })
	others.Go(func() { a.labels.run(ctx) })
	others.Go(func() {
		if !cache.WaitForCacheSync(ctx.Done(), seen) {
			return
		}
		a.mu.Lock()
		a.complete = true
		a.mu.Unlock()
		a.orphans.run(ctx)
	})
	<-ctx.Done()
	others.Wait()
	leave := time.AfterFunc(a.config.Leave, end)
	defer leave.Stop()
	a.work.Wait()
	return nil
}

// see hands a Pod to its worker. ctx ends when no step may begin any more, life when those that have begun must end.
func (a *Agent) see(ctx, life context.Context, pod *corev1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	w := a.workers[pod.UID]
	if w == nil {
		w = newWorker(a, pod)
		a.workers[pod.UID] = w
		a.work.Go(func() {
			w.run(ctx, life)
			a.mu.Lock()
			defer a.mu.Unlock()
			if w.finished() {
				delete(a.workers, w.pod.UID)
			}
		})
		return
	}
	w.see(pod)
}

// miss tells a worker that its Pod is gone.
func (a *Agent) miss(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workers[uid]; w != nil {
		w.miss()
	}
}

// all returns the workers of now.
func (a *Agent) all() []*worker {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		out = append(out, w)
	}
	return out
}
