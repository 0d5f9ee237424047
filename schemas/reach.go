package schemas

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// reachKind is a way in which a manifest reaches out of its namespace.
type reachKind uint8

const (
	reachesPath      reachKind = iota // a file or folder of the host
	reachesNamespace                  // another namespace
	reachesRight                      // a SourceRight
	reachesBeyond                     // what no source may
)

// reach is one way out of its namespace that a manifest of a source takes. Reaches are gathered when a file is read, so that
// Assemble need not look into the objects; what they may is for the Fleet to say. References are not among them.
type reach struct {
	kind     reachKind
	value    string
	path     string
	position Position
	// about says what the value is for, or what is wrong with it; fix is for what no source may.
	about, fix string
}

// reaches notes a way out, for files of sources only.
func (c *checker) reaches(kind reachKind, value string, path []any, about, fix string) {
	if c.file.Source == "" {
		return
	}
	c.reached = append(c.reached, reach{
		kind: kind, value: value, path: pathString(c.prefix, elements(path)), position: c.position(locate(c.root, path)), about: about, fix: fix,
	})
}

// reachesOf gathers the ways out of a machine.
func (c *checker) reachesOf(w *draft, vm *kubevirtv1.VirtualMachine) {
	if c.file.Source == "" {
		return
	}
	spec := &vm.Spec.Template.Spec
	c.settingsReach(w)
	c.metadataReach(w, vm)
	for i := range spec.Volumes {
		switch volume := &spec.Volumes[i]; {
		case volume.HostDisk != nil:
			c.reaches(reachesPath, volume.HostDisk.Path, c.in("volumes", i, "hostDisk", "path"), "", "")
		case volume.ContainerDisk != nil:
			c.imageReach(volume.ContainerDisk.Image, c.in("volumes", i, "containerDisk", "image"))
		}
	}
	if firmware := spec.Domain.Firmware; firmware != nil && firmware.KernelBoot != nil && firmware.KernelBoot.Container != nil {
		c.imageReach(firmware.KernelBoot.Container.Image, c.in("domain", "firmware", "kernelBoot", "container", "image"))
	}
	if cpu := spec.Domain.CPU; cpu != nil && cpu.DedicatedCPUPlacement {
		c.reaches(reachesRight, string(RightDedicatedCPUs), c.in("domain", "cpu", "dedicatedCpuPlacement"), "CPUs of the host for itself", "")
	}
	if memory := spec.Domain.Memory; memory != nil && memory.Hugepages != nil {
		c.reaches(reachesRight, string(RightHugePages), c.in("domain", "memory", "hugepages"), "huge pages of the host", "")
	}
	c.resourceReach("requests", spec.Domain.Resources.Requests)
	c.resourceReach("limits", spec.Domain.Resources.Limits)
	if spec.PriorityClassName != "" {
		c.reaches(reachesRight, string(RightPriorityClasses), c.in("priorityClassName"), "room at the cost of others", "")
	}
	if len(spec.Tolerations) > 0 {
		c.reaches(reachesRight, string(RightTolerations), c.in("tolerations"), "nodes that are kept free", "")
	}
	c.affinityReach(spec.Affinity)
	c.probeReach("livenessProbe", spec.LivenessProbe)
	c.probeReach("readinessProbe", spec.ReadinessProbe)
}

// resourceReach is about what a Pod has set aside on its node beside CPUs, memory and storage, which the quota counts.
func (c *checker) resourceReach(list string, resources corev1.ResourceList) {
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		path := c.in("domain", "resources", list, key(string(name)))
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
			c.reaches(reachesRight, string(RightHugePages), path, "huge pages of the host", "")
		default:
			c.reaches(reachesBeyond, "", path, "it takes devices of a node that the Fleet does not give", "remove it; devices that the Fleet permits are named under hostDevices and gpus")
		}
	}
}

// settingsReach is about annotations that speak of other machines. Their places were noted when they were read.
func (c *checker) settingsReach(w *draft) {
	s := &w.settings
	note := func(kind reachKind, setting, value, about, fix string) {
		c.reached = append(c.reached, reach{
			kind: kind, value: value, path: "metadata.annotations[" + setting + "]", position: s.positions[setting], about: about, fix: fix,
		})
	}
	if s.Adopt != "" {
		note(reachesBeyond, AnnotationAdopt, "", "a source adopts no domain: it may be anybody's", "have it adopted in the repository of the Fleet")
	}
	if !s.PreviousName.IsZero() {
		note(reachesNamespace, AnnotationPreviousName, s.PreviousName.Namespace, "the machine that it was", "")
	}
	for _, dependency := range s.DependsOn {
		note(reachesNamespace, AnnotationDependsOn, dependency.Namespace, "the machine that it waits for", "")
	}
}

// metadataReach is about annotations that Pods get and that components of a cluster obey.
func (c *checker) metadataReach(w *draft, vm *kubevirtv1.VirtualMachine) {
	metadata, annotations := at("spec", "template", "metadata", "annotations"), vm.Spec.Template.ObjectMeta.Annotations
	if w.memberKind() == KindVirtualMachineInstance {
		metadata, annotations = at("metadata", "annotations"), vm.Annotations
	}
	c.annotationReach(metadata, annotations)
}

func (c *checker) annotationReach(path []any, annotations map[string]string) {
	if c.file.Source == "" {
		return
	}
	for _, name := range sortedKeys(annotations) {
		if obeyed(name) {
			c.reaches(reachesBeyond, "", slices.Concat(path, at(key(name))), "components of a cluster obey this annotation, whatever a namespace may otherwise have",
				"remove it; networks are named under networks")
		}
	}
}

// obeyed tells annotations by which networks, runtimes and controllers of a cluster are told what to do: those that belong to
// Kubernetes itself and to network plugins.
func obeyed(name string) bool {
	owner, _, owned := strings.Cut(name, "/")
	if !owned {
		return strings.HasPrefix(name, "io.kubernetes.")
	}
	for _, domain := range []string{"kubernetes.io", "k8s.io", "ovn.org", "cilium.io"} {
		if owner == domain || strings.HasSuffix(owner, "."+domain) {
			return true
		}
	}
	return strings.Contains(owner, "cni")
}

// imageReach is about images that are files of the host, named as skopeo names them: oci:PATH[:TAG] and oci-archive:PATH[:TAG].
func (c *checker) imageReach(image string, path []any) {
	scheme, file, local := strings.Cut(image, ":")
	if !local || scheme != "oci" && scheme != "oci-archive" {
		return
	}
	file = "/" + strings.TrimLeft(file, "/") // CDI writes oci-archive://PATH
	if colon := strings.LastIndexByte(file, ':'); colon > strings.LastIndexByte(file, '/') {
		file = file[:colon]
	}
	c.reaches(reachesPath, file, path, "", "")
}

// affinityReach is about Pods of other namespaces, which an affinity keeps near or away.
func (c *checker) affinityReach(affinity *corev1.Affinity) {
	if affinity == nil {
		return
	}
	term := func(t *corev1.PodAffinityTerm, path []any) {
		for i, namespace := range t.Namespaces {
			c.reaches(reachesNamespace, namespace, slices.Concat(path, at("namespaces", i)), "the other Pod", "")
		}
		if t.NamespaceSelector != nil {
			c.reaches(reachesBeyond, "", slices.Concat(path, at("namespaceSelector")), "it selects namespaces of others", "list its own under namespaces")
		}
	}
	terms := func(kind string, strict []corev1.PodAffinityTerm, weighted []corev1.WeightedPodAffinityTerm) {
		for i := range strict {
			term(&strict[i], c.in("affinity", kind, required, i))
		}
		for i := range weighted {
			term(&weighted[i].PodAffinityTerm, c.in("affinity", kind, preferred, i, "podAffinityTerm"))
		}
	}
	if pod := affinity.PodAffinity; pod != nil {
		terms("podAffinity", pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pod := affinity.PodAntiAffinity; pod != nil {
		terms("podAntiAffinity", pod.RequiredDuringSchedulingIgnoredDuringExecution, pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

// probeReach is about probes of something else than the guest: they are sent by the host, from its own networks.
func (c *checker) probeReach(name string, probe *kubevirtv1.Probe) {
	if probe == nil {
		return
	}
	for _, one := range []struct{ kind, host string }{{"httpGet", hostOfHTTP(probe)}, {"tcpSocket", hostOfTCP(probe)}} {
		if one.host != "" {
			c.reaches(reachesBeyond, "", c.in(name, one.kind, "host"), "the probe would be sent from the host to a machine that is not this one", "remove host, which then is the guest")
		}
	}
}

func hostOfHTTP(probe *kubevirtv1.Probe) string {
	if probe.HTTPGet == nil {
		return ""
	}
	return probe.HTTPGet.Host
}

func hostOfTCP(probe *kubevirtv1.Probe) string {
	if probe.TCPSocket == nil {
		return ""
	}
	return probe.TCPSocket.Host
}

// serviceReach is about Services that take ports or addresses of the whole cluster.
func (c *checker) serviceReach(spec *corev1.ServiceSpec) {
	if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer {
		c.reaches(reachesRight, string(RightNodePorts), at("spec", "type"), "ports of every node", "")
	}
	for i := range spec.ExternalIPs {
		c.reaches(reachesBeyond, "", at("spec", "externalIPs", i), "it takes over what is sent to an address of somebody else", "remove it")
	}
	if spec.LoadBalancerIP != "" {
		c.reaches(reachesBeyond, "", at("spec", "loadBalancerIP"), "it picks an address that may be meant for others", "remove it")
	}
}

// refuses says why a source may not take a way out, and what to do; "" when it may.
func (s *FleetSource) refuses(r *reach) (message, fix string) {
	switch r.kind {
	case reachesPath:
		if s.allowsPath(r.value) {
			return "", ""
		}
		return fmt.Sprintf("the source %s may not use %s of a host", s.Name, quoteValue(r.value)), givenPaths(s.HostPaths)
	case reachesNamespace:
		if s.allowsNamespace(r.value) {
			return "", ""
		}
		return fmt.Sprintf("%s is in the namespace %s, which the source %s may not speak of", r.about, quoteValue(r.value), s.Name), "stay within " + strings.Join(s.Namespaces, ", ")
	case reachesRight:
		if s.allows(SourceRight(r.value)) {
			return "", ""
		}
		return fmt.Sprintf("the source %s may not ask for %s", s.Name, r.about), fmt.Sprintf("remove it, or have %s added to its allow in the Fleet", r.value)
	}
	return r.about, r.fix
}

func givenPaths(paths []string) string {
	if len(paths) == 0 {
		return "use a claim, or have a folder added to its hostPaths in the Fleet"
	}
	return "use what is below " + strings.Join(paths, ", ") + ", or a claim"
}
