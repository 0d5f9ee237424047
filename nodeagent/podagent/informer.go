package podagent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// informer watches gitvirt's Pods of this node and no others. seen tells whether each that there was at first has its worker.
func (a *Agent) informer(ctx, life context.Context) (informer cache.SharedIndexInformer, seen cache.InformerSynced, err error) {
	pods := a.config.Client.CoreV1().Pods(metav1.NamespaceAll)
	ours := func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.config.Node).String()
		options.LabelSelector = labels.SelectorFromSet(labels.Set{podapi.LabelManagedBy: podapi.ManagedBy}).String()
		options.TimeoutSeconds = nil // the API server's own half an hour and more, not client-go's five to ten minutes
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			ours(&options)
			return pods.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			ours(&options)
			return pods.Watch(ctx, options)
		},
	}
	informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(source, a.config.Client), &corev1.Pod{}, 0, cache.Indexers{})
	if err := informer.SetTransform(trim); err != nil {
		return nil, nil, fmt.Errorf("watching Pods: %w", err)
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if pod, ok := object.(*corev1.Pod); ok {
				a.see(ctx, life, pod)
			}
		},
		UpdateFunc: func(before, object any) {
			old, ok := before.(*corev1.Pod)
			pod, isPod := object.(*corev1.Pod)
			if !ok || !isPod {
				return
			}
			if old.UID != pod.UID { // what happened in between was missed
				a.miss(old.UID)
			}
			a.see(ctx, life, pod)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				a.miss(pod.UID)
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("watching Pods: %w", err)
	}
	return informer, handler.HasSynced, nil
}

// annotationNetworks is where Multus tells of a Pod's interfaces.
const annotationNetworks = "k8s.v1.cni.cncf.io/network-status"

// resourceVHost is what a Pod asks for that is to have /dev/vhost-net.
const resourceVHost corev1.ResourceName = "devices.gitvirt.io/vhost-net"

// trim keeps what is needed of a Pod.
func trim(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		return trimmed(pod), nil
	}
	return object, nil
}

func trimmed(pod *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		TypeMeta: pod.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion, DeletionTimestamp: pod.DeletionTimestamp,
			Labels: map[string]string{}, Annotations: map[string]string{},
		},
		Spec:   corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP},
	}
	for _, key := range []string{podapi.LabelManagedBy, podapi.LabelVM} {
		if value, ok := pod.Labels[key]; ok {
			out.Labels[key] = value
		}
	}
	for _, key := range []string{podapi.AnnotationStep, podapi.AnnotationSignature, podapi.AnnotationRecord, podapi.AnnotationObserved, annotationNetworks} {
		if value, ok := pod.Annotations[key]; ok {
			out.Annotations[key] = value
		}
	}
	for i := range pod.Spec.Containers {
		if vhost, ok := pod.Spec.Containers[i].Resources.Limits[resourceVHost]; ok && pod.Spec.Containers[i].Name == computeContainer {
			out.Spec.Containers = []corev1.Container{{Name: computeContainer, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{resourceVHost: vhost},
			}}}
		}
	}
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == podapi.GuestReady {
			out.Status.Conditions = []corev1.PodCondition{pod.Status.Conditions[i]}
		}
	}
	for i := range pod.Status.ContainerStatuses {
		if status := &pod.Status.ContainerStatuses[i]; status.Name == computeContainer {
			out.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: status.Name, State: corev1.ContainerState{
				Running: status.State.Running, Terminated: ended(status.State.Terminated),
			}}}
		}
	}
	return out
}

// ended keeps of a container's end that it was.
func ended(state *corev1.ContainerStateTerminated) *corev1.ContainerStateTerminated {
	if state == nil {
		return nil
	}
	return &corev1.ContainerStateTerminated{ExitCode: state.ExitCode}
}

// launcherRuns tells whether the launcher of a Pod runs.
func launcherRuns(pod *corev1.Pod) bool {
	return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Running != nil
}

// hasEnded tells whether the launcher of a Pod has ended, for good: such a Pod is never started again.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Terminated != nil
}

// conditionOf returns the condition that the agent sets; nil when nobody has.
func conditionOf(pod *corev1.Pod) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == podapi.GuestReady {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
