// Package pods says what Kubernetes gets for a virtual machine: the launcher Pod that its guest runs in, and the Secret with what of
// the manifest is sensitive. It is pure: the same machine gives the same objects, byte by byte, so that applying them again changes
// nothing.
//
// The scheduler, the kubelet and the Pod network see a Pod like any other. What makes a guest of it, the libvirt domain, is made
// by the node agent from what travels with the Pod: the record of the machine in an annotation, the whole manifest in the Secret.
package pods

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
)

// annotationNetworks asks Multus for further networks.
const annotationNetworks = "k8s.v1.cni.cncf.io/networks"

// Container is the name of the launcher's container; it is KubeVirt's.
const Container = "compute"

// FieldManager is who owns the fields of the objects in server-side apply.
const FieldManager = "gitvirt"

// LauncherUser is the user and group that QEMU and libvirt run as in a Pod; it is KubeVirt's, so that claims change hands.
const LauncherUser = 107

// Prefix is what the names of launcher Pods begin with, as KubeVirt's do. What follows is the machine's name and nothing else: the API
// server never has two Pods of one machine, so that no two guests ever have its disks open.
const Prefix = "virt-launcher-"

// maxSecret is how much a Secret may hold, in bytes.
const maxSecret = 1 << 20

// Options say where and for whom the Pods are.
type Options struct {
	Fleet, Revision string
	// Image is the OCI image of gitvirt-launcher.
	Image string
	// ImageContainers has container disks come with containers of their images, for clusters without image volumes.
	ImageContainers bool
	// Emulation lets guests run without /dev/kvm: the Pods ask for no such device.
	Emulation bool
}

// Name is the name of a machine's Pod, and of its Secret.
func Name(vm schemas.Address) string { return Prefix + vm.Name }

// Pod returns the Pod that a machine's guest runs in. The error is that of Refused.
func Pod(vm *schemas.VM, options Options) (*corev1.Pod, error) {
	if err := Refused(vm); err != nil {
		return nil, err
	}
	spec := vm.Spec()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metadata(vm, options),
	}
	pod.Annotations[podapi.AnnotationRecord] = string(vm.Record)
	if networks := multus(spec, vm.Address.Namespace); networks != "" {
		pod.Annotations[annotationNetworks] = networks
	}
	s := &pod.Spec
	schedule(s, spec)
	s.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: podapi.GuestReady}}
	s.RestartPolicy = corev1.RestartPolicyNever // a guest that ended is the run strategy's business
	s.EnableServiceLinks = new(bool)
	s.AutomountServiceAccountToken = new(bool)
	s.Hostname, s.Subdomain = hostname(vm), spec.Subdomain
	grace := int64((vm.TerminationGracePeriod() + stopMargin) / time.Second)
	s.TerminationGracePeriodSeconds = &grace
	user, yes := int64(LauncherUser), true
	s.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, RunAsNonRoot: &yes,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	s.Containers = []corev1.Container{{
		Name: Container, Image: options.Image, Args: arguments(vm),
		Resources: resources(spec, options.Emulation),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(bool), ReadOnlyRootFilesystem: &yes,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}}
	volumes(s, vm, options)
	return pod, nil
}

// Secret returns the Secret with what of a machine is sensitive, for the node agent: content is the whole of it (podapi.EncodeVM).
func Secret(vm *schemas.VM, content []byte, options Options) (*corev1.Secret, error) {
	if len(content) > maxSecret {
		return nil, fmt.Errorf("%s: the machine with all that it refers to has %d bytes; a Secret of Kubernetes holds %d", vm.Position.Short(), len(content), maxSecret)
	}
	meta := metadata(vm, options)
	meta.Labels = map[string]string{
		podapi.LabelVM: vm.Address.Name, podapi.LabelFleet: options.Fleet, podapi.LabelManagedBy: podapi.ManagedBy,
	}
	meta.Annotations = map[string]string{podapi.AnnotationAddress: vm.Address.String()}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: meta,
		Data:       map[string][]byte{podapi.SecretKey: content, podapi.SecretMarker: {}},
	}, nil
}

// reserved is what labels and annotations of gitvirt's own begin with; a manifest does not set them.
const reserved = "gitvirt.io/"

// Given is the metadata that a manifest has for its Pod: a VirtualMachine's template has it, a VirtualMachineInstance, which has none, has it
// itself.
func Given(kind string, object *kubevirtv1.VirtualMachine) *metav1.ObjectMeta {
	if kind == schemas.KindVirtualMachineInstance {
		return &object.ObjectMeta
	}
	return &object.Spec.Template.ObjectMeta
}

// metadata is what both objects carry.
func metadata(vm *schemas.VM, options Options) metav1.ObjectMeta {
	template := Given(vm.Address.Kind, vm.Object)
	given := func(from map[string]string) map[string]string {
		out := map[string]string{}
		for key, value := range from {
			if !strings.HasPrefix(key, reserved) {
				out[key] = value
			}
		}
		return out
	}
	labels, annotations := given(template.Labels), given(template.Annotations)
	labels[podapi.LabelVM], labels[podapi.LabelFleet], labels[podapi.LabelManagedBy] = vm.Address.Name, options.Fleet, podapi.ManagedBy
	labels[podapi.LabelName] = vm.Address.Name
	annotations[podapi.AnnotationAddress], annotations[podapi.AnnotationHash] = vm.Address.String(), vm.Hash
	annotations[podapi.AnnotationRevision] = options.Revision
	return metav1.ObjectMeta{Name: Name(vm.Address), Namespace: vm.Address.Namespace, Labels: labels, Annotations: annotations}
}

// schedule copies what decides where the Pod runs, and as what.
func schedule(pod *corev1.PodSpec, spec *kubevirtv1.VirtualMachineInstanceSpec) {
	pod.NodeSelector, pod.Affinity, pod.Tolerations = spec.NodeSelector, spec.Affinity, spec.Tolerations
	pod.TopologySpreadConstraints, pod.SchedulerName = spec.TopologySpreadConstraints, spec.SchedulerName
	pod.PriorityClassName, pod.ServiceAccountName = spec.PriorityClassName, spec.ServiceAccountName
	pod.DNSPolicy, pod.DNSConfig = spec.DNSPolicy, spec.DNSConfig
	needs := map[string]string{}
	if spec.Architecture != "" {
		needs[corev1.LabelArchStable] = spec.Architecture
	}
	if cpu := spec.Domain.CPU; cpu != nil && cpu.Model != "" && cpu.Model != kubevirtv1.CPUModeHostModel && cpu.Model != kubevirtv1.CPUModeHostPassthrough {
		needs[podapi.LabelCPUModel+cpu.Model] = "true" // the agents of the nodes say so
	}
	if len(needs) > 0 {
		pod.NodeSelector = maps.Clone(spec.NodeSelector)
		if pod.NodeSelector == nil {
			pod.NodeSelector = map[string]string{}
		}
		maps.Copy(pod.NodeSelector, needs)
	}
}

// stopMargin is what the launcher gets beside the guest's own time to shut down.
const stopMargin = 15 * time.Second

// arguments are those of the launcher. The console goes to the Pod's log only when the manifest asks for it: a guest may print secrets.
func arguments(vm *schemas.VM) []string {
	out := []string{"-grace=" + vm.TerminationGracePeriod().String()}
	if log := vm.Spec().Domain.Devices.LogSerialConsole; log != nil && *log {
		out = append(out, "-console")
	}
	return out
}

func hostname(vm *schemas.VM) string {
	if name := vm.Spec().Hostname; name != "" {
		return name
	}
	return vm.Address.Name
}

// multus is what Multus is asked for, as JSON; "" for nothing.
func multus(spec *kubevirtv1.VirtualMachineInstanceSpec, namespace string) string {
	type network struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	}
	var all []network
	for i := range spec.Networks {
		if of := spec.Networks[i].Multus; of != nil {
			in, name := namespace, of.NetworkName
			if before, after, named := strings.Cut(name, "/"); named {
				in, name = before, after
			}
			all = append(all, network{Name: name, Namespace: in})
		}
	}
	if len(all) == 0 {
		return ""
	}
	out, err := json.Marshal(all)
	if err != nil {
		return "" // strings always have a JSON form
	}
	return string(out)
}
