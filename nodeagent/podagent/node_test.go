package podagent_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/podagent"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is a node with its kubelet's folders, its processes and an API server, all of which outlive the agents on it.
type node struct {
	*testing.T
	client  *fake.Clientset
	events  *record.FakeRecorder
	dir     string
	private ed25519.PrivateKey
	public  ed25519.PublicKey

	mu     sync.Mutex
	guests map[types.UID]*guest
	pids   int
	opened int
}

const nodeName = "node-1"

func newNode(t *testing.T) *node {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		T: t, client: fake.NewClientset(), events: record.NewFakeRecorder(1000), dir: t.TempDir(), public: public, private: private,
		guests: map[types.UID]*guest{}, pids: 1000,
	}
	n.process("", "init", "/sbin/init")
	return n
}

// VerifyStep implements podagent.Trust.
func (n *node) VerifyStep(payload, signature []byte) error {
	if !ed25519.Verify(n.public, payload, signature) {
		return errors.New("the signature is another's")
	}
	return nil
}

func (n *node) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

func (n *node) write(content string, parts ...string) {
	n.Helper()
	path := n.path(parts...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.Fatal(err)
	}
}

// process starts a process in a Pod; what is returned ends it.
func (n *node) process(uid types.UID, program string, arguments ...string) (end func()) {
	n.Helper()
	n.pids++
	dir := filepath.Join("proc", strconv.Itoa(n.pids))
	cgroup := "9:name=systemd:/\n0::/init.scope\n"
	if uid != "" {
		cgroup = "9:name=systemd:/\n0::/kubepods/burstable/pod" + string(uid) + "/0123456789abcdef\n"
	}
	n.write(cgroup, dir, "cgroup")
	n.write(fmt.Sprintf("%d (a) b) S 1 1", n.pids), dir, "stat")
	n.write(strings.Join(arguments, "\x00")+"\x00", dir, "cmdline")
	if err := os.Symlink("/usr/bin/"+program, n.path(dir, "exe")); err != nil {
		n.Fatal(err)
	}
	return func() {
		if err := os.RemoveAll(n.path(dir)); err != nil {
			n.Fatal(err)
		}
	}
}

// agent starts an agent; what is returned stops it and waits.
func (n *node) agent(change ...func(*podagent.Config)) (agent *podagent.Agent, stop func()) {
	n.Helper()
	config := podagent.Config{
		Node: nodeName, KubeletDir: n.path("kubelet"), StateDir: n.path("state"), ProcDir: n.path("proc"), Client: n.client, Events: n.events,
		Trust: func() (podagent.Trust, error) { return n, nil },
		Open:  n.open, Settle: 20 * time.Millisecond, Quiet: 50 * time.Millisecond, Leave: 50 * time.Millisecond, Sweep: 50 * time.Millisecond,
	}
	for _, change := range change {
		change(&config)
	}
	agent, err := podagent.New(config)
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			n.Error(err)
		}
	}
	n.Cleanup(stop)
	n.eventually("the Pods are known", func() (bool, any) { return agent.Ready() == nil, agent.Ready() })
	return agent, stop
}

// open is how agents reach a Pod's libvirt.
func (n *node) open(_ context.Context, pod podagent.Pod) (podagent.Guest, func(), error) {
	g := n.guest(pod.UID)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened++
	return g, func() {}, nil
}

func (n *node) guest(uid types.UID) *guest {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.guests[uid] == nil {
		n.guests[uid] = &guest{changed: make(chan struct{})}
	}
	return n.guests[uid]
}

func (n *node) eventually(what string, holds func() (bool, any)) {
	n.Helper()
	var seen any
	for deadline := time.Now().Add(4 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var ok bool
		if ok, seen = holds(); ok {
			return
		}
	}
	n.Fatalf("never: %s; last seen: %v", what, seen)
}

// vm is a machine.
type vm struct {
	name, uid string
	// volumes and annotations are YAML of the manifest.
	volumes, annotations, more string
}

func (v vm) machine(n *node) *schemas.VM {
	n.Helper()
	if v.annotations == "" {
		v.annotations = "{}"
	}
	disks := ""
	if v.volumes != "" {
		disks = "devices: {disks: [{name: data, disk: {bus: virtio}}]}"
	}
	manifest := `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: ` + v.name + `, namespace: shop, annotations: ` + v.annotations + `}
spec:
  runStrategy: Always
  template:
    spec:
      domain:
        memory: {guest: 64Mi}
        ` + disks + `
      ` + v.volumes + `
      ` + v.more + `
`
	desired := schemas.Assemble([]*schemas.File{schemas.Parse("vm.yaml", []byte(manifest))}, schemas.AllowMissing())
	if len(desired.VMs) != 1 {
		n.Fatalf("%v", desired.Diagnostics)
	}
	return desired.VMs[0]
}

// step is a step for a machine, and the content of its Secret.
func (v vm) step(n *node, step podapi.Step) (podapi.Step, map[string]string, []byte) {
	n.Helper()
	machine := v.machine(n)
	object, err := json.Marshal(machine.Object)
	if err != nil {
		n.Fatal(err)
	}
	content, err := podapi.EncodeVM(&api.VM{Address: machine.Address.String(), Object: object, Record: machine.Record, Hash: machine.Hash})
	if err != nil {
		n.Fatal(err)
	}
	step.Address, step.Hash, step.Content = machine.Address.String(), machine.Hash, podapi.Digest(content)
	annotations, err := step.Annotate("shop", "virt-launcher-"+v.name, machine.Record, func(payload []byte) ([]byte, error) {
		return ed25519.Sign(n.private, payload), nil
	})
	if err != nil {
		n.Fatal(err)
	}
	return step, annotations, content
}

func (v vm) id() types.UID { return types.UID(v.uid) }

const (
	webUID   = "0b9cbd3c-55a5-4e3f-9a53-0d9b0cf9d4ae"
	otherUID = "99999999-55a5-4e3f-9a53-0d9b0cf9d4ae"
)

var web = vm{name: "web", uid: webUID}

var createOn = podapi.Step{ID: "1", Define: true, Power: "on"}

// pod makes the Pod of a machine with a step, whose launcher runs, and what the kubelet has of it.
func (n *node) pod(v vm, step podapi.Step, change ...func(*corev1.Pod)) {
	n.Helper()
	_, annotations, content := v.step(n, step)
	n.secret(v, content)
	n.write("", "kubelet", "pods", v.uid, "volumes/kubernetes.io~empty-dir/gitvirt-runtime/lives")
	n.process(v.id(), "gitvirt-launcher", "gitvirt-launcher")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "virt-launcher-" + v.name, Namespace: "shop", UID: v.id(), Annotations: annotations,
			Labels: map[string]string{podapi.LabelManagedBy: podapi.ManagedBy, podapi.LabelVM: v.name},
		},
		Spec: corev1.PodSpec{NodeName: nodeName},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "compute", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
	for _, change := range change {
		change(pod)
	}
	if _, err := n.client.CoreV1().Pods("shop").Create(n.Context(), pod, metav1.CreateOptions{}); err != nil {
		n.Fatal(err)
	}
}

func (n *node) secret(v vm, content []byte) {
	n.Helper()
	n.write(string(content), "kubelet", "pods", v.uid, "volumes/kubernetes.io~secret/gitvirt-secret/vm")
}

// update changes the Pod as somebody else does.
func (n *node) update(v vm, change func(*corev1.Pod)) {
	n.Helper()
	pods := n.client.CoreV1().Pods("shop")
	pod := n.read(v)
	change(pod)
	if _, err := pods.Update(n.Context(), pod, metav1.UpdateOptions{}); err != nil {
		n.Fatal(err)
	}
}

func (n *node) read(v vm) *corev1.Pod {
	n.Helper()
	pod, err := n.client.CoreV1().Pods("shop").Get(n.Context(), "virt-launcher-"+v.name, metav1.GetOptions{})
	if err != nil {
		n.Fatal(err)
	}
	return pod
}

// says returns what a Pod says of its guest.
func (n *node) says(v vm) (podapi.Observed, corev1.PodCondition) {
	n.Helper()
	pod := n.read(v)
	observed, err := podapi.DecodeObserved(pod.Annotations)
	if err != nil {
		n.Fatal(err)
	}
	if observed == nil {
		observed = &podapi.Observed{}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == podapi.GuestReady {
			return *observed, condition
		}
	}
	return *observed, corev1.PodCondition{}
}

// told waits until the Pod says something.
func (n *node) told(v vm, what string, holds func(podapi.Observed, corev1.PodCondition) bool) {
	n.Helper()
	n.eventually(what, func() (bool, any) {
		observed, condition := n.says(v)
		return holds(observed, condition), fmt.Sprintf("%+v %+v", observed, condition)
	})
}

func (n *node) ready(v vm, step string) {
	n.Helper()
	n.told(v, "step "+step+" is done and the guest ready", func(o podapi.Observed, c corev1.PodCondition) bool {
		return o.Step == step && o.Outcome == podapi.Done && o.Domain.GetState() == "running" && c.Status == corev1.ConditionTrue
	})
}

// writes counts the requests that changed something, but for the test's own.
func (n *node) writes() (all []string) {
	for _, action := range n.client.Actions() {
		switch action.GetVerb() {
		case "patch", "delete":
			all = append(all, action.GetVerb()+" "+action.GetResource().Resource+"/"+action.GetSubresource())
		case "create", "update":
			if action.GetResource().Resource == "leases" {
				all = append(all, action.GetVerb()+" leases")
			}
		}
	}
	return all
}

// noted returns the events so far that hold a text.
func (n *node) noted(text string) int {
	count := 0
	for {
		select {
		case event := <-n.events.Events:
			if strings.Contains(event, text) {
				count++
			}
		default:
			return count
		}
	}
}

// guest is a Pod's libvirt with a guest that boots at once. It carries steps out as nodeagent.Agent does, by their precondition.
type guest struct {
	mu      sync.Mutex
	changed chan struct{} // closed and made anew at each change
	sight   nodeagent.PodState
	steps   []string
	runs    int
	fail    []error       // what the next steps fail with
	block   chan struct{} // steps wait for it
	began   int
	agentUp bool     // whether the guest agent answers
	others  []string // domains that are not the Pod's
}

func (g *guest) change(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *guest) look() (nodeagent.PodState, chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.sight, g.changed
}

// domain changes the domain; what was told before stays as it was.
func (g *guest) domain(change func(*api.Domain)) {
	g.change(func() {
		domain := &api.Domain{}
		if before := g.sight.Domain; before != nil {
			domain = &api.Domain{
				Address: before.Address, Name: before.Name, State: before.State, Hash: before.Hash, Addresses: before.Addresses,
				Fingerprint: before.Fingerprint, Ready: before.Ready, ReadyReason: before.ReadyReason,
			}
		}
		change(domain)
		g.sight.Domain = domain
	})
}

func (g *guest) executed() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string{}, g.steps...)
}

func (g *guest) Run(ctx context.Context) { <-ctx.Done() }

func (g *guest) Watch(ctx context.Context, tell func(nodeagent.PodState)) {
	for {
		sight, changed := g.look()
		tell(sight)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (g *guest) Execute(ctx context.Context, request *api.ExecuteRequest, progress func(string)) (string, error) {
	progress("beginning")
	g.mu.Lock()
	g.began++
	block := g.block
	g.mu.Unlock()
	fingerprint := ""
	if sight, _ := g.look(); sight.Domain != nil {
		fingerprint = sight.Domain.GetFingerprint()
	}
	if request.GetPrecondition() != fingerprint {
		return "", nodeagent.ErrStale
	}
	g.mu.Lock()
	var fail error
	if len(g.fail) > 0 {
		fail, g.fail = g.fail[0], g.fail[1:]
	}
	g.mu.Unlock()
	if fail != nil {
		return "", fail
	}
	g.domain(func(d *api.Domain) {
		d.Address, d.Name, d.Hash = request.GetAddress(), "shop_web", request.GetVm().GetHash()
		d.State, d.Fingerprint = "stopped", "defined "+strconv.Itoa(g.runs)
	})
	if block != nil {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-block:
		}
	}
	g.domain(func(d *api.Domain) {
		g.runs++
		g.steps = append(g.steps, request.GetPower())
		d.State, d.Fingerprint = "running", "run "+strconv.Itoa(g.runs)
		fingerprint = d.Fingerprint
	})
	return fingerprint, nil
}

func (g *guest) Await(ctx context.Context, _ *api.AwaitRequest) (string, error) {
	for {
		_, changed := g.look()
		g.mu.Lock()
		up := g.agentUp
		g.mu.Unlock()
		if up {
			return "the guest agent answers", nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-changed:
		}
	}
}

func (g *guest) ReadConsole(_ context.Context, request *api.ReadConsoleRequest) ([]string, error) {
	return []string{"console of " + request.GetAddress()}, nil
}

func (g *guest) OpenConsole(_ context.Context, request *api.ConsoleInput) (hypervisor.Console, error) {
	return nil, fmt.Errorf("console of %s: %w", request.GetAddress(), hypervisor.ErrConsoleBusy)
}

func (g *guest) ReadStatistics(_ context.Context, request *api.ReadStatisticsRequest) (*api.Statistics, error) {
	return &api.Statistics{State: request.GetAddress()}, nil
}

func (g *guest) ReadDomain(_ context.Context, name string) (*api.ReadDomainResponse, error) {
	return &api.ReadDomainResponse{Config: "<domain name='" + name + "'/>"}, nil
}

// endPod ends every process of a Pod.
func (n *node) endPod(uid types.UID) {
	n.Helper()
	entries, err := os.ReadDir(n.path("proc"))
	if err != nil {
		n.Fatal(err)
	}
	for _, entry := range entries {
		cgroup, err := os.ReadFile(n.path("proc", entry.Name(), "cgroup"))
		if err == nil && strings.Contains(string(cgroup), string(uid)) {
			err = os.RemoveAll(n.path("proc", entry.Name()))
		}
		if err != nil {
			n.Fatal(err)
		}
	}
}

// Strangers tells which domains there are beside the Pod's own.
func (g *guest) Strangers(context.Context) ([]string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.others, nil
}
