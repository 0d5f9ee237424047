package schemas

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	instancetypev1 "kubevirt.io/api/instancetype/v1beta1"
	poolv1 "kubevirt.io/api/pool/v1beta1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// TestSupportOfKinds holds every leaf of the kinds around machines against their tables: each is decided, and every row of
// a table names a field.
func TestSupportOfKinds(t *testing.T) {
	for kind, root := range map[string]reflect.Type{
		KindVirtualMachine:        reflect.TypeFor[kubevirtv1.VirtualMachine](),
		KindReplicaSet:            reflect.TypeFor[kubevirtv1.VirtualMachineInstanceReplicaSet](),
		KindPool:                  reflect.TypeFor[poolv1.VirtualMachinePool](),
		KindInstancetype:          reflect.TypeFor[instancetypev1.VirtualMachineInstancetype](),
		KindPreference:            reflect.TypeFor[instancetypev1.VirtualMachinePreference](),
		KindDataVolume:            reflect.TypeFor[cdiv1.DataVolume](),
		KindPersistentVolumeClaim: reflect.TypeFor[corev1.PersistentVolumeClaim](),
		KindPersistentVolume:      reflect.TypeFor[corev1.PersistentVolume](),
	} {
		tree := supportTrees()[kind]
		undecided := 0
		var down func(path []string, info *typeInfo, node *supportNode, status SupportStatus)
		down = func(path []string, info *typeInfo, node *supportNode, status SupportStatus) {
			for info.shape == shapePointer || info.shape == shapeSlice {
				info = info.elem
			}
			if len(info.fields) == 0 || len(path) > 12 {
				if status == SupportUndecided {
					undecided++
					t.Errorf("%s: %s is not in the table", kind, strings.Join(path, "."))
				}
				return
			}
			for i := range info.fields {
				below, now := node.below(info.fields[i].name, status)
				if now == SupportIgnored || now == SupportRefused {
					continue
				}
				down(append(path[:len(path):len(path)], info.fields[i].name), info.fields[i].info, below, now)
			}
		}
		down(nil, infoOf(root), tree, SupportUndecided)
		var named func(path string, info *typeInfo, node *supportNode)
		named = func(path string, info *typeInfo, node *supportNode) {
			for info.shape == shapePointer || info.shape == shapeSlice {
				info = info.elem
			}
			for name, child := range node.children {
				i, ok := info.byName[name]
				if !ok {
					if name != "status" {
						t.Errorf("%s: there is no %s.%s", kind, path, name)
					}
					continue
				}
				if child.status == SupportRefused && child.instead == "" {
					t.Errorf("%s: %s.%s is refused without a way out", kind, path, name)
				}
				named(path+"."+name, info.fields[i].info, child)
			}
		}
		named("", infoOf(root), tree)
	}
}
