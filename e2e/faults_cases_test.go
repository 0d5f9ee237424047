//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// daemonKilled: the launcher starts another daemon, which finds the guest.
func (f *faults) daemonKilled(t *testing.T) {
	uid := string(f.one("web").UID)
	before := processesOf("libvirtd", uid)
	if len(before) != 1 {
		t.Fatalf("the Pod has %d daemons", len(before))
	}
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is another daemon", func() (bool, string) {
		now := processesOf("libvirtd", uid)
		return len(now) == 1 && now[0] != before[0], listed(now)
	})
	f.plugged("another CPU, with another daemon")
	f.unharmed(t)
}

// tampered: a step that the controller did not sign is carried out by nobody, and both say so.
func (f *faults) tampered(t *testing.T) {
	pod := f.one("web")
	step := pod.Annotations[podapi.AnnotationStep]
	annotate := func(step string) {
		must(t, nil, "-n", storyNamespace, "annotate", "--overwrite", "pod", pod.Name, podapi.AnnotationStep+"="+step)
	}
	const why = "its annotation gitvirt.io/signature is not that of its step"
	annotate(strings.Replace(step, "{", `{"power":"off",`, 1))
	f.told(t, "web", why)
	f.told(t, "web", "phase: Blocked")
	eventually(t, "the agent refuses it", func() (bool, string) {
		return strings.Contains(f.log.String(), `msg="the Pod is refused" pod=`+storyNamespace+"/"+pod.Name), tail(f.log.String())
	})
	eventually(t, "an event tells so", func() (bool, string) {
		events := must(t, nil, "-n", storyNamespace, "get", "events", "--field-selector", "reason=Refused,involvedObject.name="+pod.Name, "-o", "jsonpath={.items[*].message}")
		return strings.Contains(events, why), events
	})
	f.plugged("another CPU, which has to wait")
	f.told(t, "web", why)
	f.serves(t)
	if now := f.run("web"); now != f.web {
		t.Errorf("the guest was process %s and is %s", f.web, now)
	}
	annotate(step)
	f.unharmed(t)
	if said := f.said.String(); strings.Contains(said, "shut itself down") {
		t.Errorf("the controller thinks that the guest was off:\n%s", tail(said))
	}
}

// serverDown: guests, the agents and the controller go on; what was pushed meanwhile is carried out afterwards.
func (f *faults) serverDown(t *testing.T) {
	f.component(t, "stop", "kube-apiserver")
	t.Cleanup(func() { f.component(t, "start", "kube-apiserver") })
	f.plugged("another CPU, pushed to nobody")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for up := time.After(time.Minute); ; {
		f.serves(t)
		if now := f.run("web"); now != f.web {
			t.Fatalf("the guest was process %s and is %s", f.web, now)
		}
		select {
		case <-tick.C:
			continue
		case <-up:
		}
		break
	}
	for name, process := range map[string]*exec.Cmd{"controller": f.controller, "agent of " + f.home: f.agents[f.home], "agent of " + f.other: f.agents[f.other]} {
		if _, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(process.Process.Pid), "exe")); err != nil {
			t.Errorf("the %s has ended", name)
		}
	}
	f.component(t, "start", "kube-apiserver")
	f.unharmed(t)
	f.same(t)
}

// same wants data's guest to be the one that it was.
func (f *faults) same(t *testing.T) {
	t.Helper()
	f.runs("data")
	if count := f.counted(t); count != strconv.Itoa(f.boots) {
		t.Errorf("the guest was started %s times, want %d", count, f.boots)
	}
}

// kubeletStopped: the guests of a node whose kubelet is stopped go on, and are held. A Pod there that is deleted by force comes back on the
// other node, where its guest waits until the one before is gone: the claim has nothing else that would keep it from starting.
func (f *faults) kubeletStopped(t *testing.T) {
	f.component(t, "stop", f.home+"/kubelet")
	t.Cleanup(func() { f.component(t, "start", f.home+"/kubelet") })
	began := time.Now()
	silent(t, f.home)
	f.plugged("another CPU, for a node that does not answer")
	f.told(t, "web", "the node "+f.home+" does not answer")

	before, guest := f.one("data"), f.run("data")
	must(t, nil, "-n", storyNamespace, "delete", "pod", before.Name, "--force", "--grace-period=0")
	eventually(t, "another Pod waits for the Lease", func() (bool, string) {
		found := f.one("data")
		if found == nil {
			return false, "there is no Pod"
		}
		told := found.Annotations[podapi.AnnotationObserved]
		return found.UID != before.UID && found.Spec.NodeName == f.other && strings.Contains(told, "node "+f.home+" has it for Pod "+string(before.UID)), told
	})
	f.told(t, "data", "waiting for the Lease of the machine's claims")
	if now := f.run("data"); now != guest {
		t.Errorf("the guest was process %s and is %s", guest, now)
	}
	f.serves(t)
	if left := time.Minute - time.Since(began); left > 0 {
		<-time.After(left)
	}
	f.component(t, "start", f.home+"/kubelet")
	if found := f.started(t); found.Spec.NodeName != f.other {
		t.Errorf("it runs on %s", found.Spec.NodeName)
	}
	f.unharmed(t)
}

// nodeGone: what ran on a node that has lost its power is held until somebody says that it is off, and then runs elsewhere. The node comes
// back, and nothing on it does.
func (f *faults) nodeGone(t *testing.T) {
	before := f.one("data")
	f.stopAgent(f.other, syscall.SIGKILL)
	f.component(t, "stop", f.other)
	taint := []string{"taint", "node", f.other, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"}
	t.Cleanup(func() {
		f.component(t, "start", f.other)
		_, _ = kubectl(t, nil, "taint", "node", f.other, "node.kubernetes.io/out-of-service-")
	})
	silent(t, f.other)
	f.plugged("another CPU, which has nothing to do with that node")
	f.told(t, "data", "the node "+f.other+" does not answer")
	f.unharmed(t)
	if now := f.one("data"); now == nil || now.UID != before.UID || f.run("data") != "" {
		t.Errorf("the Pod is %+v, the guest's process %q", now, f.run("data"))
	}
	must(t, nil, taint...)
	if found := f.started(t); found.Spec.NodeName != f.home {
		t.Errorf("it runs on %s", found.Spec.NodeName)
	}
	f.component(t, "start", f.other)
	must(t, nil, append(taint[:3:3], "node.kubernetes.io/out-of-service-")...)
	f.startAgent(f.other)
	f.plugged("another CPU, when all is well again")
	f.unharmed(t)
	f.same(t)
}

// moved: a machine that is to be on another node gets another Pod there, when its guest has shut down here.
func (f *faults) moved(t *testing.T) {
	log := follow(t, "-n", storyNamespace, f.one("data").Name)
	f.pin = f.other
	f.write(f.manifests()...)
	planned, _ := exec.Command("../bin/gitvirt", "plan", f.checkout, "--kubeconfig="+filepath.Join(cluster(), "kubeconfig"), "--namespace="+controllerNamespace,
		"--vm-namespace="+storyNamespace, "--launcher-image="+os.Getenv("GITVIRT_E2E_LAUNCHER")).CombinedOutput()
	for _, words := range []string{"must be restarted", "made anew (so far on " + f.home + ")", "nodeSelector", "Plan: 1 restart"} {
		if !strings.Contains(string(planned), words) {
			t.Errorf("the plan does not say %q:\n%s", words, planned)
		}
	}
	f.plugged("on the other node")
	if found := f.started(t); found.Spec.NodeName != f.other {
		t.Errorf("it runs on %s", found.Spec.NodeName)
	}
	if said := log.String(); !strings.Contains(said, `msg="launcher ends" fate=shutdown`) {
		t.Errorf("the guest did not shut down:\n%s", said)
	}
	f.unharmed(t)
}

// deletedByForce: the Pod comes back on the same node, while its kubelet ends the one before.
func (f *faults) deletedByForce(t *testing.T) {
	before := f.one("data")
	must(t, nil, "-n", storyNamespace, "delete", "pod", before.Name, "--force", "--grace-period=0")
	if found := f.started(t); found.UID == before.UID || found.Spec.NodeName != f.other {
		t.Errorf("the Pod was %s and is %s on %s", before.UID, found.UID, found.Spec.NodeName)
	}
	f.unharmed(t)
}

// deleted: what a machine wrote to its claim is there when the machine is not, and when it is there again.
func (f *faults) deleted(t *testing.T) {
	f.push("nothing but the claim", claimNamed)
	f.gone("data")
	f.gone("web")
	if phase := must(t, nil, "-n", storyNamespace, "get", "pvc", "data", "-o", "jsonpath={.status.phase}"); phase != "Bound" {
		t.Errorf("the claim is %s", phase)
	}
	f.push("not even that")
	f.settled(t)
	if phase := must(t, nil, "-n", storyNamespace, "get", "pvc", "data", "-o", "jsonpath={.status.phase}"); phase != "Bound" {
		t.Errorf("the claim is %s", phase)
	}
	if count := f.counted(t); count != strconv.Itoa(f.boots) {
		t.Errorf("the disk says %q, want %d", count, f.boots)
	}
	f.home, f.pin = "", ""
	f.pushed("the machine again")
	f.started(t)
}

// settled waits until the controller has looked at the newest commit.
func (f *faults) settled(t *testing.T) {
	t.Helper()
	head := strings.TrimSpace(f.git(f.checkout, "rev-parse", "HEAD"))
	eventually(t, "the commit was looked at", func() (bool, string) {
		output, _ := exec.Command("git", "-C", f.repository, "show", "gitvirt/status:README.md").CombinedOutput()
		return strings.Contains(string(output), head[:7]), string(output)
	})
}
