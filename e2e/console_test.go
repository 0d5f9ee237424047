//go:build e2e

package e2e

import (
	"encoding/json"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/gitvirt/gitvirt/identity"
	"github.com/gitvirt/gitvirt/install"
)

// kubeconfig writes how somebody reaches the API server.
func (i *installed) kubeconfig(who *clientcmdapi.AuthInfo) string {
	i.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["e2e"] = &clientcmdapi.Cluster{Server: i.config.Host, CertificateAuthorityData: i.config.CAData}
	config.AuthInfos["e2e"], config.Contexts["e2e"], config.CurrentContext = who, &clientcmdapi.Context{Cluster: "e2e", AuthInfo: "e2e"}, "e2e"
	path := filepath.Join(i.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		i.Fatal(err)
	}
	return path
}

// startAgent runs the agent of node-1 in the network of the node, with a token that is bound to a Pod in that network.
func (i *installed) startAgent(r *agentRig) {
	i.Helper()
	place := guestPod("gitvirt-agent-e2e", "node-1")
	place.Labels, place.Annotations = install.AgentLabels(), nil
	place.Spec.ServiceAccountName, place.Spec.HostNetwork = "gitvirt-agent", true
	bound, err := i.admin.CoreV1().Pods(own).Create(i.Context(), place, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	i.await("the agent's Pod runs", func() bool {
		now, err := i.admin.CoreV1().Pods(own).Get(i.Context(), bound.Name, metav1.GetOptions{})
		return err == nil && now.Status.Phase == corev1.PodRunning
	})
	root := r.root("node-1")
	agent := exec.Command("nsenter", "--net="+filepath.Join(filepath.Dir(root), "ns/net"), "../bin/gitvirt-agent", "--kubernetes", "--node=node-1", "--namespace="+own,
		"--kubeconfig="+i.kubeconfig(&clientcmdapi.AuthInfo{Token: i.grant("gitvirt-agent", bound)}), "--authority=", "--listen=127.0.0.1:9473",
		"--state-dir="+filepath.Join(r.dir, "state"), "--socket="+filepath.Join(r.dir, "agent.sock"), "--kubelet-dir="+filepath.Join(root, "var/lib/kubelet"),
		"--proc="+filepath.Join(root, "proc"), "--emulation=always", "--metrics=127.0.0.1:19475", "--devices=false")
	agent.Stdout, agent.Stderr = r.log, r.log
	if err := agent.Start(); err != nil {
		i.Fatal(err)
	}
	r.agents["node-1"] = agent
	i.Cleanup(func() { r.stop(syscall.SIGTERM) })
}

// consoles shows that somebody with the rights to it types in the console of a guest, reads what it answers and what it uses, with the programs
// that people have, through the API server; and what each right is for. alice has her certificate's right and the role edit where the VMs are.
func (i *installed) consoles(authority *identity.Authority) {
	i.Helper()
	r := &agentRig{T: i.T, dir: i.TempDir(), authority: authority, log: &output{}, agents: map[string]*exec.Cmd{}}
	i.startAgent(r)
	vm := machine(i.T, strings.Replace(guest, "{name: guest}", "{name: guest, namespace: "+theVMs+"}", 1))
	pod, secret := r.objects(vm, "1")
	pod.Spec.NodeSelector[corev1.LabelHostname] = "node-1" // where the agent is
	controller := i.as(account("gitvirt-controller"), "").CoreV1()
	if _, err := controller.Secrets(theVMs).Create(i.Context(), secret, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
	if _, err := controller.Pods(theVMs).Create(i.Context(), pod, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
	i.Cleanup(func() {
		_, _ = command(i.Context(), "-n", theVMs, "delete", "pod", pod.Name, "--grace-period=1", "--ignore-not-found").CombinedOutput()
	})
	eventually(i.T, "the guest runs", func() (bool, string) {
		now, err := i.admin.CoreV1().Pods(theVMs).Get(i.Context(), pod.Name, metav1.GetOptions{})
		return err == nil && condition(now, corev1.PodReady) == corev1.ConditionTrue, r.log.String()
	})
	log := follow(i.T, "-n", theVMs, pod.Name)
	eventually(i.T, "the guest has booted", func() (bool, string) { return strings.Contains(log.String(), "gitvirt-guest: ready"), log.String() })

	alice := i.kubeconfig(&clientcmdapi.AuthInfo{
		ClientCertificateData: i.config.CertData, ClientKeyData: i.config.KeyData, Impersonate: "alice", ImpersonateGroups: []string{"system:authenticated"},
	})
	gitvirt := func(arguments ...string) *exec.Cmd {
		return exec.CommandContext(i.Context(), "../bin/gitvirt", append(arguments, "--kubeconfig", alice, "--namespace", own)...)
	}
	refused := func(why, words string) {
		i.Helper()
		if said, err := gitvirt("stats", theVMs+"/guest").CombinedOutput(); err == nil || !strings.Contains(string(said), words) {
			i.Errorf("%s: %v\n%s", why, err, said)
		}
	}
	refused("without the Role", "the Role gitvirt-user in "+own+" gives the rights to reach agents")
	if _, err := i.admin.RbacV1().RoleBindings(own).Create(i.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "gitvirt-user"},
	}, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
	var used []byte
	eventually(i.T, "what the guest uses", func() (bool, string) {
		var err error
		used, err = gitvirt("stats", theVMs+"/guest", "--interval", "200ms", "-o", "json").Output()
		return err == nil, string(used)
	})
	found := struct {
		CPU    struct{ Seconds float64 } `json:"cpu"`
		Memory struct {
			ResidentBytes uint64 `json:"resident_bytes"`
		} `json:"memory"`
	}{}
	if err := json.Unmarshal(used, &found); err != nil || found.CPU.Seconds <= 0 || found.Memory.ResidentBytes < 32<<20 {
		i.Errorf("%v: %s", err, used)
	}
	i.types(gitvirt, r)
	i.denied("a port of another Pod", i.as("alice", "").CoreV1().RESTClient().Post().Resource("pods").Namespace(own).Name("agent").SubResource("portforward").Do(i.Context()).Error(),
		"ports are forwarded to gitvirt's agents only")
	if table, err := gitvirt("stats", theVMs+"/guest").CombinedOutput(); err == nil {
		i.Logf("gitvirt stats\n%s", table)
	}
	// Whose right is taken away has none at the next call.
	if err := i.admin.RbacV1().RoleBindings(theVMs).Delete(i.Context(), "alice", metav1.DeleteOptions{}); err != nil {
		i.Fatal(err)
	}
	i.await("the right to see the Pod is gone", func() bool {
		said, err := gitvirt("stats", theVMs+"/guest").CombinedOutput()
		return err != nil && strings.Contains(string(said), "forbidden")
	})
}

// types types in the guest's console and reads what it answers; a second one is told that somebody has it.
func (i *installed) types(gitvirt func(...string) *exec.Cmd, r *agentRig) {
	i.Helper()
	console, said := gitvirt("console", theVMs+"/guest"), &output{}
	console.Stdout, console.Stderr = said, said
	typing, err := console.StdinPipe()
	if err == nil {
		err = console.Start()
	}
	if err != nil {
		i.Fatal(err)
	}
	answers := func(text, answer string) {
		i.Helper()
		if _, err := io.WriteString(typing, text); err != nil {
			i.Fatal(err)
		}
		eventually(i.T, "the guest answers "+answer, func() (bool, string) {
			return strings.Contains(said.String(), answer), said.String() + "\n" + r.log.String()
		})
	}
	answers("\n", "# ")
	answers("echo answer-$((40 + 2))\n", "answer-42")
	if second, err := gitvirt("console", theVMs+"/guest").CombinedOutput(); err == nil || !strings.Contains(string(second), "somebody else has the console") {
		i.Errorf("a second one: %v\n%s", err, second)
	}
	if _, err := io.WriteString(typing, "\x1d"); err != nil {
		i.Fatal(err)
	}
	if err := console.Wait(); err != nil {
		i.Errorf("leaving: %v\n%s", err, said)
	}
	if logged := r.log.String(); !strings.Contains(logged, `msg="a console is opened" by="user \"alice\"" vm=VirtualMachine/`+theVMs+`/guest`) || strings.Contains(logged, "answer-42") {
		i.Errorf("the agent's log:\n%s", logged)
	}
	if last, err := gitvirt("console", theVMs+"/guest", "--lines", "3").CombinedOutput(); err != nil || !strings.Contains(string(last), "answer-42") {
		i.Errorf("the last lines: %v\n%s", err, last)
	}
}
