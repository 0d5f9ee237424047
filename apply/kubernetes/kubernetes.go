// Package kubernetes is the platform "kubernetes": every machine that is on is a Pod, in which the agent of its node makes a guest of it.
// What lives is known from an informer's cache alone, so planning calls nobody; steps are carried out by applying the Pod
// and its Secret, and the agent tells what became of them on the Pod. docs/kubernetes.md tells it in prose.
package kubernetes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Keys sign what the controller writes onto Pods, and tell whether it was the controller.
type Keys interface {
	Sign(payload []byte) ([]byte, error)
	Verify(payload, signature []byte) bool
}

// Emulation says whether guests are emulated in software.
type Emulation string

// The choices about emulation.
const (
	EmulationAuto   Emulation = "auto"   // when no node offers KVM
	EmulationAlways Emulation = "always" // Pods never ask for KVM
	EmulationNever  Emulation = "never"  // Pods always do
)

// Config says where the Pods are, and what they are made of.
type Config struct {
	// Namespaces are those whose Pods are looked at and made; none means all.
	Namespaces []string
	// Image is the OCI image of gitvirt-launcher.
	Image string
	// ImageContainers has container disks come with containers of their images, for clusters without image volumes (HasImageVolumes).
	ImageContainers bool
	// Emulation says whether guests run without KVM; "" is auto.
	Emulation Emulation
	Keys      Keys
	// Patience is how long a Pod that was made may take until its agent tells of it; then the step is left to itself. 0 means
	// two minutes.
	Patience time.Duration
	Logger   *slog.Logger
}

// Platform is a cluster.
type Platform struct {
	client kubernetes.Interface
	config Config

	mu sync.Mutex
	// guests are the Pods with gitvirt's labels, by namespace and name.
	guests map[string]*guest
	// nodes are the nodes that do not answer, with what is said of them.
	nodes map[string]string
	// objects are what was applied as it is in git.
	objects map[schemas.Address]*plan.Object
	// accelerated are the nodes that offer KVM.
	accelerated map[string]bool
	// changes is closed and made anew whenever anything of the above changes.
	changes chan struct{}

	observed atomic.Pointer[plan.Observed]
	changed  chan struct{}
	forged   atomic.Int64
}

// New returns the platform behind a client. It knows nothing until Follow runs.
func New(client kubernetes.Interface, config Config) (*Platform, error) {
	if config.Image == "" || config.Keys == nil {
		return nil, errors.New("kubernetes: the launcher's image and the controller's keys are needed")
	}
	if config.Patience <= 0 {
		config.Patience = 2 * time.Minute
	}
	switch config.Emulation {
	case "":
		config.Emulation = EmulationAuto
	case EmulationAuto, EmulationAlways, EmulationNever:
	default:
		return nil, fmt.Errorf("emulation is %q; use auto, always or never", config.Emulation)
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Platform{
		client: client, config: config, guests: map[string]*guest{}, nodes: map[string]string{}, accelerated: map[string]bool{}, objects: map[schemas.Address]*plan.Object{},
		changes: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	p.observed.Store(&plan.Observed{Node: clusterName, Unknown: "the API server has not answered yet"})
	return p, nil
}

// clusterName is the name of the platform where a host has its own.
const clusterName = "kubernetes"

// Observed returns what lives in the cluster. The result is shared and must not be changed.
func (p *Platform) Observed() plan.Observed { return *p.observed.Load() }

// Changed receives a value whenever Observed has something new; several changes may be one value.
func (p *Platform) Changed() <-chan struct{} { return p.changed }

// Forged is how many times a Pod was seen that has gitvirt's labels, and not what the controller signed.
func (p *Platform) Forged() int64 { return p.forged.Load() }

func (p *Platform) publish(observed *plan.Observed) {
	p.observed.Store(observed)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// ReadOnce waits until everything was read once. Follow has to run.
func (p *Platform) ReadOnce(ctx context.Context) (plan.Observed, error) {
	for {
		if observed := p.Observed(); observed.Unknown == "" {
			return observed, nil
		}
		select {
		case <-ctx.Done():
			return p.Observed(), fmt.Errorf("asking the API server: %w; %s", context.Cause(ctx), p.Observed().Unknown)
		case <-p.changed:
		}
	}
}

// options are those of the Pods of a fleet.
func (p *Platform) options(fleet, revision string) pods.Options {
	return pods.Options{Fleet: fleet, Revision: revision, Image: p.config.Image, ImageContainers: p.config.ImageContainers, Emulation: p.emulates()}
}

// emulates reports whether Pods do without KVM.
func (p *Platform) emulates() bool {
	if p.config.Emulation != EmulationAuto {
		return p.config.Emulation == EmulationAlways
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.accelerated) == 0
}

// Pods says how machines become Pods here.
func (p *Platform) Pods() plan.Pods {
	return InPods{Namespaces: p.config.Namespaces, Emulation: p.emulates()}
}

// InPods is how machines become Pods, for plans.
type InPods struct {
	// Namespaces are those that machines may be in; none means all.
	Namespaces []string
	Emulation  bool
}

// Name implements plan.Pods.
func (InPods) Name(vm schemas.Address) string { return pods.Name(vm) }

// refusal is an error with the words for its reasons; it is a plan.Refusal.
type refusal struct {
	error
	reasons []string
}

func (r *refusal) Reasons() []string { return r.reasons }

func (r *refusal) Unwrap() error { return r.error }

// The reasons that are not of a field (pods.Refusal).
const (
	refusedNamespace      = "namespace"
	refusedServiceAccount = "service account"
	refusedEmulation      = "emulation"
)

// Refused implements plan.Pods.
func (i InPods) Refused(fleet *schemas.Fleet, vm *schemas.VM) error {
	var all []error
	var reasons []string
	refuse := func(reason, format string, arguments ...any) {
		all = append(all, fmt.Errorf("%s: %s", vm.Position.Short(), fmt.Sprintf(format, arguments...)))
		reasons = append(reasons, reason)
	}
	if len(i.Namespaces) > 0 && !slices.Contains(i.Namespaces, vm.Address.Namespace) {
		refuse(refusedNamespace, "metadata.namespace: gitvirt was not let into the namespace %q; install it for that one too (gitvirt install --vm-namespace)", vm.Address.Namespace)
	}
	if name := vm.Spec().ServiceAccountName; !fleet.Spec.Kubernetes.AllowsServiceAccount(vm.Address.Namespace, name) {
		refuse(refusedServiceAccount, "spec.template.spec.serviceAccountName: machines of this fleet may not have the ServiceAccount %q; whoever keeps the Fleet allows it with "+
			"spec.kubernetes.serviceAccounts: [%s/%[1]s]", name, vm.Address.Namespace)
	}
	if i.Emulation && !fleet.Spec.Kubernetes.AllowsEmulation() {
		refuse(refusedEmulation, "no node offers KVM (devices.gitvirt.io/kvm), or gitvirt was installed to do without, and the Fleet does not allow emulation; give a node "+
			"KVM and install gitvirt with --emulation never, or leave spec.kubernetes.emulation out of the Fleet")
	}
	if err := pods.Refused(vm); err != nil {
		all, reasons = append(all, err), append(reasons, pods.Reasons(err)...)
	}
	if len(all) == 0 {
		return nil
	}
	return &refusal{errors.Join(all...), reasons}
}

// Differences implements plan.Pods.
func (i InPods) Differences(applied *schemas.Recorded, vm *schemas.VM) ([]plan.Change, error) {
	found, err := pods.Differences(applied, vm, pods.Options{Image: "same", Emulation: i.Emulation})
	if err != nil {
		return nil, err
	}
	var out []plan.Change
	for _, one := range found {
		out = append(out, plan.Change{
			Path: "pod." + one.Path, Before: one.Before, After: one.After, Consequence: plan.ConsequenceRestart, Note: "a Pod keeps it as long as it lives",
		})
	}
	return out, nil
}

// guest is a Pod as it was seen last.
type guest struct {
	namespace, name, uid string
	node                 string
	*signed
	observed *podapi.Observed
	phase    corev1.PodPhase
	deleting bool
	// ready is the condition that the agent sets, waiting what people are told while it is not true.
	ready   bool
	waiting string
	// ended says how the guest ended, in the words of plans; empty while the Pod is not finished.
	ended string
	// addresses are the Pod's own, where they are the guest's.
	addresses []string
	// seen is the Pod as plans see it while its node is silent, or is not.
	seen   *plan.Domain
	silent string
}

// signed is what the controller wrote onto a Pod. It is shared by what is seen of the Pod at different times, and not changed.
type signed struct {
	// from is the digest of the annotations that it was read from.
	from [sha256.Size]byte
	// forged is why the Pod is not one of the controller's; the rest, and most of what is known of the guest, is then not set.
	forged error
	step   *podapi.Step
	record []byte
	// onPodNetwork says that others reach the guest at the addresses of its Pod.
	onPodNetwork bool
}

// as returns the Pod as plans see it: the same as before while nothing has changed.
func (g *guest) as(silent string) *plan.Domain {
	if g.seen == nil || g.silent != silent {
		g.seen, g.silent = g.domain(silent), silent
	}
	return g.seen
}

// finished reports whether the Pod runs no more.
func (g *guest) finished() bool { return g.phase == corev1.PodFailed || g.phase == corev1.PodSucceeded }
