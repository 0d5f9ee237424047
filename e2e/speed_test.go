//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/domainxml"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor"
	"github.com/gitvirt/gitvirt/nodeagent/hypervisor/libvirt"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

// BenchmarkStart measures from "the Pod is created" to "the guest runs", by turns with what cannot be spared: a plain Pod that becomes
// Ready, and libvirt in a Pod that is there already defining and starting the same XML. Goal: at most 1.2 times, p50 and p95.
func BenchmarkStart(b *testing.B) {
	for name, together := range map[string]int{"alone": 1, "five": 5} {
		b.Run(name, func(b *testing.B) { benchmarkStart(b, together) })
	}
}

// sample is one measurement: when what happened, and how it is undone. The last is what was measured.
type sample struct {
	marks map[string]time.Duration
	undo  func()
}

// The marks.
const (
	podScheduled   = "the Pod has a node"
	volumesMounted = "the kubelet has made its volumes"
	launcherBegan  = "the launcher has begun"
	daemonListens  = "its libvirt listens"
	podRuns        = "the API server says that it runs"
	podReady       = "the Pod is Ready"
	domainDefined  = "the domain is defined"
	qemuBegan      = "QEMU has begun"
	guestRuns      = "the guest runs"
)

func benchmarkStart(b *testing.B, together int) {
	s := newSpeed(b)
	s.start()
	eventually(b, "the node offers the device for networks", func() (bool, string) {
		offered := must(b, nil, "get", "node", "node-1", "-o", `jsonpath={.status.allocatable.devices\.gitvirt\.io/tun}`)
		return offered == "1k" && strings.Contains(s.log.String(), "device=/dev/net/tun"), offered + "\n" + s.log.String()
	})
	raws := s.warm(together)
	var plain, raw, sum, ours []time.Duration
	parts := map[string][]time.Duration{}
	for b.Loop() {
		first := len(plain)
		for _, ready := range s.atOnce(together, func(int) sample { return s.plain() }) {
			plain = append(plain, ready.marks[podReady])
		}
		for i, started := range s.atOnce(together, func(i int) sample { return raws[i].start() }) {
			raw = append(raw, started.marks[guestRuns])
			sum = append(sum, plain[first+i]+raw[first+i])
		}
		for _, running := range s.atOnce(together, func(int) sample { return s.guest() }) {
			ours = append(ours, running.marks[guestRuns])
			for mark, at := range running.marks {
				parts[mark] = append(parts[mark], at)
			}
		}
	}
	b.StopTimer()
	t := newTable(fmt.Sprintf("%d machines, %d at a time", len(ours), together))
	t.row("a plain Pod is Ready", plain)
	t.row("libvirt defines and starts", raw)
	t.row("both", sum)
	t.row("a VM's Pod has a guest that runs", ours)
	for _, mark := range slices.SortedFunc(maps.Keys(parts), func(a, b string) int {
		return int(percentile(parts[a], 0.5) - percentile(parts[b], 0.5))
	}) {
		t.row("  "+mark, parts[mark])
	}
	fmt.Println(t) // what a benchmark logs is cut
	for name, part := range map[string]float64{"p50": 0.5, "p95": 0.95} {
		b.ReportMetric(percentile(sum, part).Seconds(), "plain-"+name+"-s")
		b.ReportMetric(percentile(ours, part).Seconds(), "guest-"+name+"-s")
		b.ReportMetric(percentile(ours, part).Seconds()/percentile(sum, part).Seconds(), "ratio-"+name)
	}
}

// BenchmarkWrites counts what is written to the API server for each machine from a commit until its guest is ready: by gitvirt, whose goal
// are 4 at most, and by the kubelet and the scheduler.
func BenchmarkWrites(b *testing.B) {
	s := newStory(b)
	counts := map[string]int{}
	for b.Loop() {
		var manifests []string
		for i := range 5 {
			manifests = append(manifests, machineNamed(fmt.Sprintf("vm-%d", i), "", ""))
		}
		s.push("five machines", manifests...)
		for i := range manifests {
			s.ready(fmt.Sprintf("vm-%d", i))
		}
		clear(counts)
		s.audit(storyNamespace, func(who, name, what string) {
			if strings.Contains(name, "vm-") {
				counts[who+": "+what]++
			}
		})
	}
	b.StopTimer()
	ours, others := 0, 0
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Printf("%6.1f  %s\n", float64(counts[what])/5, what)
		if strings.HasPrefix(what, "gitvirt") {
			ours += counts[what]
		} else {
			others += counts[what]
		}
	}
	b.ReportMetric(float64(ours)/5, "writes/vm")
	b.ReportMetric(float64(others)/5, "others-writes/vm")
}

// percentile is the smallest of all that so large a part of them does not exceed.
func percentile(all []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(int(math.Ceil(part*float64(len(sorted))))-1, 0)]
}

// table is what was measured, for people.
type table struct {
	text bytes.Buffer
	rows *tabwriter.Writer
}

func newTable(title string) *table {
	t := &table{}
	t.rows = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t.rows, "\np50\tp95\t  %s\n", title)
	return t
}

func (t *table) row(what string, of []time.Duration) {
	fmt.Fprintf(t.rows, "%d ms\t%d ms\t  %s\n", percentile(of, 0.5).Milliseconds(), percentile(of, 0.95).Milliseconds(), what)
}

func (t *table) String() string {
	_ = t.rows.Flush()
	return t.text.String()
}

// speed measures on the cluster. It watches Pods itself and looks at files, because each kubectl takes a tenth of a second of a CPU.
type speed struct {
	*agentRig
	pods    typedcorev1.PodInterface
	secrets typedcorev1.SecretInterface
	made    atomic.Int32
}

func newSpeed(b *testing.B) *speed {
	s := &speed{agentRig: newAgentRig(b)}
	core := quickClient(b).CoreV1()
	s.pods, s.secrets = core.Pods(agentNamespace), core.Secrets(agentNamespace)
	return s
}

// quickClient is a client that never waits for itself.
func quickClient(b *testing.B) kubernetes.Interface {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cluster(), "kubeconfig"))
	if err != nil {
		b.Fatal(err)
	}
	config.QPS = -1
	return client(b, config)
}

// calm is how long the machine gets to put away what was measured before it measures again.
const calm = time.Second

// atOnce measures several of a kind at once.
func (s *speed) atOnce(count int, measure func(i int) sample) []sample {
	out := make([]sample, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() { out[i] = measure(i) })
	}
	all.Wait()
	for i := range out {
		all.Go(out[i].undo)
	}
	all.Wait()
	if s.Failed() {
		s.FailNow()
	}
	time.Sleep(calm)
	return out
}

// marks are when what happened.
type marks struct {
	began time.Time
	mu    sync.Mutex
	all   map[string]time.Duration
}

func (m *marks) note(mark string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, noted := m.all[mark]; !noted {
		m.all[mark] = time.Since(m.began)
	}
}

// create makes a Pod, and notes what the API server says of it until it is Ready; look looks at it meanwhile.
func (s *speed) create(wanted *corev1.Pod, look func(*marks, *corev1.Pod)) map[string]time.Duration {
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	watching, err := s.pods.Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("metadata.name", wanted.Name).String()})
	if err != nil {
		s.Error(err)
		return nil
	}
	defer watching.Stop()
	m := &marks{began: time.Now(), all: map[string]time.Duration{}}
	made, err := s.pods.Create(ctx, wanted, metav1.CreateOptions{})
	if err != nil {
		s.Error(err)
		return nil
	}
	var looking sync.WaitGroup
	looking.Go(func() { look(m, made) })
	defer looking.Wait()
	for event := range watching.ResultChan() {
		found, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted {
			break
		}
		if found.Spec.NodeName != "" {
			m.note(podScheduled)
		}
		if statuses := found.Status.ContainerStatuses; len(statuses) > 0 && statuses[0].State.Running != nil {
			m.note(podRuns)
		}
		if condition(found, corev1.PodReady) == corev1.ConditionTrue {
			m.note(podReady)
			looking.Wait()
			return m.all
		}
	}
	s.Errorf("%s did not become Ready", wanted.Name)
	return m.all
}

// delete has a Pod go, and waits until it is gone.
func (s *speed) delete(name string) {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		err := s.pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
		if apierrors.IsNotFound(err) {
			return
		}
	}
	s.Errorf("%s is not gone", name)
}

// plain measures a Pod with the launcher's image and the same resources that does nothing.
func (s *speed) plain() sample {
	like, _ := s.objects(s.machine("plain"), "1")
	like.Name = fmt.Sprintf("plain-%d", s.made.Add(1))
	wanted := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: like.Name}, Spec: corev1.PodSpec{
		DNSPolicy: like.Spec.DNSPolicy,
		Containers: []corev1.Container{{
			Name: "plain", Image: like.Spec.Containers[0].Image, Command: []string{"sleep", "1000"}, Resources: like.Spec.Containers[0].Resources,
		}},
	}}
	return sample{s.create(wanted, func(*marks, *corev1.Pod) {}), func() { s.delete(wanted.Name) }}
}

// machine is a machine with a network.
func (s *speed) machine(name string) *schemas.VM {
	manifest := strings.Replace(guest, "autoattachPodInterface: false", "interfaces: [{name: default, masquerade: {}}]", 1)
	manifest = strings.Replace(manifest, "      domain:\n", "      dnsPolicy: Default\n      networks: [{name: default, pod: {}}]\n      domain:\n", 1)
	return machine(s, strings.Replace(manifest, "{name: guest}", "{name: "+name+", namespace: "+agentNamespace+"}", 1))
}

// guest measures a machine: its Secret is there, its Pod is created.
func (s *speed) guest() sample {
	vm := s.machine(fmt.Sprintf("guest-%d", s.made.Add(1)))
	wanted, secret := s.objects(vm, "1")
	if _, err := s.secrets.Create(s.Context(), secret, metav1.CreateOptions{}); err != nil {
		s.Error(err)
	}
	all := s.create(wanted, func(m *marks, pod *corev1.Pod) { s.look(m, pod.UID, domainxml.DomainName(vm.Address)) })
	return sample{all, func() { s.delete(wanted.Name) }}
}

// look notes what becomes of a guest in its Pod until it runs, by the files of the launcher and of libvirt.
func (s *speed) look(m *marks, pod types.UID, domain string) {
	dir := sharedBy(pod)
	files := map[string]string{
		volumesMounted: "",
		launcherBegan:  protocol.FilesSocket,
		daemonListens:  protocol.SocketPath,
		domainDefined:  "config/libvirt/qemu/" + domain + ".xml",
		qemuBegan:      "run/libvirt/qemu/run/" + domain + ".pid",
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(lookAgain) {
		for mark, path := range files {
			if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
				m.note(mark)
				delete(files, mark)
			}
		}
		if runs(dir, domain) {
			m.note(guestRuns)
			return
		}
	}
	s.Errorf("%s does not run", domain)
}

// lookAgain is how exact times are that are those of files.
const lookAgain = 4 * time.Millisecond

// runs tells whether libvirt has noted that the CPUs of a guest run, in a shared folder as the host sees it.
func runs(dir, domain string) bool {
	content, err := os.ReadFile(filepath.Join(dir, "run/libvirt/qemu/run", domain+".xml"))
	return err == nil && bytes.Contains(content, []byte("<domstatus state='running'"))
}

// sharedBy is the folder that a Pod of node-1 shares with the agent, as the host sees it.
func sharedBy(pod types.UID) string {
	return nodeagent.SharedFolder(filepath.Join(cluster(), "nodes/node-1/var/lib/kubelet/pods", string(pod)))
}

// raw is a libvirt in a Pod that the agent knows nothing of any more, and the XML that the agent gave it.
type raw struct {
	*speed
	dir, domain string
	document    string
	libvirt     *libvirt.Hypervisor
}

// warm has the agent make guests in Pods, as many as are measured at once, and takes their XML, and the Pods away from it.
// The first guests of a node also bring what libvirt has to find out about QEMU once.
func (s *speed) warm(count int) []*raw {
	out := make([]*raw, count)
	for i := range out {
		vm := s.machine(fmt.Sprintf("raw-%d", i))
		wanted, secret := s.objects(vm, "1")
		if _, err := s.secrets.Create(s.Context(), secret, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
		var uid types.UID
		s.create(wanted, func(m *marks, pod *corev1.Pod) {
			uid = pod.UID
			s.look(m, uid, domainxml.DomainName(vm.Address))
		})
		strip := `{"metadata":{"labels":{"` + podapi.LabelManagedBy + `":null}}}`
		if _, err := s.pods.Patch(s.Context(), wanted.Name, types.MergePatchType, []byte(strip), metav1.PatchOptions{}); err != nil {
			s.Fatal(err)
		}
		out[i] = s.take(sharedBy(uid), domainxml.DomainName(vm.Address))
	}
	for _, r := range out {
		r.undo()
	}
	return out
}

func (s *speed) take(dir, domain string) *raw {
	connection := libvirt.NewFrom("the libvirt of "+domain, func() (string, func(), error) {
		socket, err := protocol.OpenSocket(dir)
		if err != nil {
			return "", nil, err
		}
		return socket.URI(), func() { _ = socket.Close() }, nil
	})
	s.Cleanup(func() { _ = connection.Close() })
	found, err := connection.Domain(s.Context(), domain)
	if err != nil {
		s.Fatal(err)
	}
	return &raw{s, dir, domain, found.Config, connection}
}

// start measures libvirt.
func (r *raw) start() sample {
	m := &marks{began: time.Now(), all: map[string]time.Duration{}}
	err := r.libvirt.Define(r.Context(), r.document)
	if err == nil {
		err = r.libvirt.SetPower(r.Context(), r.domain, hypervisor.PowerOn)
	}
	m.note(guestRuns)
	if err != nil || !runs(r.dir, r.domain) {
		r.Errorf("%s does not run: %v", r.domain, err)
	}
	return sample{m.all, r.undo}
}

// undo removes the domain, and keeps the Pod.
func (r *raw) undo() {
	err := errors.Join(protocol.Hold(r.dir), r.libvirt.SetPower(r.Context(), r.domain, hypervisor.PowerOff), r.libvirt.Undefine(r.Context(), r.domain))
	if err != nil {
		r.Error(err)
	}
}
