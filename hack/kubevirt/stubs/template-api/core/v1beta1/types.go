// Package v1beta1 stands in for the types of kubevirt.io/virt-template-api.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VirtualMachineTemplate is never made.
type VirtualMachineTemplate struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject is what an informer wants.
func (t *VirtualMachineTemplate) DeepCopyObject() runtime.Object { return t }
