package kubernetes

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/launcher/protocol"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// Follow keeps Observed up to date until ctx ends.
func (p *Platform) Follow(ctx context.Context) {
	dirty := make(chan struct{}, 1)
	touch := func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}
	var started []informers.SharedInformerFactory
	var synced []cache.InformerSynced
	follow := func(factory informers.SharedInformerFactory, informer cache.SharedIndexInformer, strip cache.TransformFunc, handler cache.ResourceEventHandler) {
		// Both only fail on an informer that runs already.
		if err := informer.SetTransform(strip); err != nil {
			p.config.Logger.Error("following the API server", "error", err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			p.config.Logger.Error("following the API server", "error", err)
			return
		}
		started, synced = append(started, factory), append(synced, registration.HasSynced)
	}
	namespaces := p.config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	ours := informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector = podapi.LabelManagedBy + "=" + podapi.ManagedBy
		watchLong(options)
	})
	for _, namespace := range namespaces {
		factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0, ours, informers.WithNamespace(namespace))
		core := factory.Core().V1()
		follow(factory, core.Pods().Informer(), stripPod, handler(p.sawPod, p.lostPod, touch))
		follow(factory, core.Services().Informer(), stripObject, handler(p.sawService, func(gone *corev1.Service) { p.lostObject(schemas.KindService, &gone.ObjectMeta) }, touch))
		follow(factory, core.PersistentVolumeClaims().Informer(), stripObject,
			handler(p.sawClaim, func(gone *corev1.PersistentVolumeClaim) {
				p.lostObject(schemas.KindPersistentVolumeClaim, &gone.ObjectMeta)
			}, touch))
	}
	nodes := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithTweakListOptions(watchLong))
	follow(nodes, nodes.Core().V1().Nodes().Informer(), stripNode, unlessSame(sameNode, handler(p.sawNode, p.lostNode, touch)))
	for _, factory := range started {
		factory.Start(ctx.Done())
	}
	defer func() {
		for _, factory := range started {
			factory.Shutdown()
		}
	}()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	touch()
	p.draw(ctx, dirty)
}

// watchLong leaves it to the API server how long a watch lasts, which is half an hour and more: client-go asks for five to ten minutes, and each
// new watch is a request in which nothing happens.
func watchLong(options *metav1.ListOptions) { options.TimeoutSeconds = nil }

// restShare keeps a large cluster in which much happens from being looked at as a whole for each event: after a picture it is rested for so
// many times as long as it took.
const restShare = 4

// draw publishes what is known whenever it is another, until ctx ends.
func (p *Platform) draw(ctx context.Context, dirty <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-dirty:
		}
		began := time.Now()
		p.publish(p.picture())
		rest := time.NewTimer(restShare * time.Since(began))
		select {
		case <-ctx.Done():
			rest.Stop()
			return
		case <-rest.C:
		}
	}
}

// handler calls saw for what is there and lost for what is gone, and touch after each.
func handler[T any](saw, lost func(T), touch func()) cache.ResourceEventHandler {
	take := func(object any, call func(T)) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if typed, ok := object.(T); ok {
			call(typed)
			touch()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { take(object, saw) },
		UpdateFunc: func(_, object any) { take(object, saw) },
		DeleteFunc: func(object any) { take(object, lost) },
	}
}

// unlessSame leaves out the updates of what is the same as before, as far as it was kept.
func unlessSame[T any](same func(before, after T) bool, others cache.ResourceEventHandler) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { others.OnAdd(object, false) },
		UpdateFunc: func(before, after any) {
			old, ok := before.(T)
			now, isT := after.(T)
			if !ok || !isT || !same(old, now) {
				others.OnUpdate(before, after)
			}
		},
		DeleteFunc: others.OnDelete,
	}
}

// sameNode reports whether two nodes that stripNode has left differ in nothing that is looked at. Each kubelet tells of its node every five
// minutes, which must not have a large fleet planned again.
func sameNode(before, after *corev1.Node) bool {
	return before.UID == after.UID && equality.Semantic.DeepEqual(before.Status, after.Status)
}

// stripPod keeps of a Pod what is looked at: thousands of them are most of the controller's memory.
func stripPod(object any) (any, error) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil
	}
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			Annotations: map[string]string{}, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs, Reason: pod.Status.Reason, Message: pod.Status.Message,
			ContainerStatuses: stripStates(pod.Status.ContainerStatuses), InitContainerStatuses: stripStates(pod.Status.InitContainerStatuses),
		},
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == podapi.GuestReady || condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{
				Type: condition.Type, Status: condition.Status, Reason: condition.Reason, Message: condition.Message,
			})
		}
	}
	for _, name := range []string{podapi.AnnotationStep, podapi.AnnotationSignature, podapi.AnnotationRecord, podapi.AnnotationObserved} {
		if value, said := pod.Annotations[name]; said {
			out.Annotations[name] = value
		}
	}
	return out, nil
}

// stripStates keeps of containers what they wait for, and how they ended.
func stripStates(all []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for i := range all {
		if state := all[i].State; state.Waiting != nil || state.Terminated != nil {
			out = append(out, corev1.ContainerStatus{Name: all[i].Name, State: corev1.ContainerState{Waiting: state.Waiting, Terminated: state.Terminated}})
		}
	}
	return out
}

// stripObject leaves out who manages which field of an object.
func stripObject(object any) (any, error) {
	if meta, ok := object.(metav1.Object); ok {
		meta.SetManagedFields(nil)
	}
	return object, nil
}

// stripNode keeps of a node whether it answers, and whether it offers KVM.
func stripNode(object any) (any, error) {
	node, ok := object.(*corev1.Node)
	if !ok {
		return object, nil
	}
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
	if offered, ok := node.Status.Allocatable[pods.ResourceKVM]; ok {
		out.Status.Allocatable = corev1.ResourceList{pods.ResourceKVM: offered}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			condition.LastHeartbeatTime = metav1.Time{}
			out.Status.Conditions = []corev1.NodeCondition{condition}
		}
	}
	return out, nil
}

// change lets a function change what is known, and wakes who waits for it.
func (p *Platform) change(edit func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit()
	close(p.changes)
	p.changes = make(chan struct{})
}

func key(namespace, name string) string { return namespace + "/" + name }

func (p *Platform) sawPod(pod *corev1.Pod) {
	seen := p.read(pod)
	p.change(func() { p.guests[key(pod.Namespace, pod.Name)] = seen })
}

func (p *Platform) lostPod(pod *corev1.Pod) {
	p.change(func() { delete(p.guests, key(pod.Namespace, pod.Name)) })
}

func (p *Platform) sawNode(node *corev1.Node) {
	silent := ""
	for _, condition := range node.Status.Conditions {
		if condition.Status == corev1.ConditionUnknown {
			silent = "the node " + node.Name + " does not answer since " + condition.LastTransitionTime.UTC().Format("2006-01-02 15:04:05 MST")
		}
	}
	offered := node.Status.Allocatable[pods.ResourceKVM]
	p.change(func() {
		if delete(p.nodes, node.Name); silent != "" {
			p.nodes[node.Name] = silent
		}
		if delete(p.accelerated, node.Name); !offered.IsZero() {
			p.accelerated[node.Name] = true
		}
	})
}

// lostNode: the Pods of a node that is no more are removed by Kubernetes.
func (p *Platform) lostNode(node *corev1.Node) {
	p.change(func() { delete(p.nodes, node.Name); delete(p.accelerated, node.Name) })
}

// get returns a Pod as it was seen last, and a channel that is closed when anything has changed since.
func (p *Platform) get(namespace, name string) (*guest, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guests[key(namespace, name)], p.changes
}

// signed is what the controller wrote onto a Pod. A Pod is told of several times before it has another step, so what was concluded
// from the same annotations before is kept: verifying a signature and reading a record cost more than all the rest.
func (p *Platform) signed(pod *corev1.Pod, before *guest) *signed {
	step, signature, record := pod.Annotations[podapi.AnnotationStep], pod.Annotations[podapi.AnnotationSignature], pod.Annotations[podapi.AnnotationRecord]
	from := sha256.Sum256(fmt.Appendf(nil, "%d %d %s%s%s", len(step), len(signature), step, signature, record))
	if before != nil && before.signed.from == from {
		return before.signed
	}
	out := &signed{from: from}
	if out.step, out.record, out.forged = podapi.Read(pod.Namespace, pod.Name, pod.Annotations, p.config.Keys.Verify); out.forged == nil {
		out.onPodNetwork = onPodNetwork(out.record)
	}
	return out
}

// read concludes from a Pod what is known of its guest.
func (p *Platform) read(pod *corev1.Pod) *guest {
	g := &guest{
		namespace: pod.Namespace, name: pod.Name, uid: string(pod.UID), node: pod.Spec.NodeName, phase: pod.Status.Phase,
		deleting: pod.DeletionTimestamp != nil,
	}
	before, _ := p.get(pod.Namespace, pod.Name)
	g.signed = p.signed(pod, before)
	if g.forged != nil {
		if before == nil || before.forged == nil || before.uid != g.uid {
			p.forged.Add(1)
			p.config.Logger.Warn("a Pod is refused", "pod", key(pod.Namespace, pod.Name), "error", g.forged)
		}
		return g
	}
	if g.onPodNetwork {
		for _, address := range pod.Status.PodIPs {
			g.addresses = append(g.addresses, address.IP)
		}
	}
	var err error
	if g.observed, err = podapi.DecodeObserved(pod.Annotations); err != nil {
		p.config.Logger.Warn("what was told of a Pod cannot be read", "pod", key(pod.Namespace, pod.Name), "error", err)
	}
	if g.observed != nil && g.observed.Domain != nil {
		podapi.Fill(g.observed.Domain, g.step, g.record)
	}
	for _, condition := range pod.Status.Conditions {
		switch {
		case condition.Type == podapi.GuestReady:
			g.ready = condition.Status == corev1.ConditionTrue
			g.waiting = cmp.Or(condition.Message, condition.Reason, g.waiting)
		case condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse:
			g.waiting = cmp.Or(g.waiting, condition.Message, condition.Reason)
		}
	}
	if g.finished() {
		g.ended, g.waiting = ending(pod)
		return g
	}
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" {
			g.waiting = cmp.Or(g.waiting, strings.TrimSpace(waiting.Reason+" "+waiting.Message))
		}
	}
	return g
}

// ending says why a Pod that is finished has ended: what its launcher left as its last words, or else what Kubernetes says.
func ending(pod *corev1.Pod) (stop, told string) {
	for _, container := range pod.Status.ContainerStatuses {
		ended := container.State.Terminated
		if ended == nil {
			continue
		}
		var said protocol.Ending
		if json.Unmarshal([]byte(ended.Message), &said) != nil || said.Fate == "" {
			return plan.StopCrashed, cmp.Or(ended.Reason, pod.Status.Reason)
		}
		return fates[said.Fate], cmp.Or(said.Detail, string(said.Fate))
	}
	return plan.StopCrashed, cmp.Or(pod.Status.Reason, pod.Status.Message)
}

// fates are those of the launcher in the words of plans.
var fates = map[protocol.Fate]string{ //nolint:gochecknoglobals // a table
	protocol.Shutdown: plan.StopShutdown, protocol.Migrated: "migrated", protocol.Saved: plan.StopSaved, protocol.Crashed: plan.StopCrashed,
	protocol.Killed: plan.StopDestroyed, protocol.Destroyed: plan.StopDestroyed, protocol.NeverStarted: plan.StopFailed, protocol.Failed: plan.StopFailed,
}

// picture is what is known as plans see it.
func (p *Platform) picture() *plan.Observed {
	p.mu.Lock()
	defer p.mu.Unlock()
	observed := &plan.Observed{Node: clusterName, Domains: make([]*plan.Domain, 0, len(p.guests))}
	live := map[string]int{}
	told := 0
	for _, g := range p.guests {
		observed.Domains = append(observed.Domains, g.as(p.nodes[g.node]))
		if g.observed != nil && len(g.observed.Live) > 0 {
			told++
			for _, change := range g.observed.Live {
				live[change]++
			}
		}
	}
	for _, object := range p.objects {
		observed.Objects = append(observed.Objects, object)
	}
	slices.SortFunc(observed.Objects, func(a, b *plan.Object) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(observed.Domains, func(a, b *plan.Domain) int { return a.Address.Compare(b.Address) })
	for _, change := range slices.Sorted(maps.Keys(live)) {
		if live[change] == told { // what every node can do
			observed.Live = append(observed.Live, plan.LiveChange(change))
		}
	}
	return observed
}
