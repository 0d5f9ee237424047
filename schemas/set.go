package schemas

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kubevirtv1 "kubevirt.io/api/core/v1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
)

// The bounds of sets: far more machines than a host can run, and few enough that a small file stays cheap to read.
const (
	maxReplicas = 1000
	maxMembers  = 2000
	// maxSetBytes bounds the records of a set, because every machine has the template in its own.
	maxSetBytes = 16 << 20
)

// set is what a VirtualMachineInstanceReplicaSet or a VirtualMachinePool says besides its template.
type set struct {
	replicas int
	paused   bool
	// numberSecrets and numberConfigMaps append the machine's number to the names of what its volumes refer to.
	numberSecrets, numberConfigMaps bool
}

// readReplicaSet reads a VirtualMachineInstanceReplicaSet; its machines are VirtualMachineInstances.
func readReplicaSet(d *document, h *header) {
	manifest := &kubevirtv1.VirtualMachineInstanceReplicaSet{}
	d.decodeInto(manifest, h.kind)
	w := &draft{within: at("spec", "template"), spec: at("spec"), set: &set{paused: manifest.Spec.Paused}}
	var templateLabels map[string]string
	if template := manifest.Spec.Template; template != nil {
		once := kubevirtv1.RunStrategyOnce
		templateLabels = template.ObjectMeta.Labels
		w.object = &kubevirtv1.VirtualMachine{
			ObjectMeta: template.ObjectMeta,
			Spec: kubevirtv1.VirtualMachineSpec{
				RunStrategy: &once, Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: template.Spec},
			},
		}
	}
	w.readSet(d, h, &manifest.ObjectMeta, manifest.Spec.Replicas, manifest.Spec.Selector, templateLabels)
}

// readPool reads a VirtualMachinePool.
func readPool(d *document, h *header) {
	manifest := &poolv1.VirtualMachinePool{}
	d.decodeInto(manifest, h.kind)
	w := &draft{
		within: at("spec", "virtualMachineTemplate"), spec: at("spec", "template", "spec"), set: &set{paused: manifest.Spec.Paused},
	}
	if names := manifest.Spec.NameGeneration; names != nil {
		w.set.numberSecrets = names.AppendIndexToSecretRefs != nil && *names.AppendIndexToSecretRefs
		w.set.numberConfigMaps = names.AppendIndexToConfigMapRefs != nil && *names.AppendIndexToConfigMapRefs
	}
	var templateLabels map[string]string
	if template := manifest.Spec.VirtualMachineTemplate; template != nil {
		templateLabels = template.ObjectMeta.Labels
		w.object = &kubevirtv1.VirtualMachine{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	}
	w.readSet(d, h, &manifest.ObjectMeta, manifest.Spec.Replicas, manifest.Spec.Selector, templateLabels)
}

// readSet checks what both kinds of sets have, and then the template.
func (w *draft) readSet(d *document, h *header, own *metav1.ObjectMeta, replicas *int32, selector *metav1.LabelSelector, templateLabels map[string]string) {
	w.address, w.position, w.source, w.item = h.address(), d.position(h.nameNode), d.source, d.item
	c := newChecker(d, w.address, nil)
	c.annotations(own.Annotations)
	c.misplaced(at("metadata", "labels"), own.Labels, h.kind)
	w.set.replicas = c.replicas(h, replicas)
	if w.object == nil {
		c.fail(w.within, "no template", "describe the machines under "+pathString("", elements(w.within)))
	} else {
		c.selector(selector, templateLabels)
		c.settings(w, without(own.Annotations, w.object.Annotations))
		w.object.Annotations = withSettings(w.object.Annotations, own.Annotations)
		if w.set.paused {
			c.warn(at("spec", "paused"), "the set is paused: its machines are neither made nor changed nor removed", "remove paused to go on")
		}
		template := d.sub(w.within)
		if d.told == nil { // so that both know what the other told
			template.told = map[told]struct{}{}
			d.told = template.told
		}
		w.read(template, h)
		d.broke, d.ambiguous = d.broke || template.broke, d.ambiguous || template.ambiguous
	}
	if d.broke && h.nameUsable {
		d.file.Broken = append(d.file.Broken, w.brokenMembers()...)
	}
}

// without returns the annotations that a machine does not have itself.
func without(set, machine map[string]string) map[string]string {
	out := maps.Clone(set)
	for name := range machine {
		delete(out, name)
	}
	return out
}

// withSettings gives a set's machines the settings of gitvirt that the set itself has.
func withSettings(machine, set map[string]string) map[string]string {
	var out map[string]string
	for name, value := range set {
		if _, own := machine[name]; own || !strings.HasPrefix(name, AnnotationPrefix) {
			continue
		}
		if out == nil {
			out = map[string]string{}
			maps.Copy(out, machine)
		}
		out[name] = value
	}
	if out == nil {
		return machine
	}
	return out
}

// replicas returns the number of machines; 0 when it makes no sense.
func (c *checker) replicas(h *header, replicas *int32) int {
	path := at("spec", "replicas")
	n := 1
	if replicas != nil {
		n = int(*replicas)
	}
	switch {
	case c.misread(path):
		return 0
	case n < 0:
		c.fail(path, fmt.Sprintf("%d machines cannot be", n), "write 0 or more")
		return 0
	case n > maxReplicas:
		c.fail(path, fmt.Sprintf("%d machines, at most %d are allowed in one set", n, maxReplicas), "write several sets")
		return 0
	case c.file.members+n > maxMembers:
		c.fail(path, fmt.Sprintf("the sets of this file have more than %d machines together", maxMembers), "write them in several files")
		return 0
	}
	c.file.members += n
	last := len(h.namespace) + len("_") + len(h.name) + len("-") + len(strconv.Itoa(max(n-1, 0)))
	if h.nameUsable && last > maxDomainName {
		c.fail(at("metadata", "name"), fmt.Sprintf("namespace and name of the last machine are %d characters too long for the files that libvirt makes", last-maxDomainName), "shorten the name")
	}
	return n
}

// selector checks that a set's selector finds its own machines, as KubeVirt wants it; nothing else is done with it.
func (c *checker) selector(selector *metav1.LabelSelector, template map[string]string) {
	path := at("spec", "selector")
	if selector == nil {
		c.fail(path, "no selector", "write matchLabels with the labels of the template")
		return
	}
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	switch {
	case err != nil:
		c.fail(path, "the selector cannot be used: "+printable(err.Error()), "write matchLabels with the labels of the template")
	case !parsed.Matches(labels.Set(template)):
		c.fail(path, "the selector does not match the labels of the template", "write the same labels in both")
	}
}

// differ reports whether the machines of a set get different volumes.
func (s *set) differ(object *kubevirtv1.VirtualMachine) bool {
	return len(object.Spec.DataVolumeTemplates) > 0 || s.numberSecrets || s.numberConfigMaps
}

// rename gives the i-th machine DataVolumes of its own, and Secrets and ConfigMaps when the pool says so.
func (s *set) rename(vm *kubevirtv1.VirtualMachine, i int) {
	number := "-" + strconv.Itoa(i)
	own := make(map[string]bool, len(vm.Spec.DataVolumeTemplates))
	for t := range vm.Spec.DataVolumeTemplates {
		template := &vm.Spec.DataVolumeTemplates[t]
		own[template.Name] = true
		template.Name += number
	}
	appendTo := func(name *string, when bool) {
		if when && *name != "" {
			*name += number
		}
	}
	for v := range vm.Spec.Template.Spec.Volumes {
		volume := &vm.Spec.Template.Spec.Volumes[v]
		switch {
		case volume.PersistentVolumeClaim != nil:
			appendTo(&volume.PersistentVolumeClaim.ClaimName, own[volume.PersistentVolumeClaim.ClaimName])
		case volume.DataVolume != nil:
			appendTo(&volume.DataVolume.Name, own[volume.DataVolume.Name])
		case volume.ConfigMap != nil:
			appendTo(&volume.ConfigMap.Name, s.numberConfigMaps)
		case volume.Secret != nil:
			appendTo(&volume.Secret.SecretName, s.numberSecrets)
		case volume.CloudInitNoCloud != nil:
			if ref := volume.CloudInitNoCloud.UserDataSecretRef; ref != nil {
				appendTo(&ref.Name, s.numberSecrets)
			}
			if ref := volume.CloudInitNoCloud.NetworkDataSecretRef; ref != nil {
				appendTo(&ref.Name, s.numberSecrets)
			}
		case volume.CloudInitConfigDrive != nil:
			if ref := volume.CloudInitConfigDrive.UserDataSecretRef; ref != nil {
				appendTo(&ref.Name, s.numberSecrets)
			}
			if ref := volume.CloudInitConfigDrive.NetworkDataSecretRef; ref != nil {
				appendTo(&ref.Name, s.numberSecrets)
			}
		}
	}
}
