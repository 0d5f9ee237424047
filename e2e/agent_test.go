//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/identity"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

// agentNamespace is where the agent is tested.
const agentNamespace = "agent-e2e"

// agentRig has the agents of all nodes, as processes of this machine, and the authority that they believe.
type agentRig struct {
	// imageContainers are for Pods as in a cluster without image volumes.
	imageContainers bool
	T
	dir       string
	authority *identity.Authority
	log       *output
	agents    map[string]*exec.Cmd // by node
	audited   int64                // how long the audit log was at first, in bytes
}

func newAgentRig(t testing.TB) *agentRig {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := authority.Trust()
	if err != nil {
		t.Fatal(err)
	}
	r := &agentRig{T: t, dir: t.TempDir(), authority: authority, log: &output{}, agents: map[string]*exec.Cmd{}}
	for name, content := range map[string][]byte{"ca.crt": trust.Certificates(), "steps.pub": trust.StepKeys()} {
		if err := os.WriteFile(filepath.Join(r.dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	audit, err := os.Stat(auditLog())
	if err != nil {
		t.Fatal(err)
	}
	r.audited = audit.Size()
	apply(t, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}})
	t.Cleanup(func() {
		_, _ = command(context.Background(), "delete", "namespace", agentNamespace, "--timeout=60s").CombinedOutput()
	})
	return r
}

// nodes are those of the cluster that run, by name.
func nodes(t testing.TB) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(cluster(), "processes/node-*/init"))
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	return names
}

// start starts the agents of all nodes, with further arguments.
func (r *agentRig) start(more ...string) {
	r.Helper()
	for _, node := range nodes(r.T) {
		r.startAgent(node, more...)
	}
}

// startAgent starts the agent of a node. It sees of the machine what it would see in a Pod of the node.
func (r *agentRig) startAgent(node string, more ...string) {
	r.Helper()
	root, number := r.root(node), strings.TrimPrefix(node, "node-")
	agent := exec.Command("../bin/gitvirt-agent", append([]string{
		"--kubernetes", "--node=" + node, "--kubeconfig=" + filepath.Join(cluster(), "kubeconfig"),
		"--authority=" + r.dir, "--state-dir=" + filepath.Join(r.dir, node), "--socket=" + filepath.Join(r.dir, node+".sock"),
		"--kubelet-dir=" + filepath.Join(root, "var/lib/kubelet"), "--proc=" + filepath.Join(root, "proc"), "--emulation=always",
		"--metrics=127.0.0.1:1947" + number,
	}, more...)...)
	agent.Stdout, agent.Stderr = r.log, r.log
	if err := agent.Start(); err != nil {
		r.Fatal(err)
	}
	r.agents[node] = agent
	r.Cleanup(func() { r.stopAgent(node, syscall.SIGTERM) })
}

// root is what a node sees as /: what the kubelet mounts is seen there only, and so are the node's processes without those of others.
func (r *agentRig) root(node string) string {
	r.Helper()
	content, err := os.ReadFile(filepath.Join(cluster(), "processes", node, "init"))
	if err != nil {
		r.Fatal(err)
	}
	pid, _, _ := strings.Cut(string(content), " ")
	return filepath.Join("/proc", pid, "root")
}

// stop ends all agents.
func (r *agentRig) stop(signal syscall.Signal) {
	r.Helper()
	for node := range r.agents {
		r.stopAgent(node, signal)
	}
}

// stopAgent ends the agent of a node, if there is one.
func (r *agentRig) stopAgent(node string, signal syscall.Signal) {
	r.Helper()
	agent := r.agents[node]
	if agent == nil {
		return
	}
	if err := agent.Process.Signal(signal); err != nil {
		r.Error(err)
	}
	_ = agent.Wait()
	delete(r.agents, node)
}

// objects are the Pod and the Secret of a machine whose step is to make and start its guest.
func (r *agentRig) objects(vm *schemas.VM, id string) (*corev1.Pod, *corev1.Secret) {
	r.Helper()
	object, err := json.Marshal(vm.Object)
	if err != nil {
		r.Fatal(err)
	}
	content, err := podapi.EncodeVM(&api.VM{Address: vm.Address.String(), Fleet: "e2e", Revision: "4fa1c7e", Object: object, Record: vm.Record, Hash: vm.Hash})
	if err != nil {
		r.Fatal(err)
	}
	step := podapi.Step{
		ID: id, Address: vm.Address.String(), Fleet: "e2e", Revision: "4fa1c7e", Content: podapi.Digest(content), Hash: vm.Hash, Define: true, Power: "on", Emulation: true,
	}
	annotations, err := step.Annotate(vm.Address.Namespace, pods.Name(vm.Address), vm.Record, r.authority.SignStep)
	if err != nil {
		r.Fatal(err)
	}
	with := options()
	with.ImageContainers = r.imageContainers
	pod, err := pods.Pod(vm, with)
	if err != nil {
		r.Fatal(err)
	}
	for key, value := range annotations {
		pod.Annotations[key] = value
	}
	secret, err := pods.Secret(vm, content, options())
	if err != nil {
		r.Fatal(err)
	}
	return pod, secret
}

// pod reads a Pod of the agent's namespace.
func (r *agentRig) pod(name string) *corev1.Pod {
	r.Helper()
	out := &corev1.Pod{}
	if err := json.Unmarshal([]byte(must(r.T, nil, "-n", agentNamespace, "get", "pod", name, "-o", "json")), out); err != nil {
		r.Fatal(err)
	}
	return out
}

func auditLog() string { return filepath.Join(cluster(), "logs/audit.log") }

// writes are the agent's that the audit log has of a Pod and its Lease.
func (r *agentRig) writes(name string) (all []string) {
	r.Helper()
	r.audit(agentNamespace, func(who, of, what string) {
		if who == "gitvirt-agent" && of == name {
			all = append(all, what)
		}
	})
	return all
}

// audit reads the writes to a namespace since the rig was made: by which program, to which object, and what.
func (r *agentRig) audit(namespace string, each func(who, name, what string)) {
	r.Helper()
	file, err := os.Open(auditLog())
	if err != nil {
		r.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(r.audited, io.SeekStart); err != nil {
		r.Fatal(err)
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var event struct {
			Verb, UserAgent string
			ObjectRef       struct{ Resource, Subresource, Namespace, Name string }
		}
		if !strings.Contains(lines.Text(), namespace) || json.Unmarshal(lines.Bytes(), &event) != nil || event.ObjectRef.Namespace != namespace {
			continue
		}
		who, _, _ := strings.Cut(event.UserAgent, "/")
		each(who, event.ObjectRef.Name, event.Verb+" "+event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource)
	}
	if err := lines.Err(); err != nil {
		r.Fatal(err)
	}
}

// qemu is the process of the guest in a Pod.
func (r *agentRig) qemu(p *corev1.Pod) string {
	r.Helper()
	output, _ := exec.Command("sh", "-c", "grep -ls "+string(p.UID)+" /proc/[0-9]*/cgroup | while read f; do d=${f%/cgroup}; case $(readlink $d/exe) in */qemu-system-*) echo $d; esac; done").Output()
	return strings.TrimSpace(string(output))
}

// TestAgent: a Pod that the controller signed gets its guest, with its kernel and its disk from containers of their image, and becomes ready through its gate with one write of the agent's; the
// agent may be killed and started again, and neither guest nor API server notice; the deleted Pod's guest shuts down. A Pod that
// somebody else made with our labels is left alone.
func TestAgent(t *testing.T) {
	r := newAgentRig(t)
	r.imageContainers = true
	r.start()
	eventually(t, "the nodes offer the device for networks", func() (bool, string) {
		offered := must(t, nil, "get", "nodes", "-o", `jsonpath={.items[*].status.allocatable.devices\.gitvirt\.io/tun}`)
		return offered == strings.TrimSpace(strings.Repeat("1k ", len(nodes(t)))), offered + "\n" + r.log.String()
	})
	connected := strings.Replace(guest, "autoattachPodInterface: false", "interfaces: [{name: default, masquerade: {}}]", 1)
	connected = strings.Replace(connected, "      domain:\n", "      networks: [{name: default, pod: {}}]\n      domain:\n", 1)
	connected = strings.Replace(connected, "        devices: {", "        devices: {disks: [{name: root, disk: {bus: virtio}}], ", 1) +
		"      volumes: [{name: root, containerDisk: {image: \"gitvirt.test/guest:1\", imagePullPolicy: Never}}]\n"
	vm := machine(t, strings.Replace(connected, "{name: guest}", "{name: guest, namespace: "+agentNamespace+"}", 1))
	forgedVM := machine(t, strings.Replace(guest, "{name: guest}", "{name: forged, namespace: "+agentNamespace+"}", 1))
	name := pods.Name(vm.Address)
	wanted, secret := r.objects(vm, "1")
	forged, forgedSecret := r.objects(forgedVM, "1")
	forged.Annotations[podapi.AnnotationStep] = strings.Replace(forged.Annotations[podapi.AnnotationStep], `"fleet":"e2e"`, `"fleet":"other"`, 1)
	began := time.Now()
	for _, object := range []any{secret, wanted, forgedSecret, forged} {
		apply(t, object)
	}
	log := &output{}
	eventually(t, "the Pod runs", func() (bool, string) { return r.pod(name).Status.Phase == corev1.PodRunning, r.log.String() })
	follower := command(t.Context(), "-n", agentNamespace, "logs", "-f", name)
	follower.Stdout, follower.Stderr = log, log
	if err := follower.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = follower.Wait() })
	eventually(t, "the Pod is ready through its gate", func() (bool, string) {
		now := r.pod(name)
		return condition(now, corev1.PodReady) == corev1.ConditionTrue, fmt.Sprintf("%+v\n%s", now.Status.Conditions, r.log)
	})
	took := time.Since(began)
	t.Logf("ready after %s", took.Round(100*time.Millisecond))
	ready := r.pod(name)
	observed, err := podapi.DecodeObserved(ready.Annotations)
	if err != nil || observed.Step != "1" || observed.Outcome != podapi.Done || observed.Domain.GetState() != "running" || observed.Node != ready.Spec.NodeName {
		t.Errorf("%+v, %v", observed, err)
	}
	// What takes longer than ten seconds is told of in between.
	if writes := r.writes(name); !slices.Equal(slices.Compact(slices.Clone(writes)), []string{"patch pods/status"}) || len(writes) > 1 && took < 10*time.Second {
		t.Errorf("the agent wrote %v", writes)
	}
	eventually(t, "the guest has booted", func() (bool, string) { return strings.Contains(log.String(), "gitvirt-guest: ready"), log.String() })
	if !strings.Contains(log.String(), "gitvirt-guest: address eth0 10.0.2.") {
		t.Errorf("the guest has no address:\n%s", log)
	}

	open, err := exec.Command("sh", "-c", "readlink "+r.qemu(ready)+"/fd/*").Output()
	if err != nil || !strings.Contains(string(open), "/disk/disk.img\n") {
		t.Errorf("QEMU has open:\n%s%v", open, err)
	}

	before, writes := r.qemu(ready), len(r.writes(name))
	r.stop(syscall.SIGKILL)
	r.start()
	eventually(t, "the agent has found the forged Pod again", func() (bool, string) {
		return strings.Count(r.log.String(), "the Pod is refused") == 2, r.log.String()
	})
	if after := r.qemu(ready); after != before || before == "" {
		t.Errorf("the guest was %q and is %q", before, after)
	}
	if now := len(r.writes(name)); now != writes {
		t.Errorf("the agent that came back wrote %v", r.writes(name)[writes:])
	}
	if left := r.pod(pods.Name(forgedVM.Address)); left.Annotations[podapi.AnnotationObserved] != "" || condition(left, podapi.GuestReady) != "" {
		t.Errorf("the forged Pod was touched: %+v", left)
	}

	must(t, nil, "-n", agentNamespace, "delete", "pod", name, "--wait=true", "--timeout=90s")
	eventually(t, "the guest has shut down", func() (bool, string) {
		return strings.Contains(log.String(), `msg="launcher ends" fate=shutdown`), log.String()
	})
}
