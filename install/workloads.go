package install

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// credentialsDir is where the Secret with the credentials of the git server is mounted.
const credentialsDir = "/etc/gitvirt/repository" //nolint:gosec // a folder, not a credential

// FilesDir is where the Secret gitvirt-files is mounted.
const FilesDir = "/etc/gitvirt/files"

// configMaps are the settings, which are read when a program starts: restart it after a change.
func configMaps(o *Options) []any {
	namespaces := "" // all
	if !o.ClusterWide {
		namespaces = strings.Join(o.VMNamespaces, ",")
	}
	return []any{
		&corev1.ConfigMap{ObjectMeta: meta(settings, o.Namespace), Data: map[string]string{
			"launcher-image": o.LauncherImage, "emulation": o.Emulation, "image-volumes": o.ImageVolumes, "vm-namespaces": namespaces,
		}},
		&corev1.ConfigMap{ObjectMeta: meta(repository, o.Namespace), Data: map[string]string{
			"url": o.Repository, "branch": o.Branch, "path": o.Path,
		}},
	}
}

func fromConfigMap(variable, name, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{
		ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key},
	}}
}

func fromField(variable, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// when is an argument that is there under a condition, of which the chart makes one of Helm's.
type when struct {
	condition condition
	argument  string
}

// condition is the credentials that an argument is for, or withWebhooks.
type condition string

const withWebhooks condition = "webhooks"

// holds reports whether a condition is met.
func (o *Options) holds(c condition) bool {
	if c == withWebhooks {
		return o.Webhooks
	}
	return c == condition(o.Credentials)
}

// controllerArguments are the controller's command line.
func controllerArguments() ([]string, []when) {
	all := []string{
		"run", "--kubernetes", "--leader-elect", "--namespace=$(POD_NAMESPACE)", "--listen=0.0.0.0:" + fmt.Sprint(controllerPort), "--log-json",
		"--git=$(GITVIRT_REPOSITORY)", "--branch=$(GITVIRT_BRANCH)", "--path=$(GITVIRT_PATH)",
		"--emulation=$(GITVIRT_EMULATION)",
	}
	conditional := []when{
		{condition(Token), "--git-token-file=" + credentialsDir + "/token"},
		{condition(Password), "--git-password-file=" + credentialsDir + "/password"},
		{condition(SSH), "--ssh-key=" + credentialsDir + "/ssh-privatekey"},
		{condition(SSH), "--known-hosts=" + credentialsDir + "/known_hosts"},
		{withWebhooks, "--webhook-listen=:" + fmt.Sprint(webhookPort)},
		{withWebhooks, "--webhook-secret-file=" + FilesDir + "/webhook-secret"},
	}
	return all, conditional
}

// deployment is the controller.
func deployment(o *Options) *appsv1.Deployment {
	arguments, conditional := controllerArguments()
	for _, w := range conditional {
		if o.chart {
			arguments = append(arguments, w.mark())
		} else if o.holds(w.condition) {
			arguments = append(arguments, w.argument)
		}
	}
	// They come last, and count where they say again what stands before them.
	arguments = append(arguments, o.Arguments...)
	yes, no := true, false
	container := corev1.Container{
		Name: "controller", Image: o.ControllerImage, Args: arguments,
		Env: []corev1.EnvVar{
			fromField("POD_NAMESPACE", "metadata.namespace"), fromField("POD_NAME", "metadata.name"),
			fromConfigMap("GITVIRT_REPOSITORY", repository, "url"), fromConfigMap("GITVIRT_BRANCH", repository, "branch"), fromConfigMap("GITVIRT_PATH", repository, "path"),
			fromConfigMap("GITVIRT_EMULATION", settings, "emulation"),
		},
		Ports:         []corev1.ContainerPort{{Name: "http", ContainerPort: controllerPort}},
		LivenessProbe: probe("/healthz", controllerPort), ReadinessProbe: probe("/healthz", controllerPort),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "state", MountPath: "/var/lib/gitvirt"},
			{Name: "tmp", MountPath: "/tmp"},
			{Name: "repository", MountPath: credentialsDir, ReadOnly: true},
			{Name: "files", MountPath: FilesDir, ReadOnly: true},
		},
	}
	template := podTemplate(controller, "system-cluster-critical", container)
	template.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: &yes, FSGroup: pointer(int64(65532)), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	template.Spec.Volumes = []corev1.Volume{
		// Mirrors of the repository: all of it can be fetched again.
		emptyDir("state"), emptyDir("tmp"),
		yours("repository", repository), yours("files", optionFiles),
	}
	// Two on one node go down together.
	template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector(controller),
	}}
	return &appsv1.Deployment{ObjectMeta: meta(controller, o.Namespace), Spec: appsv1.DeploymentSpec{
		Replicas: &o.Replicas, Selector: selector(controller), Template: template,
	}}
}

// yours is a volume of a Secret that is not installed, and that may be missing.
func yours(name, secret string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: secret, Optional: pointer(true), DefaultMode: pointer(int32(0o440)),
	}}}
}

// daemonSet are the agents. What an agent may on its node, and why:
//
//   - root and privileged: it opens /dev/kvm and /dev/net/tun, which only a privileged container's device cgroup lets it, enters the network
//     namespaces of VMs' Pods to make their taps and rules, and reads volumes of Pods that belong to other users;
//   - the node's PIDs: a Pod's network namespace is that of one of its processes;
//   - /var/lib/kubelet/pods: the sockets, disks and Secrets of VMs' Pods are volumes there, and come while the agent runs;
//   - /var/lib/kubelet/device-plugins: it tells the kubelet of devices.gitvirt.io/*;
//   - /dev: whether there is KVM;
//   - /var/lib/gitvirt: what it keeps of VMs while it is restarted.
//
// It does not share the node's network: the interfaces that it makes are in the Pods, and its service stands behind a NetworkPolicy.
func daemonSet(o *Options) *appsv1.DaemonSet {
	yes := true
	container := corev1.Container{
		Name: "agent", Image: o.AgentImage,
		Args: []string{
			"--kubernetes", "--node=$(NODE_NAME)", "--namespace=$(POD_NAMESPACE)", "--listen=:" + fmt.Sprint(agentPort), "--metrics=:" + fmt.Sprint(agentMetricsPort),
			"--authority=/etc/gitvirt/ca", "--state-dir=/var/lib/gitvirt/agent", "--socket=/var/lib/gitvirt/agent.sock", "--emulation=$(GITVIRT_EMULATION)",
		},
		Env: []corev1.EnvVar{
			fromField("NODE_NAME", "spec.nodeName"), fromField("POD_NAMESPACE", "metadata.namespace"),
			fromConfigMap("GITVIRT_EMULATION", settings, "emulation"),
		},
		Ports:         []corev1.ContainerPort{{Name: "grpc", ContainerPort: agentPort}, {Name: "http", ContainerPort: agentMetricsPort}},
		LivenessProbe: probe("/healthz", agentMetricsPort), ReadinessProbe: probe("/readyz", agentMetricsPort),
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{Privileged: &yes, RunAsUser: pointer(int64(0)), ReadOnlyRootFilesystem: &yes},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "pods", MountPath: "/var/lib/kubelet/pods", MountPropagation: pointer(corev1.MountPropagationHostToContainer)},
			{Name: "device-plugins", MountPath: "/var/lib/kubelet/device-plugins"},
			{Name: "dev", MountPath: "/dev"},
			{Name: "state", MountPath: "/var/lib/gitvirt"},
			{Name: "tmp", MountPath: "/tmp"},
			{Name: "authority", MountPath: "/etc/gitvirt/ca", ReadOnly: true},
		},
	}
	template := podTemplate(agent, "system-node-critical", container)
	template.Spec.HostPID = true
	// Wherever a VM's Pod may run, an agent does.
	template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	template.Spec.Volumes = []corev1.Volume{
		hostPath("pods", "/var/lib/kubelet/pods", corev1.HostPathDirectory), hostPath("device-plugins", "/var/lib/kubelet/device-plugins", corev1.HostPathDirectory),
		hostPath("dev", "/dev", corev1.HostPathDirectory), hostPath("state", "/var/lib/gitvirt", corev1.HostPathDirectoryOrCreate), emptyDir("tmp"),
		// The kubelet starts no agent before the controller has made the authority.
		{Name: "authority", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: authority}}}},
	}
	return &appsv1.DaemonSet{ObjectMeta: meta(agent, o.Namespace), Spec: appsv1.DaemonSetSpec{
		Selector: selector(agent), Template: template,
		UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: pointer(intstr.FromString("10%"))},
		},
	}}
}

func probe(path string, port int32) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(port)}}, PeriodSeconds: 10}
}

// podTemplate is what both have in common.
func podTemplate(name, priority string, container corev1.Container) corev1.PodTemplateSpec {
	yes := true
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels(name)},
		Spec: corev1.PodSpec{
			ServiceAccountName: name, AutomountServiceAccountToken: &yes, PriorityClassName: priority,
			NodeSelector: map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64"},
			Containers:   []corev1.Container{container},
		},
	}
}

// around is what surrounds the controller: its Service, who may reach what, and how many of it may be away.
func around(o *Options) []any {
	port := func(number int32) networkingv1.NetworkPolicyPort {
		return networkingv1.NetworkPolicyPort{Protocol: pointer(corev1.ProtocolTCP), Port: pointer(intstr.FromInt32(number))}
	}
	to := func(number int32, from ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{port(number)}, From: from}
	}
	reach := func(name string, rules ...networkingv1.NetworkPolicyIngressRule) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: meta(name, o.Namespace), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *selector(name), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: rules,
		}}
	}
	neighbours := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
	// The label is for the namespace of whoever reads the metrics.
	readers := networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"gitvirt.io/metrics": "true"}}}
	return []any{
		&corev1.Service{ObjectMeta: meta(controller, o.Namespace), Spec: corev1.ServiceSpec{
			Selector: labels(controller), Ports: []corev1.ServicePort{{Name: "http", Port: controllerPort, TargetPort: intstr.FromString("http")}},
		}},
		&policyv1.PodDisruptionBudget{ObjectMeta: meta(controller, o.Namespace), Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: pointer(intstr.FromInt32(1)), Selector: selector(controller),
		}},
		reach(controller, to(controllerPort, neighbours, readers)),
		reach(agent, to(agentPort, neighbours), to(agentMetricsPort, neighbours, readers)),
	}
}

// webhookService is where a forge reaches the controller: an Ingress in front of it ends TLS. Whoever sends nothing that is signed is turned away by
// the controller itself, so that everybody may try.
func webhookService(o *Options) []any {
	port := intstr.FromInt32(webhookPort)
	return []any{
		&corev1.Service{ObjectMeta: meta(webhooks, o.Namespace), Spec: corev1.ServiceSpec{
			Selector: labels(controller), Ports: []corev1.ServicePort{{Name: "http", Port: webhookPort, TargetPort: port}},
		}},
		&networkingv1.NetworkPolicy{ObjectMeta: meta(webhooks, o.Namespace), Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *selector(controller), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: pointer(corev1.ProtocolTCP), Port: &port}}}},
		}},
	}
}

// serviceMonitor is for the Prometheus operator, whose types are not ours to import.
func serviceMonitor(o *Options) any {
	out := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{
			"selector":  map[string]any{"matchLabels": asAny(labels(controller))},
			"endpoints": []any{map[string]any{"port": "http", "path": "/metrics"}},
		},
	}}
	out.SetAPIVersion("monitoring.coreos.com/v1")
	out.SetKind("ServiceMonitor")
	out.SetName(controller)
	out.SetNamespace(o.Namespace)
	out.SetLabels(labels(controller))
	return out
}

// namespace lets privileged Pods be in it, which the agents are.
func namespace(o *Options) *corev1.Namespace {
	out := &corev1.Namespace{ObjectMeta: meta(o.Namespace, "")}
	out.Labels["pod-security.kubernetes.io/enforce"] = "privileged"
	return out
}

// AgentLabels are those of the agents' Pods.
func AgentLabels() map[string]string { return labels(agent) }

// labels are those of an object. They say nothing of managed-by gitvirt: that is for what the controller makes of git.
func labels(name string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "gitvirt"}
}

func selector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: labels(name)}
}

func meta(name, namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/part-of": "gitvirt"}}
}

func emptyDir(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
}

func hostPath(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func pointer[T any](value T) *T { return &value }

func fields(text string) []string { return strings.Fields(text) }

func asAny(from map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range from {
		out[key] = value
	}
	return out
}
