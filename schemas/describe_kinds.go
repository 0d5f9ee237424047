package schemas

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// DescribedKind is a kind whose fields [Describe] and [JSONSchema] know.
type DescribedKind struct {
	Name string
	// Versions are the API versions that may be written, the preferred one first.
	Versions []string
	// ShortNames are what people type instead of Name, in lower case, as kubectl has them.
	ShortNames []string

	typ reflect.Type
	// machine is the path of the VirtualMachineInstanceSpec; empty for none.
	machine string
	// template is the path of the VirtualMachineSpec's owner in a kind that makes VirtualMachines; empty for none.
	template string
}

// DescribedKinds lists the kinds, those that people write most first.
func DescribedKinds() []DescribedKind {
	kubevirt := []string{APIVersionKubeVirt, "kubevirt.io/v1alpha3"}
	instancetypes := []string{"instancetype.kubevirt.io/v1beta1", "instancetype.kubevirt.io/v1alpha2", "instancetype.kubevirt.io/v1alpha1"}
	core := []string{APIVersionCore}
	return []DescribedKind{
		{Name: KindVirtualMachine, Versions: kubevirt, ShortNames: names("vm", "vms"), typ: reflect.TypeFor[kubevirtv1.VirtualMachine](), machine: "spec.template.spec"},
		{Name: KindVirtualMachineInstance, Versions: kubevirt, ShortNames: names("vmi", "vmis"), typ: reflect.TypeFor[kubevirtv1.VirtualMachineInstance](), machine: "spec"},
		{
			Name: "VirtualMachineInstanceReplicaSet", Versions: kubevirt, ShortNames: names("vmirs", "vmirss", "replicaset"),
			typ: reflect.TypeFor[kubevirtv1.VirtualMachineInstanceReplicaSet](), machine: "spec.template.spec",
		},
		{
			Name: "VirtualMachinePool", Versions: []string{"pool.kubevirt.io/v1beta1", "pool.kubevirt.io/v1alpha1"},
			ShortNames: names("vmpool", "vmpools", "pool"), typ: reflect.TypeFor[poolv1.VirtualMachinePool](),
			machine: "spec.virtualMachineTemplate.spec.template.spec", template: "spec.virtualMachineTemplate",
		},
		{
			Name: "VirtualMachineInstancetype", Versions: instancetypes, ShortNames: names("vminstancetype", "vmf", "instancetype"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachineInstancetype](),
		},
		{
			Name: "VirtualMachineClusterInstancetype", Versions: instancetypes, ShortNames: names("vmclusterinstancetype", "vmcf", "clusterinstancetype"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachineClusterInstancetype](),
		},
		{
			Name: "VirtualMachinePreference", Versions: instancetypes, ShortNames: names("vmpref", "vmp", "preference"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachinePreference](),
		},
		{
			Name: "VirtualMachineClusterPreference", Versions: instancetypes, ShortNames: names("vmclusterpref", "vmcp", "clusterpreference"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachineClusterPreference](),
		},
		{Name: "DataVolume", Versions: []string{"cdi.kubevirt.io/v1beta1"}, ShortNames: names("dv", "dvs"), typ: reflect.TypeFor[cdiv1.DataVolume]()},
		{Name: "PersistentVolumeClaim", Versions: core, ShortNames: names("pvc", "pvcs"), typ: reflect.TypeFor[corev1.PersistentVolumeClaim]()},
		{Name: KindSecret, Versions: core, typ: reflect.TypeFor[corev1.Secret]()},
		{Name: "ConfigMap", Versions: core, ShortNames: names("cm"), typ: reflect.TypeFor[corev1.ConfigMap]()},
		{Name: "Service", Versions: core, ShortNames: names("svc"), typ: reflect.TypeFor[corev1.Service]()},
		{Name: KindFleet, Versions: []string{APIVersionFleet}, typ: reflect.TypeFor[fleetManifest]()},
	}
}

func names(s ...string) []string { return s }

// kindNamed finds a kind by its name, its plural or a short name, in any case; near is what was probably meant.
func kindNamed(name string) (kind DescribedKind, near string, ok bool) {
	var known []string
	lower := strings.ToLower(name)
	for _, kind := range DescribedKinds() {
		full := strings.ToLower(kind.Name)
		if lower == full || lower == full+"s" || slices.Contains(kind.ShortNames, lower) {
			return kind, "", true
		}
		known = append(append(known, kind.ShortNames...), full)
	}
	return DescribedKind{}, closest(lower, known), false
}

// supportRoots are the support trees of the described kinds, those of [supportTrees] and, for kinds that have none of
// their own there, what their templates hold. Built at first use and never changed.
var supportRoots = sync.OnceValue(func() map[string]*supportNode {
	roots := map[string]*supportNode{}
	trees := supportTrees()
	for _, kind := range DescribedKinds() {
		if tree, ok := trees[kind.Name]; ok {
			roots[kind.Name] = tree
			continue
		}
		root := &supportNode{}
		root.add(objectSupport(), "")
		root.add([]Support{carried("spec")}, "")
		if kind.template != "" {
			root.add(VMSupport(), kind.template+".")
		}
		if kind.machine != "" {
			root.add(VMISupport(), kind.machine+".")
		}
		roots[kind.Name] = root
	}
	return roots
})
