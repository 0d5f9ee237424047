package schemas

import (
	"fmt"
	"slices"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// maxDomainName bounds the name of a libvirt domain, which is NAMESPACE_NAME: libvirt makes files of it that end in
// up to eight more characters (.xml.new), and a file has 255.
const maxDomainName = 255 - len(".xml.new")

// checkVirtualMachine checks what a VirtualMachine has around the spec of its instance.
func (c *checker) checkVirtualMachine(kind string, vm *kubevirtv1.VirtualMachine) {
	if length := len(c.address.Namespace) + len("_") + len(c.address.Name); length > maxDomainName {
		c.fail(at("metadata", "name"), fmt.Sprintf("namespace and name are %d characters too long for the files that libvirt makes", length-maxDomainName), "shorten the name")
	}
	c.checkLabels(at("metadata"), vm.Labels, vm.Annotations)
	c.misplaced(at("metadata", "labels"), vm.Labels, c.address.Kind)
	c.unread(at("metadata", "annotations"), vm.Annotations)
	if kind == KindVirtualMachineInstance {
		return
	}
	template := vm.Spec.Template
	c.checkLabels(at("spec", "template", "metadata"), template.ObjectMeta.Labels, template.ObjectMeta.Annotations)
	metadata := at("spec", "template", "metadata")
	c.misplaced(slices.Concat(metadata, at("labels")), template.ObjectMeta.Labels, c.address.Kind)
	c.misplaced(slices.Concat(metadata, at("annotations")), template.ObjectMeta.Annotations, c.address.Kind)
	c.unread(slices.Concat(metadata, at("annotations")), template.ObjectMeta.Annotations)
	if vm.Spec.UpdateVolumesStrategy != nil {
		oneOf(c, func() []any { return at("spec", "updateVolumesStrategy") }, *vm.Spec.UpdateVolumesStrategy,
			kubevirtv1.UpdateVolumesStrategyMigration, kubevirtv1.UpdateVolumesStrategyReplacement)
	}
	if n := len(vm.Spec.DataVolumeTemplates); n > maxItems {
		c.fail(at("spec", "dataVolumeTemplates"), fmt.Sprintf("%d entries, at most %d are allowed", n, maxItems), "remove some")
		return
	}
	for i := range vm.Spec.DataVolumeTemplates {
		c.checkDataVolumeTemplate(vm, i)
	}
}

// checkDataVolumeTemplate wants a name that is used once, in the machine's own namespace, by one of its volumes.
func (c *checker) checkDataVolumeTemplate(vm *kubevirtv1.VirtualMachine, i int) {
	in := func(field string) []any { return at("spec", "dataVolumeTemplates", i, "metadata", field) }
	template := &vm.Spec.DataVolumeTemplates[i]
	if template.Namespace != "" && template.Namespace != vm.Namespace {
		c.fail(in("namespace"), fmt.Sprintf("%s is not the namespace of the machine", quoteValue(template.Namespace)), "remove it")
	}
	if template.Name == "" {
		c.fail(in("name"), "no name", "give it a name")
		return
	}
	if problem := nameProblem(template.Name, 253, true); problem != "" {
		c.fail(in("name"), problem, "use lower case letters, digits and dashes")
	}
	for j := range i {
		if vm.Spec.DataVolumeTemplates[j].Name == template.Name {
			c.fail(in("name"), "two templates are named "+quoteValue(template.Name), "rename one")
			return
		}
	}
	volumes := vm.Spec.Template.Spec.Volumes
	used := slices.ContainsFunc(volumes, func(v kubevirtv1.Volume) bool { return claimOf(&v) == template.Name })
	if !used && !c.misread(c.in("volumes")) {
		c.fail(in("name"), "no volume of the machine uses "+quoteValue(template.Name), "name it as the dataVolume of a volume, or remove it")
	}
}

// checkLabels checks labels and the names of annotations as the API server of Kubernetes does.
func (c *checker) checkLabels(metadata []any, labels, annotations map[string]string) {
	for _, name := range sortedKeys(labels) {
		value := labels[name]
		path := func() []any { return slices.Concat(metadata, at("labels", key(name))) }
		if problem := labelKeyProblem(name); problem != "" {
			c.fail(path(), problem, "write it as app or example.com/app")
		} else if problem := labelValueProblem(value); problem != "" {
			c.fail(path(), problem, "shorten or change the value, or make it an annotation")
		}
	}
	for _, name := range sortedKeys(annotations) {
		if problem := labelKeyProblem(name); problem != "" {
			c.fail(slices.Concat(metadata, at("annotations", key(name))), problem, "write it as app or example.com/app")
		}
	}
}

// runStrategy takes the run strategy from runStrategy or the older running, of which KubeVirt wants exactly one, and
// leaves it in RunStrategy alone.
func (c *checker) runStrategy(kind string, vm *kubevirtv1.VirtualMachine) kubevirtv1.VirtualMachineRunStrategy {
	if kind == KindVirtualMachineInstance {
		return kubevirtv1.RunStrategyOnce
	}
	spec := &vm.Spec
	strategy := kubevirtv1.RunStrategyHalted
	switch {
	case spec.Running != nil && spec.RunStrategy != nil:
		c.fail(at("spec", "running"), "running and runStrategy exclude each other", "keep runStrategy")
	case spec.Running != nil:
		if *spec.Running {
			strategy = kubevirtv1.RunStrategyAlways
		}
	case spec.RunStrategy != nil:
		strategy = *spec.RunStrategy
		c.checkStrategy(strategy)
	case c.misread(at("spec", "running")): // as was said
	default:
		c.fail(at("spec", "runStrategy"), "no runStrategy: nobody can tell whether the machine is to run", "write runStrategy: Always (or Halted)")
	}
	spec.Running, spec.RunStrategy = nil, &strategy
	return strategy
}

func (c *checker) checkStrategy(strategy kubevirtv1.VirtualMachineRunStrategy) {
	switch strategy {
	case kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyHalted, kubevirtv1.RunStrategyManual,
		kubevirtv1.RunStrategyRerunOnFailure, kubevirtv1.RunStrategyOnce:
	case kubevirtv1.RunStrategyWaitAsReceiver:
		c.fail(at("spec", "runStrategy"), "WaitAsReceiver is known to KubeVirt, not carried out by gitvirt", "use Always, RerunOnFailure, Manual, Halted or Once")
	default:
		c.failOneOf(at("spec", "runStrategy"), string(strategy), "Always", "RerunOnFailure", "Manual", "Halted", "Once")
	}
}
