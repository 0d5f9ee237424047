package schemas

import (
	"reflect"
	"slices"
	"strings"

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
	list := []DescribedKind{
		{Name: KindVirtualMachine, ShortNames: names("vm", "vms"), typ: reflect.TypeFor[kubevirtv1.VirtualMachine](), machine: "spec.template.spec"},
		{Name: KindVirtualMachineInstance, ShortNames: names("vmi", "vmis"), typ: reflect.TypeFor[kubevirtv1.VirtualMachineInstance](), machine: "spec"},
		{
			Name: KindReplicaSet, ShortNames: names("vmirs", "vmirss", "replicaset"),
			typ: reflect.TypeFor[kubevirtv1.VirtualMachineInstanceReplicaSet](), machine: "spec.template.spec",
		},
		{
			Name: KindPool, ShortNames: names("vmpool", "vmpools", "pool"), typ: reflect.TypeFor[poolv1.VirtualMachinePool](),
			machine: "spec.virtualMachineTemplate.spec.template.spec", template: "spec.virtualMachineTemplate",
		},
		{Name: KindInstancetype, ShortNames: names("vminstancetype", "vmf", "instancetype"), typ: reflect.TypeFor[instancetypev1.VirtualMachineInstancetype]()},
		{
			Name: KindClusterInstancetype, ShortNames: names("vmclusterinstancetype", "vmcf", "clusterinstancetype"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachineClusterInstancetype](),
		},
		{Name: KindPreference, ShortNames: names("vmpref", "vmp", "preference"), typ: reflect.TypeFor[instancetypev1.VirtualMachinePreference]()},
		{
			Name: KindClusterPreference, ShortNames: names("vmclusterpref", "vmcp", "clusterpreference"),
			typ: reflect.TypeFor[instancetypev1.VirtualMachineClusterPreference](),
		},
		{Name: KindDataVolume, ShortNames: names("dv", "dvs"), typ: reflect.TypeFor[cdiv1.DataVolume]()},
		{Name: KindPersistentVolumeClaim, ShortNames: names("pvc", "pvcs"), typ: reflect.TypeFor[corev1.PersistentVolumeClaim]()},
		{Name: KindPersistentVolume, ShortNames: names("pv", "pvs"), typ: reflect.TypeFor[corev1.PersistentVolume]()},
		{Name: KindSecret, typ: reflect.TypeFor[corev1.Secret]()},
		{Name: KindConfigMap, ShortNames: names("cm"), typ: reflect.TypeFor[corev1.ConfigMap]()},
		{Name: KindService, ShortNames: names("svc"), typ: reflect.TypeFor[corev1.Service]()},
		{Name: KindNetwork, ShortNames: names("nad", "net-attach-def"), typ: reflect.TypeFor[networkManifest]()},
		{Name: KindFleet, typ: reflect.TypeFor[fleetManifest]()},
	}
	for i := range list {
		list[i].Versions = accepts(list[i].Name)
	}
	return list
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
