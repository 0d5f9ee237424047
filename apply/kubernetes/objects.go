package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// living is an object that was applied as it is, as it was seen last. live is the whole of it.
func living(kind string, meta *metav1.ObjectMeta, live any) *plan.Object {
	address := schemas.Address{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}
	out := &plan.Object{
		Address: address, Fleet: meta.Labels[podapi.LabelFleet], Record: []byte(meta.Annotations[podapi.AnnotationRecord]),
		Revision:    meta.Annotations[podapi.AnnotationRevision],
		Fingerprint: string(meta.UID) + ":" + meta.Annotations[podapi.AnnotationHash],
	}
	out.Hash = podapi.Digest(out.Record) // the annotation with the hash is for people, and anybody may change it
	encoded, err := json.Marshal(live)
	if err != nil {
		return out // a typed object always has a JSON form
	}
	out.Drift = plan.Undone(withoutType(out.Record), encoded)
	if len(out.Drift) > 0 {
		out.Fingerprint += ":" + meta.ResourceVersion
	}
	return out
}

// withoutType is a document without its kind and version, which the objects of a cache do not have.
func withoutType(document []byte) []byte {
	var fields map[string]any
	if json.Unmarshal(document, &fields) != nil {
		return document
	}
	delete(fields, "kind")
	delete(fields, "apiVersion")
	out, err := json.Marshal(fields)
	if err != nil {
		return document
	}
	return out
}

func (p *Platform) sawService(service *corev1.Service) {
	p.sawObject(schemas.KindService, &service.ObjectMeta, service)
}

func (p *Platform) sawClaim(claim *corev1.PersistentVolumeClaim) {
	p.sawObject(schemas.KindPersistentVolumeClaim, &claim.ObjectMeta, claim)
}

func (p *Platform) sawObject(kind string, meta *metav1.ObjectMeta, live any) {
	object := living(kind, meta, live)
	p.change(func() { p.objects[object.Address] = object })
}

func (p *Platform) lostObject(kind string, meta *metav1.ObjectMeta) {
	p.change(func() { delete(p.objects, schemas.Address{Kind: kind, Namespace: meta.Namespace, Name: meta.Name}) })
}

// pass applies or removes an object that the cluster gets as it is.
func (e *execution) pass(ctx context.Context) error {
	address := e.step.Address
	e.namespace, e.name = address.Namespace, address.Name
	live, _ := e.p.object(address)
	switch {
	case live == nil && e.step.Precondition != "", live != nil && e.step.Precondition != live.Fingerprint:
		return fmt.Errorf("%w: %s has changed", apply.ErrStale, address)
	case e.step.Object == nil:
		return e.removeObject(ctx, address)
	}
	var fields map[string]any
	if err := json.Unmarshal(e.step.Object.Content, &fields); err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	metadata, _ := fields["metadata"].(map[string]any)
	mark(metadata, "labels", map[string]any{podapi.LabelManagedBy: podapi.ManagedBy, podapi.LabelFleet: e.target.Fleet})
	mark(metadata, "annotations", map[string]any{
		podapi.AnnotationHash: e.step.Object.Hash, podapi.AnnotationRecord: string(e.step.Object.Content), podapi.AnnotationRevision: e.target.Revision,
	})
	e.progress("applying it")
	// Not by force: what somebody else manages is theirs, and the API server says whose.
	patch, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	force := live != nil
	options := metav1.PatchOptions{FieldManager: pods.FieldManager, Force: &force}
	switch core := e.p.client.CoreV1(); address.Kind {
	case schemas.KindService:
		_, err = core.Services(e.namespace).Patch(ctx, e.name, types.ApplyPatchType, patch, options)
	default:
		_, err = core.PersistentVolumeClaims(e.namespace).Patch(ctx, e.name, types.ApplyPatchType, patch, options)
	}
	if err != nil {
		return e.failed("applying the "+address.Kind, err)
	}
	return e.settled(ctx, func(now *plan.Object) bool { return now != nil && now.Hash == e.step.Object.Hash })
}

func mark(metadata map[string]any, field string, marks map[string]any) {
	given, _ := metadata[field].(map[string]any)
	if given == nil {
		given = map[string]any{}
	}
	maps.Copy(given, marks)
	metadata[field] = given
}

func (e *execution) removeObject(ctx context.Context, address schemas.Address) error {
	if address.Kind != schemas.KindService {
		return fmt.Errorf("%w: gitvirt removes no %s", apply.ErrStalled, address.Kind)
	}
	if err := e.p.client.CoreV1().Services(e.namespace).Delete(ctx, e.name, metav1.DeleteOptions{}); err != nil && !isGone(err) {
		return e.failed("deleting the "+address.Kind, err)
	}
	return e.settled(ctx, func(now *plan.Object) bool { return now == nil })
}

// object returns what was applied under an address as it was seen last, and a channel that is closed when anything has changed since.
func (p *Platform) object(address schemas.Address) (*plan.Object, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.objects[address], p.changes
}

// settled waits until what was done is seen, so that the next plan does not do it again.
func (e *execution) settled(ctx context.Context, done func(*plan.Object) bool) error {
	look := func() (*plan.Object, <-chan struct{}) { return e.p.object(e.step.Address) }
	if err := until(ctx, e.p.config.Patience, look, func(now *plan.Object) (bool, error) { return done(now), nil }); err != nil {
		return fmt.Errorf("%w: %s is not seen to be as it was applied", apply.ErrRetry, e.step.Address)
	}
	return nil
}
