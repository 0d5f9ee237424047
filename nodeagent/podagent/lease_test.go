package podagent_test

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/nodeagent/podagent"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// db is a machine that writes to a claim.
var db = vm{name: "db", uid: webUID, volumes: "volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]"}

// holder returns who has the Lease of db, "" for nobody.
func (n *node) holder() string {
	n.Helper()
	lease, err := n.client.CoordinationV1().Leases("shop").Get(n.Context(), "virt-launcher-db", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil || lease.Spec.HolderIdentity == nil {
		n.Fatal(lease, err)
	}
	return *lease.Spec.HolderIdentity
}

// lease gives the Lease of db to somebody.
func (n *node) lease(holder string) {
	n.Helper()
	_, err := n.client.CoordinationV1().Leases("shop").Create(n.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "virt-launcher-db", Labels: map[string]string{podapi.LabelManagedBy: podapi.ManagedBy}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}, metav1.CreateOptions{})
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) delete(v vm) {
	n.Helper()
	if err := n.client.CoreV1().Pods("shop").Delete(n.Context(), "virt-launcher-"+v.name, metav1.DeleteOptions{}); err != nil {
		n.Fatal(err)
	}
}

// Who may take a Lease that another one has.
func TestTakingALease(t *testing.T) {
	other := func(taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	for _, test := range []struct {
		name, holder string
		node         *corev1.Node
		// lives says that a process of the holder's Pod runs here.
		lives, taken bool
		// then has what makes the Lease free.
		then func(n *node)
	}{
		{name: "nobody has it", taken: true},
		{name: "it is ours from before", holder: nodeName + "/" + webUID, taken: true},
		{name: "a Pod of this node that is gone", holder: nodeName + "/" + otherUID, taken: true},
		{name: "a Pod of this node that runs", holder: nodeName + "/" + otherUID, lives: true},
		{name: "a node that is there", holder: "node-2/" + otherUID, node: other()},
		{name: "a node that is cordoned", holder: "node-2/" + otherUID, node: other(corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})},
		{name: "a node that does not answer", holder: "node-2/" + otherUID, node: other(corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})},
		{name: "a node that is gone", holder: "node-2/" + otherUID, taken: true},
		{name: "a node that is off for good", holder: "node-2/" + otherUID, node: other(corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}), taken: true},
		{name: "somebody else", holder: "somebody"},
		{name: "somebody without a name", holder: "/"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			end := func() {}
			if test.holder != "" {
				n.lease(test.holder)
			}
			if test.node != nil {
				if _, err := n.client.CoreV1().Nodes().Create(t.Context(), test.node, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if test.lives {
				end = n.process(otherUID, "anything")
			}
			n.pod(db, createOn)
			n.agent()
			if test.taken {
				n.ready(db, "1")
				if now := n.holder(); now != nodeName+"/"+webUID {
					t.Errorf("%s has it", now)
				}
				return
			}
			n.told(db, "it waits", func(o podapi.Observed, c corev1.PodCondition) bool {
				return o.Outcome == podapi.Retry && o.Message != "" && c.Status == corev1.ConditionFalse && c.Message == o.Message
			})
			if now := n.holder(); now != test.holder || len(n.guest(webUID).executed()) > 0 {
				t.Errorf("%s has it, and was carried out: %v", now, n.guest(webUID).executed())
			}
			end()
			if test.lives {
				n.ready(db, "1")
			}
		})
	}
}

// A guest that waited for something else first waits for its Lease, and says so.
func TestWaitsForTheLeaseLast(t *testing.T) {
	n := newNode(t)
	n.lease("somebody")
	n.agent()
	n.pod(db, createOn, func(*corev1.Pod) { n.secret(db, nil) })
	n.told(db, "it waits for its Secret", func(_ podapi.Observed, c corev1.PodCondition) bool {
		return strings.Contains(c.Message, "the Secret's content")
	})
	_, _, content := db.step(n, createOn)
	n.secret(db, content)
	n.told(db, "it waits for its Lease", func(_ podapi.Observed, c corev1.PodCondition) bool { return strings.Contains(c.Message, "the Lease") })
}

// Nobody starts a guest whose Lease's node is not seen: an agent that sees no processes does not conclude that there are none.
func TestBlindAgent(t *testing.T) {
	n := newNode(t)
	n.lease(nodeName + "/" + otherUID)
	n.pod(db, createOn)
	blind := n.path("proc-of-a-container")
	n.write("1 (agent) S 0", "proc-of-a-container", "1", "stat")
	n.write("0::/\n", "proc-of-a-container", "1", "cgroup")
	n.write("agent\x00", "proc-of-a-container", "1", "cmdline")
	n.agent(func(c *podagent.Config) { c.ProcDir = blind })
	n.told(db, "it says what is wrong", func(_ podapi.Observed, c corev1.PodCondition) bool {
		return c.Reason == "Waiting" && strings.Contains(c.Message, "hostPID")
	})
	if now := n.holder(); now != nodeName+"/"+otherUID {
		t.Errorf("%s has it", now)
	}
}

// A Lease costs one write, is kept while the Pod lives, and given up when nothing of the Pod runs any more: not before, and no matter
// whether an agent was there when the Pod went.
func TestGivingALeaseUp(t *testing.T) {
	n := newNode(t)
	_, stop := n.agent()
	end := n.process(webUID, "qemu-system-x86_64", "qemu-system-x86_64", "-name", "guest=shop_db,debug-threads=on", "-chardev", "path=/run/gitvirt/monitor")
	n.pod(db, createOn)
	n.ready(db, "1")
	leases := 0
	for _, write := range n.writes() {
		if strings.HasSuffix(write, " leases") {
			leases++
		}
	}
	if leases != 1 {
		t.Errorf("the Lease was written %d times", leases)
	}
	stop()
	_, stop = n.agent()
	n.ready(db, "1")
	n.delete(db) // by force: the guest goes on
	n.eventually("the guest is told of", func() (bool, any) { return n.noted("OrphanedGuest") == 1, nil })
	if n.holder() == "" {
		t.Error("the Lease is free while the guest runs")
	}
	stop()
	agent, _ := n.agent()
	n.eventually("it is told of again", func() (bool, any) { return n.noted("OrphanedGuest") == 1, nil })
	n.eventually("it is counted", func() (bool, any) { return gauge(t, agent, "gitvirt_agent_orphans", "pod") == 1, nil })
	if n.holder() == "" {
		t.Error("the Lease is free while the guest runs")
	}
	end()
	n.endPod(webUID)
	n.eventually("the Lease is free", func() (bool, any) { return n.holder() == "", n.holder() })
	n.eventually("nothing is told of any more", func() (bool, any) { return gauge(t, agent, "gitvirt_agent_orphans", "pod") == 0, nil })
}

// The Lease of a Pod that ended is free before the Pod is deleted.
func TestEndedPodGivesItsLeaseUp(t *testing.T) {
	n := newNode(t)
	n.agent()
	n.pod(db, createOn)
	n.ready(db, "1")
	n.update(db, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	})
	n.told(db, "it is not ready", func(_ podapi.Observed, c corev1.PodCondition) bool { return c.Reason == "LauncherEnded" })
	n.endPod(webUID)
	n.eventually("the Lease is free", func() (bool, any) { return n.holder() == "", n.holder() })
}

// A guest that runs without its Lease, because somebody deleted or took it, goes on; a free one is taken, and of any other people know.
func TestLostLease(t *testing.T) {
	n := newNode(t)
	_, stop := n.agent()
	n.pod(db, createOn)
	n.ready(db, "1")
	stop()
	if err := n.client.CoordinationV1().Leases("shop").Delete(t.Context(), "virt-launcher-db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, stop = n.agent()
	n.eventually("it is taken again", func() (bool, any) { return n.holder() == nodeName+"/"+webUID, n.holder() })
	stop()
	if err := n.client.CoordinationV1().Leases("shop").Delete(t.Context(), "virt-launcher-db", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.lease("somebody")
	n.agent()
	n.eventually("people know", func() (bool, any) { return n.noted("NoLease") == 1, nil })
	if sight, _ := n.guest(webUID).look(); sight.Domain.GetState() != "running" {
		t.Error("the guest was stopped")
	}
}

// Machines that write to no claims need no Lease.
func TestNoLease(t *testing.T) {
	for _, volumes := range []string{
		"", "volumes: [{name: data, ephemeral: {persistentVolumeClaim: {claimName: data}}}]",
		"volumes: [{name: data, persistentVolumeClaim: {claimName: data, readOnly: true}}]", "volumes: [{name: data, emptyDisk: {capacity: 1Gi}}]",
	} {
		n := newNode(t)
		without := db
		without.volumes = volumes
		_, stop := n.agent()
		n.pod(without, createOn)
		n.ready(without, "1")
		stop()
		if n.holder() != "" || len(n.writes()) != 1 {
			t.Errorf("%q: %q has a Lease; %v", volumes, n.holder(), n.writes())
		}
	}
}

// Guests of gitvirt's in no Pod, and domains in a Pod's libvirt that are not the Pod's, are told of once; others' guests are not.
func TestOrphans(t *testing.T) {
	n := newNode(t)
	end := n.process("", "qemu-system-x86_64", "qemu-system-x86_64", "-name", "guest=shop_lost", "-chardev", "path=/run/gitvirt/monitor")
	n.process("", "qemu-system-x86_64", "qemu-system-x86_64", "-name", "guest=others", "-drive", "file=/srv/disk.img")
	agent, _ := n.agent()
	n.pod(web, createOn)
	n.process(webUID, "qemu-system-x86_64", "qemu-system-x86_64", "-name", "guest=shop_web", "-chardev", "path=/run/gitvirt/monitor")
	n.ready(web, "1")
	counts := func(outside, domains float64) func() (bool, any) {
		return func() (bool, any) {
			a, b, c := gauge(t, agent, "gitvirt_agent_orphans", "outside"), gauge(t, agent, "gitvirt_agent_orphans", "domain"), gauge(t, agent, "gitvirt_agent_orphans", "pod")
			return a == outside && b == domains && c == 0, []float64{a, b, c}
		}
	}
	g := n.guest(webUID)
	g.change(func() { g.others = []string{"shop_other", "intruder"} })
	n.eventually("all are counted", counts(1, 2))
	g.change(func() { g.others = nil })
	end()
	n.eventually("none is left", counts(0, 0))
	if count := n.noted("OrphanedGuest"); count != 3 {
		t.Errorf("told %d times", count)
	}
}
