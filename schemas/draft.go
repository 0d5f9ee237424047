package schemas

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// draft is a machine, or a set of machines of one template, as its manifest has it: decoded, without defaults. One that
// names an instancetype or a preference waits for Assemble, because other files may hold those.
type draft struct {
	// address and position are those of the object in the manifest: the machine or the set.
	address  Address
	position Position
	// object is the machine in the form of a VirtualMachine; nobody changes it once the file is read.
	object   *kubevirtv1.VirtualMachine
	strategy kubevirtv1.VirtualMachineRunStrategy
	// within is the path of the template of a set, which is read like a manifest of its own; nil for a machine.
	within []any
	// spec is the path of the VirtualMachineInstanceSpec, below within.
	spec []any
	set  *set
	// settings are gitvirt's own annotations.
	settings Settings

	// source and item say where the manifest can be found again.
	source *source
	item   int
	// instancetype and preference are what the draft waits for; nil when it names none.
	instancetype, preference *matcher
	// expanded is the last expansion; it holds as long as the same objects are found.
	expanded atomic.Pointer[expansion]
}

// read checks what can be checked without other files, and adds the machines to the file or lets the draft wait. d is
// the document of the machine, which for a set is that of its template.
func (w *draft) read(d *document, h *header) {
	vm := w.object
	vm.TypeMeta = metav1.TypeMeta{APIVersion: APIVersionKubeVirt, Kind: KindVirtualMachine}
	vm.Namespace, vm.GenerateName = h.namespace, ""
	c := newChecker(d, w.address, w.spec)
	w.strategy = c.runStrategy(w.memberKind(), vm)
	if w.address.Kind == KindReplicaSet { // it replaces its machines when they end, however that happens
		always := kubevirtv1.RunStrategyAlways
		w.strategy, vm.Spec.RunStrategy = always, &always
	}
	c.annotations(vm.Annotations)
	if vm.Spec.Template == nil {
		c.fail(at("spec", "template"), "no template", "describe the machine under spec.template.spec")
		return
	}
	c.settings(w, vm.Annotations)
	c.checkVirtualMachine(w.memberKind(), vm)
	w.instancetype = c.matcher(at("spec", "instancetype"), vm.Spec.Instancetype, KindClusterInstancetype, KindInstancetype)
	w.preference = c.matcher(at("spec", "preference"), vm.Spec.Preference, KindClusterPreference, KindPreference)
	w.keepTemplates(c)
	waits := w.instancetype != nil || w.preference != nil
	var machines []*VM
	if !waits {
		machines = w.machines(c, vm)
	}
	if d.broke || d.ambiguous || *d.budget < 0 || !h.nameUsable {
		return
	}
	switch {
	case w.set != nil && w.set.paused:
		d.file.paused = append(d.file.paused, Broken{Address: w.address, Position: w.position})
	case waits:
		d.file.drafts = append(d.file.drafts, w)
	default:
		d.file.VMs = append(d.file.VMs, machines...)
	}
}

// memberKind is the kind that a machine of the draft has.
func (w *draft) memberKind() string {
	switch w.address.Kind {
	case KindReplicaSet:
		return KindVirtualMachineInstance
	case KindPool:
		return KindVirtualMachine
	}
	return w.address.Kind
}

// machines makes the machines of a draft from its object, to which what it waited for was added, and which is changed.
// It returns none when something is wrong.
func (w *draft) machines(c *checker, object *kubevirtv1.VirtualMachine) []*VM {
	machines := w.members(c, object)
	if !c.broke { // before the defaults, so that a later version with other defaults does not change it
		for _, vm := range machines {
			vm.record(vm.Object)
		}
	}
	if !c.given(&object.Spec.Template.Spec) {
		return nil
	}
	template := object
	for i, vm := range machines {
		if i == 0 || vm.Object.Spec.Template != machines[i-1].Object.Spec.Template {
			applyDefaults(vm.Object)
		}
	}
	if len(machines) > 0 {
		template = machines[0].Object
	} else {
		applyDefaults(template)
	}
	c.check(&template.Spec.Template.Spec)
	if c.broke {
		return nil
	}
	c.reachesOf(w, template)
	size := c.sizeOf(template)
	for i, vm := range machines {
		vm.holdings, vm.reaches, vm.size = c.holdings, c.reached, size
		if i > 0 && vm.Object.Spec.Template == machines[i-1].Object.Spec.Template {
			vm.references = machines[i-1].references
		} else {
			vm.references = c.references(vm.Spec())
		}
	}
	return machines
}

// members returns the machines that an object becomes, without record. The machines of a set share their template
// unless the set makes their volumes differ.
func (w *draft) members(c *checker, object *kubevirtv1.VirtualMachine) []*VM {
	if w.set == nil {
		return []*VM{w.member(w.address.Name, object)}
	}
	sample := w.member(w.address.Name, object)
	sample.record(object)
	if size := len(sample.Record) * w.set.replicas; size > maxSetBytes {
		c.fail(at("spec"), fmt.Sprintf("%d machines of this template take %d MiB to describe, at most %d are allowed", w.set.replicas, size>>20, maxSetBytes>>20),
			"write several sets, or less into the template")
		return nil
	}
	machines := make([]*VM, w.set.replicas)
	for i := range machines {
		one := *object
		if w.set.differ(object) {
			one = *object.DeepCopy()
			w.set.rename(&one, i)
		}
		one.Name = w.address.Name + "-" + strconv.Itoa(i)
		machines[i] = w.member(one.Name, &one)
		machines[i].Owner = w.address
	}
	return machines
}

func (w *draft) member(name string, object *kubevirtv1.VirtualMachine) *VM {
	vm := &VM{
		Address:     Address{Kind: w.memberKind(), Namespace: w.address.Namespace, Name: name},
		Position:    w.position,
		Object:      object,
		RunStrategy: w.strategy,
		Settings:    w.settings,
		labels:      object.Spec.Template.ObjectMeta.Labels,
		memory:      &vmMemory{},
	}
	if vm.Address.Kind == KindVirtualMachineInstance {
		vm.labels = object.Labels
	}
	return vm
}

// expansion is what became of a draft with the instancetype and the preference that it names.
type expansion struct {
	instancetype, preference *object
	machines                 []*VM
	diagnostics              Diagnostics
}

// expand adds the instancetype and the preference, each of which may be nil, to the draft and makes its machines. root is
// the tree of its source.
func (w *draft) expand(root *yaml.Node, instance, prefer *object) *expansion {
	scratch := &File{Source: w.position.Source, Path: w.position.File}
	budget := budgetFor(len(w.source.text))
	d := &document{file: scratch, root: resolve(root), line: w.source.line, budget: &budget, source: w.source, item: w.item}
	if kind := lookup(d.root, "kind"); kind != nil {
		if _, list := listOf(kind.Value); list {
			d.root, d.prefix = locate(d.root, at("items", w.item)), itemPrefix(w.item)
		}
	}
	if w.within != nil {
		d = d.sub(w.within)
	}
	c := newChecker(d, w.address, w.spec)
	vm := w.object.DeepCopy()
	x := expander{checker: c, vm: vm, spec: &vm.Spec.Template.Spec}
	x.expand(instance, prefer)
	c.setBy = w.givers(d, instance, prefer)
	out := &expansion{instancetype: instance, preference: prefer}
	if !c.broke {
		out.machines = w.machines(c, vm)
	}
	out.diagnostics = scratch.Diagnostics
	for i := range out.diagnostics {
		out.diagnostics[i].Address = w.address
	}
	return out
}

// sub returns the document of what is at path; mistakes that were told of d are not told of it again.
func (d *document) sub(path []any) *document {
	out := *d
	out.root = locate(d.root, path)
	out.prefix = pathString(d.prefix, elements(path)) + "."
	out.path = nil
	return &out
}

// brokenMembers lists the machines of a set that has mistakes, as far as their number is known.
func (w *draft) brokenMembers() []Broken {
	if w.set == nil {
		return nil
	}
	out := make([]Broken, w.set.replicas)
	for i := range out {
		address := Address{Kind: w.memberKind(), Namespace: w.address.Namespace, Name: w.address.Name + "-" + strconv.Itoa(i)}
		out[i] = Broken{Address: address, Position: w.position}
	}
	return out
}

// IsMemberOf reports whether a machine's name is one that the set gives: NAME-0, NAME-1 and so on. A set whose manifest
// has mistakes keeps all of them, because nobody can tell how many it asks for.
func (a Address) IsMemberOf(set Address) bool {
	number, ok := strings.CutPrefix(a.Name, set.Name+"-")
	if !ok || a.Namespace != set.Namespace || !isSetKind(set.Kind) || number == "" || len(number) > 9 {
		return false
	}
	return !slices.ContainsFunc([]byte(number), func(c byte) bool { return c < '0' || c > '9' })
}
