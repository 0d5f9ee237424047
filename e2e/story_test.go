//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// storyNamespace is where the controller's machines are, controllerNamespace where its keys are.
const (
	storyNamespace      = "story-e2e"
	controllerNamespace = "story-e2e-system"
)

// story is a repository, with a controller and the agents of the nodes as processes of this machine.
type story struct {
	*agentRig
	repository, checkout string
	controller           *exec.Cmd
	said                 *output
}

func newStory(t testing.TB) *story {
	s := &story{agentRig: newAgentRig(t), said: &output{}}
	s.repository, s.checkout = filepath.Join(s.dir, "fleet.git"), filepath.Join(s.dir, "fleet")
	for _, name := range []string{storyNamespace, controllerNamespace} {
		apply(t, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}})
		t.Cleanup(func() {
			_, _ = command(context.Background(), "delete", "namespace", name, "--timeout=90s").CombinedOutput()
		})
	}
	s.git("", "init", "-q", "--bare", "-b", "main", s.repository)
	s.git("", "clone", "-q", s.repository, s.checkout)
	s.startController()
	s.trust()
	s.start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the controller said:\n%s\nthe agent said:\n%s", tail(s.said.String()), tail(s.log.String()))
		}
	})
	return s
}

// tail is the end of a text.
func tail(text string) string {
	const most = 12000
	return text[max(len(text)-most, 0):]
}

func (s *story) git(dir string, arguments ...string) string {
	s.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, arguments...)...)
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	if err != nil {
		s.Fatalf("git %v: %v\n%s", arguments, err, output)
	}
	return string(output)
}

// push makes the repository hold exactly these manifests, and a Fleet.
func (s *story) push(subject string, manifests ...string) {
	s.Helper()
	s.write(manifests...)
	s.git(s.checkout, "add", "-A")
	s.git(s.checkout, "commit", "-q", "--allow-empty", "-m", subject)
	s.git(s.checkout, "push", "-q", "origin", "HEAD:main")
}

// write makes the checkout hold exactly these manifests, and a Fleet.
func (s *story) write(manifests ...string) {
	s.Helper()
	const fleet = "apiVersion: gitvirt.io/v1alpha1\nkind: Fleet\nmetadata: {name: story}\nspec: {platform: kubernetes, interval: 1s, policy: {apply: {restart: automatic, destroy: automatic}}}\n"
	for name, content := range map[string]string{"gitvirt.yaml": fleet, "vms.yaml": strings.Join(manifests, "---\n")} {
		if err := os.WriteFile(filepath.Join(s.checkout, name), []byte(content), 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

func (s *story) startController() {
	s.Helper()
	s.controller = exec.Command("../bin/gitvirt", "run", "--kubernetes", "--kubeconfig="+filepath.Join(cluster(), "kubeconfig"), "--git="+s.repository,
		"--namespace="+controllerNamespace, "--vm-namespace="+storyNamespace, "--launcher-image="+os.Getenv("GITVIRT_E2E_LAUNCHER"),
		"--emulation=always", "--state-dir="+filepath.Join(s.dir, "controller"), "--listen=127.0.0.1:19571", "--debug")
	s.controller.Stdout, s.controller.Stderr = s.said, s.said
	if err := s.controller.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.stopController(syscall.SIGTERM) })
}

func (s *story) stopController(signal syscall.Signal) {
	if s.controller != nil {
		_ = s.controller.Process.Signal(signal)
		_ = s.controller.Wait()
		s.controller = nil
	}
}

// trust gives the agent what a DaemonSet mounts.
func (s *story) trust() {
	s.Helper()
	found := &corev1.ConfigMap{}
	eventually(s.T, "the controller publishes its keys", func() (bool, string) {
		text, err := kubectl(s.T, nil, "-n", controllerNamespace, "get", "configmap", "gitvirt-ca", "-o", "json")
		return err == nil && json.Unmarshal([]byte(text), found) == nil, text + s.said.String()
	})
	for name, content := range found.Data {
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
			s.Fatal(err)
		}
	}
}

// pods are those of the story that are not on their way out.
func (s *story) pods() (all []corev1.Pod) {
	s.Helper()
	list := &corev1.PodList{}
	if err := json.Unmarshal([]byte(must(s.T, nil, "-n", storyNamespace, "get", "pods", "-l", podapi.LabelManagedBy+"="+podapi.ManagedBy, "-o", "json")), list); err != nil {
		s.Fatal(err)
	}
	return list.Items
}

// one returns the Pod of a machine; nil when there is none.
func (s *story) one(vm string) *corev1.Pod {
	s.Helper()
	for _, found := range s.pods() {
		if found.Labels[podapi.LabelVM] == vm {
			return &found
		}
	}
	return nil
}

// ready waits until the guest of a machine is ready as a commit wants it, and returns its Pod.
func (s *story) ready(vm string) *corev1.Pod {
	s.Helper()
	want := strings.TrimSpace(s.git(s.checkout, "rev-parse", "HEAD"))
	var found *corev1.Pod
	eventually(s.T, vm+" is ready", func() (bool, string) {
		if found = s.one(vm); found == nil {
			return false, "there is no Pod"
		}
		told, err := podapi.DecodeObserved(found.Annotations)
		if err != nil || told == nil || told.Domain == nil {
			return false, found.Annotations[podapi.AnnotationObserved]
		}
		through := strings.Contains(found.Annotations[podapi.AnnotationStep], `"id":"`+told.Step+`"`)
		return through && condition(found, corev1.PodReady) == corev1.ConditionTrue && told.Domain.GetRevision() == want && told.Domain.GetState() == "running",
			found.Annotations[podapi.AnnotationObserved]
	})
	return found
}

// gone waits until a machine has no Pod.
func (s *story) gone(vm string) {
	s.Helper()
	eventually(s.T, vm+" is gone", func() (bool, string) { return s.one(vm) == nil, "" })
}

// run tells one run of a guest from the next: the process of QEMU, as the host sees it.
func (s *story) run(vm string) string {
	s.Helper()
	output, _ := exec.Command("pgrep", "-f", "qemu-system-x86_64 -name guest="+storyNamespace+"_"+vm+",").Output()
	return strings.TrimSpace(string(output))
}

// status is what the status branch says of a machine.
func (s *story) status(vm string) string {
	cmd := exec.Command("git", "-C", s.repository, "show", "gitvirt/status:vms/"+storyNamespace+"/"+vm+".yaml")
	output, _ := cmd.CombinedOutput()
	return string(output)
}

// machineNamed is a manifest of a machine that boots the test guest. more are lines of its devices, settings lines of its domain.
func machineNamed(name, settings, more string) string {
	return `apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: ` + name + `, namespace: ` + storyNamespace + `}
spec:
  runStrategy: Always
` + templateOf(name, settings, more)
}

func templateOf(app, settings, more string) string {
	return `  template:
    metadata: {labels: {app: ` + app + `}}
    spec:
      terminationGracePeriodSeconds: 40
      dnsPolicy: Default
      domain:
        cpu: {sockets: 1, maxSockets: 4}
` + settings + `        memory: {guest: 96Mi}
        firmware:
          kernelBoot:
            kernelArgs: console=ttyS0 quiet no_timer_check
            container: {image: "gitvirt.test/guest:1", imagePullPolicy: Never, kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}
        devices:
          autoattachPodInterface: false
          autoattachGraphicsDevice: false
          logSerialConsole: true
` + more
}

// TestStory is the life of machines in a cluster: pushed, changed while they live, given a restart, scaled, and gone; and what befalls
// them on the way.
func TestStory(t *testing.T) {
	s := newStory(t)
	web := machineNamed("web", "", "")

	s.push("one machine", web)
	first := s.ready("web")
	process := s.run("web")
	eventually(t, "the status branch tells where it is", func() (bool, string) {
		text := s.status("web")
		return strings.Contains(text, "node: "+first.Spec.NodeName) && strings.Contains(text, "phase: Running"), text
	})

	live := strings.Replace(web, "sockets: 1,", "sockets: 2,", 1)
	s.push("another CPU", live)
	now := s.ready("web")
	if now.UID != first.UID || s.run("web") != process {
		t.Error("plugging a CPU made another Pod or another run of the guest")
	}
	if was, is := first.Spec.Containers[0].Resources.Requests.Cpu(), now.Spec.Containers[0].Resources.Requests.Cpu(); is.Cmp(*was) <= 0 {
		t.Errorf("the Pod asks for %s of CPU, asked for %s", is, was)
	}

	restart := strings.Replace(live, "          autoattachPodInterface", "          rng: {}\n          autoattachPodInterface", 1)
	s.push("a source of randomness", restart)
	if now = s.ready("web"); now.UID != first.UID || s.run("web") == process {
		t.Error("the guest was not restarted in its Pod")
	}
	process = s.run("web")

	t.Run("the controller is killed", func(t *testing.T) {
		s.stopController(syscall.SIGKILL)
		s.startController()
		s.push("nothing new", restart)
		eventually(t, "it has seen the commit", func() (bool, string) { return strings.Contains(s.said.String(), "nothing new"), s.said.String() })
		if s.run("web") != process || s.one("web").UID != first.UID {
			t.Error("the guest or its Pod is another one")
		}
	})
	t.Run("the agents are killed", func(t *testing.T) {
		s.stop(syscall.SIGKILL)
		s.start()
		s.push("another CPU more", strings.Replace(restart, "sockets: 2,", "sockets: 3,", 1))
		s.ready("web")
		if s.run("web") != process {
			t.Error("the guest is another one")
		}
	})
	t.Run("QEMU is killed", func(t *testing.T) {
		if output, err := exec.Command("kill", "-9", process).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		eventually(t, "the guest runs again", func() (bool, string) {
			found := s.one("web")
			return found != nil && found.UID != first.UID && condition(found, corev1.PodReady) == corev1.ConditionTrue, ""
		})
	})
	t.Run("the Pod is deleted by hand", func(t *testing.T) {
		before := s.ready("web")
		must(t, nil, "-n", storyNamespace, "delete", "pod", before.Name, "--wait=false")
		eventually(t, "there is another one", func() (bool, string) {
			found := s.one("web")
			return found != nil && found.UID != before.UID && condition(found, corev1.PodReady) == corev1.ConditionTrue, ""
		})
	})
	t.Run("a replica set is scaled", func(t *testing.T) { s.scale(t) })

	log := follow(t, "-n", storyNamespace, s.one("web").Name)
	s.push("nothing")
	s.gone("web")
	eventually(t, "the guest has shut down", func() (bool, string) {
		return strings.Contains(log.String(), `msg="launcher ends" fate=shutdown`), log.String()
	})
	if secrets := must(t, nil, "-n", storyNamespace, "get", "secrets", "-o", "name"); strings.TrimSpace(secrets) != "" {
		t.Errorf("Secrets are left: %s", secrets)
	}
}

// scale has a replica set of one machine, three on all nodes, and one again.
func (s *story) scale(t *testing.T) {
	set := func(replicas string) string {
		return `apiVersion: kubevirt.io/v1
kind: VirtualMachineInstanceReplicaSet
metadata: {name: set, namespace: ` + storyNamespace + `}
spec:
  replicas: ` + replicas + `
  selector: {matchLabels: {app: set}}
` + strings.Replace(templateOf("set", "", ""), "      dnsPolicy: Default\n", `      dnsPolicy: Default
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: set}}}
`, 1)
	}
	members := func(want int) {
		t.Helper()
		eventually(t, "so many members are ready", func() (bool, string) {
			all, ready, on := 0, 0, map[string]bool{}
			for _, pod := range s.pods() {
				if pod.Labels["app"] == "set" {
					all++
					if condition(&pod, corev1.PodReady) == corev1.ConditionTrue {
						ready++
					}
					on[pod.Spec.NodeName] = true
				}
			}
			return all == want && ready == want && len(on) == min(want, len(nodes(t))), s.said.String()
		})
	}
	for _, replicas := range []string{"1", "3", "1"} {
		s.push("scale to "+replicas, machineNamed("web", "", ""), set(replicas))
		members(int(replicas[0] - '0'))
	}
}
