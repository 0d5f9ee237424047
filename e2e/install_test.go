//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gitvirt/gitvirt/identity"
	identitykubernetes "github.com/gitvirt/gitvirt/identity/kubernetes"
	"github.com/gitvirt/gitvirt/install"
	installer "github.com/gitvirt/gitvirt/install/cluster"
)

// The namespaces of this test, which no other uses.
const (
	own    = "gitvirt-install-e2e"
	theVMs = "gitvirt-install-e2e-vms"
)

// installed is an installation without its programs: accounts, rights and policies.
type installed struct {
	*testing.T
	config *rest.Config
	admin  kubernetes.Interface
}

func installRights(t *testing.T) *installed {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cluster(), "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = 200, 200
	i := &installed{t, config, client(t, config)}
	o := install.Defaults("e2e")
	o.Namespace, o.VMNamespaces, o.Repository = own, []string{theVMs}, "https://git.example.com/team/fleet.git"
	objects, err := install.Objects(o)
	if err != nil {
		t.Fatal(err)
	}
	// The programs are another test's; what the API server thinks of them is asked here.
	programs := func(object *unstructured.Unstructured) bool {
		return slices.Contains([]string{"Deployment", "DaemonSet"}, object.GetKind())
	}
	for _, object := range objects {
		if object.GetKind() == "ValidatingAdmissionPolicyBinding" && object.GetName() == "gitvirt-guest-pods" {
			// Other tests make Pods with gitvirt's labels by themselves.
			err := unstructured.SetNestedStringMap(object.Object, map[string]string{corev1.LabelMetadataName: theVMs}, "spec", "matchResources", "namespaceSelector", "matchLabels")
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		for _, name := range []string{own, theVMs} {
			_ = i.admin.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		}
		for _, object := range slices.Backward(objects) {
			if object.GetNamespace() == "" && object.GetKind() != "Namespace" {
				remove(t, object.GetKind(), object.GetName())
			}
		}
	})
	if _, err := i.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: theVMs}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rights := slices.DeleteFunc(slices.Clone(objects), programs)
	for _, want := range []installer.Outcome{installer.Created, installer.Unchanged} {
		if err := installer.Apply(t.Context(), all, rights, func(object *unstructured.Unstructured, outcome installer.Outcome) {
			if outcome != want {
				t.Errorf("%s: %s, want %s", installer.Name(object), outcome, want)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, object := range slices.DeleteFunc(slices.Clone(objects), func(object *unstructured.Unstructured) bool { return !programs(object) }) {
		apply(t, object, "--dry-run=server")
	}
	return i
}

// remove deletes an object of the whole cluster when the test is over.
func remove(t *testing.T, kind, name string) {
	t.Helper()
	if output, err := command(context.Background(), "delete", "--ignore-not-found", kind, name).CombinedOutput(); err != nil {
		t.Errorf("removing the %s %s: %v\n%s", kind, name, err, output)
	}
}

func client(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	made, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func account(name string) string { return "system:serviceaccount:" + own + ":" + name }

// as speaks for somebody, from a node if there is one.
func (i *installed) as(user, node string) kubernetes.Interface {
	i.Helper()
	config := rest.CopyConfig(i.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	if node != "" {
		config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
	}
	return client(i.T, config)
}

// token speaks with a token of an account, which is bound to a Pod if there is one.
func (i *installed) token(name string, pod *corev1.Pod) kubernetes.Interface {
	i.Helper()
	config := rest.AnonymousClientConfig(i.config)
	config.BearerToken, config.QPS, config.Burst = i.grant(name, pod), 200, 200
	return client(i.T, config)
}

// grant makes a token of an account.
func (i *installed) grant(name string, pod *corev1.Pod) string {
	i.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	granted, err := i.admin.CoreV1().ServiceAccounts(own).CreateToken(i.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	return granted.Status.Token
}

// denied wants an admission policy to say no, in words.
func (i *installed) denied(reason string, err error, words string) {
	i.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
		i.Errorf("%s: %v, want a denial with %q", reason, err, words)
	}
}

func (i *installed) allowed(reason string, err error) {
	i.Helper()
	if err != nil {
		i.Errorf("%s: %v", reason, err)
	}
}

// TestInstalledRights shows on a real API server that the accounts may do what they have to, and nothing else.
func TestInstalledRights(t *testing.T) {
	i := installRights(t)
	// A policy takes a moment to be in force.
	i.await("the admission policies", func() bool {
		_, err := i.admin.CoreV1().Pods(theVMs).Create(t.Context(), guestPod("other", ""), metav1.CreateOptions{})
		if err == nil {
			i.allowed("deleting a Pod", i.admin.CoreV1().Pods(theVMs).Delete(t.Context(), "other", metav1.DeleteOptions{}))
		}
		return apierrors.IsForbidden(err)
	})
	i.rights()
	pod := i.guestPods()
	i.agents(pod)
	i.secrets()
	i.certificates()
}

func (i *installed) await(what string, done func() bool) {
	i.Helper()
	eventually(i.T, what, func() (bool, string) { return done(), "not yet" })
}

// rights asks the API server what RBAC lets the accounts do.
func (i *installed) rights() {
	i.Helper()
	for _, c := range []struct {
		account, verb, group, resource, subresource, namespace, name string
		want                                                         bool
	}{
		{"controller", "get", "", "secrets", "", own, "gitvirt-ca", true},
		{"controller", "get", "", "secrets", "", own, "gitvirt-repository", false},
		{"controller", "list", "", "secrets", "", own, "", false},
		{"controller", "get", "", "secrets", "", theVMs, "virt-launcher-web", false},
		{"controller", "list", "", "secrets", "", theVMs, "", false},
		{"controller", "watch", "", "secrets", "", theVMs, "", false},
		{"controller", "get", "", "secrets", "", "default", "any", false},
		{"controller", "patch", "", "secrets", "", theVMs, "virt-launcher-web", true},
		{"controller", "patch", "", "secrets", "", "default", "any", false},
		{"controller", "patch", "", "secrets", "", own, "gitvirt-ca", false},
		{"controller", "create", "", "pods", "", theVMs, "", true},
		{"controller", "create", "", "pods", "", "default", "", false},
		{"controller", "create", "", "pods", "exec", theVMs, "virt-launcher-web", false},
		{"controller", "patch", "", "pods", "resize", theVMs, "virt-launcher-web", true},
		{"controller", "patch", "", "pods", "status", theVMs, "virt-launcher-web", false},
		{"controller", "delete", "", "persistentvolumeclaims", "", theVMs, "data", false},
		{"controller", "patch", "", "persistentvolumeclaims", "", theVMs, "data", true},
		{"controller", "patch", "", "nodes", "", "", "node-1", false},
		{"controller", "approve", "certificates.k8s.io", "signers", "", "", "gitvirt.io/agent", true},
		{"controller", "sign", "certificates.k8s.io", "signers", "", "", "kubernetes.io/kube-apiserver-client", false},
		{"controller", "update", "coordination.k8s.io", "leases", "", own, "gitvirt-controller", true},
		{"controller", "update", "coordination.k8s.io", "leases", "", "kube-system", "kube-scheduler", false},
		{"controller", "escalate", "rbac.authorization.k8s.io", "clusterroles", "", "", "", false},
		{"controller", "impersonate", "", "users", "", "", "", false},
		{"agent", "get", "", "secrets", "", own, "gitvirt-ca", false},
		{"agent", "get", "", "secrets", "", theVMs, "virt-launcher-web", false},
		{"agent", "list", "", "secrets", "", theVMs, "", false},
		{"agent", "patch", "", "secrets", "", theVMs, "virt-launcher-web", false},
		{"agent", "create", "", "secrets", "", own, "", false},
		{"agent", "list", "", "pods", "", "", "", true},
		{"agent", "create", "", "pods", "", theVMs, "", false},
		{"agent", "delete", "", "pods", "", theVMs, "virt-launcher-web", false},
		{"agent", "patch", "", "pods", "", theVMs, "virt-launcher-web", false},
		{"agent", "patch", "", "pods", "status", theVMs, "virt-launcher-web", true},
		{"agent", "patch", "", "pods", "status", "default", "any", false},
		{"agent", "create", "", "pods", "exec", theVMs, "virt-launcher-web", false},
		{"agent", "patch", "", "nodes", "", "", "node-1", true},
		{"agent", "patch", "", "nodes", "status", "", "node-1", false},
		{"agent", "create", "coordination.k8s.io", "leases", "", theVMs, "", true},
		{"agent", "create", "coordination.k8s.io", "leases", "", "kube-node-lease", "", false},
		{"agent", "create", "certificates.k8s.io", "certificatesigningrequests", "", "", "", true},
		{"agent", "approve", "certificates.k8s.io", "signers", "", "", "gitvirt.io/agent", false},
		{"agent", "update", "certificates.k8s.io", "certificatesigningrequests", "approval", "", "", false},
		{"agent", "get", "", "configmaps", "", own, "gitvirt-ca", true},
	} {
		review, err := i.admin.AuthorizationV1().SubjectAccessReviews().Create(i.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: account("gitvirt-" + c.account), Groups: []string{"system:serviceaccounts", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Verb: c.verb, Group: c.group, Resource: c.resource, Subresource: c.subresource, Namespace: c.namespace, Name: c.name,
				},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			i.Fatal(err)
		}
		if review.Status.Allowed != c.want {
			i.Errorf("%+v: allowed %t", c, review.Status.Allowed)
		}
	}
}

// guestPod is a Pod with gitvirt's marks.
func guestPod(name, node string) *corev1.Pod {
	grace := int64(0)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app.kubernetes.io/managed-by": "gitvirt", "gitvirt.io/vm": "web"},
			Annotations: map[string]string{"gitvirt.io/step": "1"},
		},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "compute", Image: "gitvirt.test/pause:1", ImagePullPolicy: corev1.PullNever}},
		},
	}
}

func patch(format string, args ...any) []byte { return fmt.Appendf(nil, format, args...) }

// guestPods shows who may make and change the Pods of VMs, and returns one that runs.
func (i *installed) guestPods() *corev1.Pod {
	i.Helper()
	ctx := i.Context()
	controller := i.as(account("gitvirt-controller"), "node-1").CoreV1().Pods(theVMs)
	admin := i.admin.CoreV1().Pods(theVMs)
	_, err := admin.Create(ctx, guestPod("virt-launcher-web", "node-1"), metav1.CreateOptions{})
	i.denied("somebody else makes a Pod with gitvirt's labels", err, "only gitvirt's controller makes Pods")
	_, err = admin.Create(ctx, guestPod("virt-launcher-web", "node-1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	i.allowed("somebody asks what would become of such a Pod", err)
	alone := guestPod("mine", "")
	alone.Labels = nil
	_, err = admin.Create(ctx, alone, metav1.CreateOptions{})
	i.denied("somebody else makes a Pod with gitvirt's annotations", err, "only gitvirt's controller makes Pods")
	plain := guestPod("mine", "node-1")
	plain.Labels, plain.Annotations = nil, nil
	_, err = admin.Create(ctx, plain, metav1.CreateOptions{})
	i.allowed("somebody makes a Pod", err)
	_, err = admin.Patch(ctx, "mine", types.MergePatchType, patch(`{"metadata":{"labels":{"gitvirt.io/vm":"web"}}}`), metav1.PatchOptions{})
	i.denied("somebody makes a Pod one of gitvirt's", err, "changes labels")

	_, err = controller.Create(ctx, guestPod("other", ""), metav1.CreateOptions{})
	i.denied("the controller makes a Pod of another name", err, "virt-launcher-*")
	bare := guestPod("virt-launcher-bare", "")
	bare.Labels = nil
	_, err = controller.Create(ctx, bare, metav1.CreateOptions{})
	i.denied("the controller makes a Pod without its label", err, "no label")
	_, err = controller.Patch(ctx, "mine", types.MergePatchType, patch(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	i.denied("the controller changes somebody's Pod", err, "virt-launcher-*")
	i.denied("the controller deletes somebody's Pod", controller.Delete(ctx, "mine", metav1.DeleteOptions{}), "virt-launcher-*")
	_, err = controller.Create(ctx, guestPod("virt-launcher-web", "node-1"), metav1.CreateOptions{})
	i.allowed("the controller makes a Pod", err)

	for reason, c := range map[string][2]string{
		"an annotation of gitvirt's":              {`{"metadata":{"annotations":{"gitvirt.io/step":"2"}}}`, "changes annotations"},
		"an annotation of gitvirt's that is gone": {`{"metadata":{"annotations":{"gitvirt.io/step":null}}}`, "changes annotations"},
		"what an agent tells":                     {`{"metadata":{"annotations":{"gitvirt.io/observed":"{}"}}}`, "changes annotations"},
		"a label of gitvirt's":                    {`{"metadata":{"labels":{"gitvirt.io/vm":"db"}}}`, "changes labels"},
		"whose it is":                             {`{"metadata":{"labels":{"app.kubernetes.io/managed-by":"helm"}}}`, "changes labels"},
		"the image":                               {`{"spec":{"containers":[{"name":"compute","image":"example.com/other"}]}}`, "change the VM in git"},
	} {
		_, err = admin.Patch(ctx, "virt-launcher-web", types.StrategicMergePatchType, []byte(c[0]), metav1.PatchOptions{})
		i.denied("somebody changes "+reason, err, c[1])
	}
	_, err = admin.Patch(ctx, "virt-launcher-web", types.MergePatchType, patch(`{"metadata":{"annotations":{"note":"mine"},"labels":{"team":"a"}}}`), metav1.PatchOptions{})
	i.allowed("somebody notes something on the Pod", err)
	_, err = controller.Patch(ctx, "virt-launcher-web", types.MergePatchType, patch(`{"metadata":{"annotations":{"gitvirt.io/step":"2"}}}`), metav1.PatchOptions{})
	i.allowed("the controller changes the step", err)
	var running *corev1.Pod
	i.await("the kubelet tells of the Pod", func() bool {
		running, err = admin.Get(ctx, "virt-launcher-web", metav1.GetOptions{})
		return err == nil && running.Status.Phase == corev1.PodRunning
	})
	return running
}

// agents shows what agents may tell, and of which node.
func (i *installed) agents(pod *corev1.Pod) {
	i.Helper()
	ctx := i.Context()
	at := func(node string) kubernetes.Interface { return i.as(account("gitvirt-agent"), node) }
	tell := func(node, text string) error {
		_, err := at(node).CoreV1().Pods(theVMs).Patch(ctx, pod.Name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "status")
		return err
	}
	observed := `{"metadata":{"annotations":{"gitvirt.io/observed":"{}"}},"status":{"conditions":[{"type":"gitvirt.io/guest-ready","status":"True"}]}}`
	i.allowed("the agent of the node tells of the guest", tell("node-1", observed))
	i.denied("the agent of another node", tell("node-2", observed), "on its own node only")
	i.denied("an agent of no node", tell("", observed), "names its node")
	i.denied("an agent changes the step", tell("node-1", `{"metadata":{"annotations":{"gitvirt.io/step":"9"}}}`), "gitvirt.io/observed")
	i.denied("an agent changes a label", tell("node-1", `{"metadata":{"labels":{"team":"b"}}}`), "changes no label")
	_, err := at("node-1").CoreV1().Pods(theVMs).Patch(ctx, "mine", types.MergePatchType, patch(`{"metadata":{"annotations":{"gitvirt.io/observed":"{}"}}}`), metav1.PatchOptions{}, "status")
	i.denied("an agent tells of somebody's Pod", err, "gitvirt's Pods only")

	node := func(from, text string) error {
		_, err := at(from).CoreV1().Nodes().Patch(ctx, "node-1", types.MergePatchType, []byte(text), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	i.allowed("an agent labels its node", node("node-1", `{"metadata":{"labels":{"gitvirt.io/kvm":"true","cpu-model.gitvirt.io/Skylake":"true"}}}`))
	i.denied("an agent labels another node", node("node-2", `{"metadata":{"labels":{"gitvirt.io/kvm":"true"}}}`), "its own Node only")
	i.denied("an agent sets a label that is not gitvirt's", node("node-1", `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`), "nothing else")
	i.denied("an agent cordons its node", node("node-1", `{"spec":{"unschedulable":true}}`), "nothing else")

	lease := func(name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	one, two := at("node-1").CoordinationV1().Leases(theVMs), at("node-2").CoordinationV1().Leases(theVMs)
	_, err = one.Create(ctx, lease("virt-launcher-web", "node-2/uid"), metav1.CreateOptions{})
	i.denied("an agent takes a Lease for another node", err, "its own node only")
	_, err = one.Create(ctx, lease("web", "node-1/uid"), metav1.CreateOptions{})
	i.denied("an agent takes another Lease", err, "virt-launcher-*")
	_, err = one.Create(ctx, lease("virt-launcher-web", "node-1/uid"), metav1.CreateOptions{})
	i.allowed("an agent takes a Lease", err)
	i.denied("an agent gives up another node's Lease", two.Delete(ctx, "virt-launcher-web", metav1.DeleteOptions{}), "of its own node only")
	held, err := two.Get(ctx, "virt-launcher-web", metav1.GetOptions{})
	i.allowed("an agent reads a Lease", err)
	held.Spec.HolderIdentity = lease("", "node-2/other").Spec.HolderIdentity
	_, err = two.Update(ctx, held, metav1.UpdateOptions{})
	i.allowed("an agent takes over the Lease of a node that is gone", err)
	i.allowed("an agent gives up its Lease", two.Delete(ctx, "virt-launcher-web", metav1.DeleteOptions{}))

	i.allowed("somebody deletes the Pod", i.admin.CoreV1().Pods(theVMs).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	i.await("the Pod is gone", func() bool {
		_, err := i.admin.CoreV1().Pods(theVMs).Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// secrets shows that the controller writes Secrets of VMs, and neither reads nor writes any other.
func (i *installed) secrets() {
	i.Helper()
	ctx := i.Context()
	controller := i.as(account("gitvirt-controller"), "").CoreV1().Secrets(theVMs)
	_, err := i.admin.CoreV1().Secrets(theVMs).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, StringData: map[string]string{"password": "hidden"}}, metav1.CreateOptions{})
	i.allowed("somebody makes a Secret", err)
	_, err = controller.Get(ctx, "theirs", metav1.GetOptions{})
	i.denied("the controller reads a Secret", err, "cannot get resource")
	_, err = controller.Patch(ctx, "theirs", types.MergePatchType, patch(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
	i.denied("the controller is shown a Secret as the answer to a patch", err, "virt-launcher-*")
	i.denied("the controller deletes a Secret", controller.Delete(ctx, "theirs", metav1.DeleteOptions{}), "virt-launcher-*")
	mine := patch(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"virt-launcher-web","labels":{"app.kubernetes.io/managed-by":"gitvirt"}},"stringData":{"vm":"x"}}`)
	force := true
	for range 2 {
		_, err = controller.Patch(ctx, "virt-launcher-web", types.ApplyPatchType, mine, metav1.PatchOptions{FieldManager: "gitvirt", Force: &force})
		i.allowed("the controller writes the Secret of a VM", err)
	}
	i.allowed("the controller deletes it", controller.Delete(ctx, "virt-launcher-web", metav1.DeleteOptions{}))
}

// certificates shows that tokens of Pods, and nothing else, make certificates of their nodes.
func (i *installed) certificates() {
	i.Helper()
	ctx, cancel := context.WithCancel(i.Context())
	// The signer does its work with nothing but the controller's rights.
	controller := i.token("gitvirt-controller", nil)
	authority, err := identitykubernetes.OpenAuthority(ctx, controller, own, time.Now())
	if err != nil {
		i.Fatal(err)
	}
	if _, err := identitykubernetes.OpenAuthority(ctx, controller, own, time.Now()); err != nil {
		i.Errorf("opening the authority again: %v", err)
	}
	registry := prometheus.NewRegistry()
	signer, err := identitykubernetes.NewSigner(controller, own, authority, time.Now, slog.New(slog.DiscardHandler), registry)
	if err != nil {
		i.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- signer.Run(ctx) }()
	i.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			i.Error(err)
		}
	})

	agentPod := guestPod("agent", "node-1")
	agentPod.Labels, agentPod.Annotations, agentPod.Spec.ServiceAccountName = nil, nil, "gitvirt-agent"
	bound, err := i.admin.CoreV1().Pods(own).Create(ctx, agentPod, metav1.CreateOptions{})
	if err != nil {
		i.Fatal(err)
	}
	agent := i.token("gitvirt-agent", bound)
	trust, err := identitykubernetes.ReadTrust(ctx, agent, own)
	if err != nil {
		i.Fatal(err)
	}
	ask := func(who kubernetes.Interface, node string) error {
		certificate, err := identitykubernetes.Request(ctx, who, identity.Peer{Role: identity.Node, Name: node})
		if err == nil && !identity.Fresh(certificate, trust, time.Now()) {
			err = errors.New("it is not of the authority")
		}
		return err
	}
	i.allowed("the agent of node-1", ask(agent, "node-1"))
	for reason, err := range map[string]error{
		"the agent of node-1 as node-2":   ask(agent, "node-2"),
		"a token that is bound to no Pod": ask(i.token("gitvirt-agent", nil), "node-1"),
		"an administrator as node-1":      ask(i.admin, "node-1"),
		"an agent of another namespace":   ask(i.as("system:serviceaccount:"+theVMs+":gitvirt-agent", "node-1"), "node-1"),
	} {
		if !errors.Is(err, identitykubernetes.ErrDenied) && !apierrors.IsForbidden(err) {
			i.Errorf("%s: %v", reason, err)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		i.Fatal(err)
	}
	outcomes := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		outcomes[metric.GetLabel()[0].GetValue()] += metric.GetCounter().GetValue()
	}
	if outcomes["signed"] != 1 || outcomes["denied"] != 3 || outcomes["error"] != 0 {
		i.Errorf("counted %v", outcomes)
	}
	i.people(agent)
	i.consoles(authority)
}

// people shows who gets a certificate, and that it gives what RBAC says.
func (i *installed) people(agent kubernetes.Interface) {
	i.Helper()
	ctx := i.Context()
	alice := i.as("alice", "")
	if _, err := identitykubernetes.NewUser(ctx, alice, own); err == nil || !strings.Contains(err.Error(), "gitvirt-user") {
		i.Errorf("somebody without the right to ask: %v", err)
	}
	subject := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: own + "-alice"}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gitvirt-user"},
	}
	if _, err := i.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
	i.Cleanup(func() { remove(i.T, "clusterrolebinding", binding.Name) })
	var source identity.Source
	i.await("somebody may ask", func() (ok bool) {
		var err error
		source, err = identitykubernetes.NewUser(ctx, alice, own)
		return err == nil
	})
	certificate, err := source.Certificate()
	if err != nil {
		i.Fatal(err)
	}
	peer, err := identity.PeerOf(certificate.Leaf)
	if err != nil || peer.String() != `user "alice"` {
		i.Fatalf("the certificate is of %s, %v", peer, err)
	}
	console := func() error {
		return identitykubernetes.MayAccess(ctx, agent, peer, "create", "attach", theVMs, "virt-launcher-web")
	}
	if err := console(); !errors.Is(err, identity.ErrRefused) {
		i.Errorf("a console without rights: %v", err)
	}
	if _, err := i.admin.RbacV1().RoleBindings(theVMs).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "alice"}, Subjects: subject, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
	}, metav1.CreateOptions{}); err != nil {
		i.Fatal(err)
	}
	i.await("a console with the role edit", func() bool { return console() == nil })
}
