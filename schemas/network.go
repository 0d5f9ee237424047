package schemas

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// service is what of a core/v1 Service concerns machines.
type service struct {
	selector map[string]string
	headless bool
	// reaches are known of sources only.
	reaches []reach
}

// readService reads a Service. A host forwards nothing by it: there it is read so that its references can be checked.
func readService(d *document, h *header) {
	manifest := &corev1.Service{}
	d.decodeInto(manifest, h.kind)
	c := newChecker(d, h.address(), nil)
	c.serviceReach(&manifest.Spec)
	c.annotationReach(at("metadata", "annotations"), manifest.Annotations)
	d.keep(h, &service{selector: manifest.Spec.Selector, headless: manifest.Spec.ClusterIP == corev1.ClusterIPNone, reaches: c.reached})
	d.pass(h, manifest)
}

// networkManifest is a NetworkAttachmentDefinition as it is written.
type networkManifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              networkSpec `json:"spec"`
}

// networkSpec holds the CNI configuration, which is for Pods.
type networkSpec struct {
	Config string `json:"config,omitempty"`
}

// attachment is what of a NetworkAttachmentDefinition concerns machines.
type attachment struct {
	// resource is the resource name of an SR-IOV network's virtual functions.
	resource string
}

// annotationResource names the resource that the devices of a network come from.
const annotationResource = "k8s.v1.cni.cncf.io/resourceName"

// readNetwork reads a NetworkAttachmentDefinition.
func readNetwork(d *document, h *header) {
	manifest := &networkManifest{}
	d.decodeInto(manifest, h.kind)
	d.keep(h, &attachment{resource: manifest.Annotations[annotationResource]})
}
