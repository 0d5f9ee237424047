package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/internal/wire"
	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// execution is one step on its way.
type execution struct {
	p        *Platform
	target   apply.Target
	step     *plan.Step
	progress func(string)
	options  pods.Options
	// namespace and name are those of the Pod, found is it as the step was made for; nil when there is none.
	namespace, name string
	found           *guest
}

// Execute implements apply.Executor. It is over when the agent has told what became of the step, or the Pod is gone.
func (p *Platform) Execute(ctx context.Context, target apply.Target, step plan.Step, progress func(string)) error {
	target = target.For(&step)
	e := &execution{
		p: p, target: target, step: &step, progress: progress, options: p.options(target.Fleet, target.Revision),
		namespace: step.Address.Namespace, name: pods.Name(step.Address),
	}
	if schemas.IsPassed(step.Address.Kind) {
		return e.pass(ctx)
	}
	if err := e.check(); err != nil {
		return err
	}
	err := e.run(ctx)
	if ctx.Err() != nil && err != nil {
		return apply.ErrLeft
	}
	return err
}

// check compares the Pod with what the plan saw.
func (e *execution) check() error {
	e.found, _ = e.p.get(e.namespace, e.name)
	switch {
	case e.found == nil && e.step.Precondition == "":
		return nil
	case e.found == nil:
		return fmt.Errorf("%w: the Pod %s is gone", apply.ErrStale, key(e.namespace, e.name))
	case e.found.forged != nil:
		return fmt.Errorf("%w: the Pod %s: %w", apply.ErrStalled, key(e.namespace, e.name), e.found.forged)
	case e.step.Precondition != e.found.domain("").Fingerprint:
		return fmt.Errorf("%w: the Pod %s has changed", apply.ErrStale, key(e.namespace, e.name))
	}
	return nil
}

func (e *execution) run(ctx context.Context) error {
	switch {
	case e.step.VM == nil || e.step.StopsGuest():
		if err := e.remove(ctx); err != nil {
			return err
		}
		return e.removeSecret(ctx)
	case e.found == nil:
		return e.make(ctx)
	case e.step.Pod != nil && e.step.Pod.New:
		if err := e.remove(ctx); err != nil {
			return err
		}
		return e.make(ctx)
	}
	return e.change(ctx)
}

// removeMargin is how much longer than the guest's grace a Pod may take to go.
const removeMargin = time.Minute

// remove deletes the Pod and waits until it is gone: its launcher has the guest shut down first.
func (e *execution) remove(ctx context.Context) error {
	if e.found == nil {
		return nil
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(e.found.uid)}
	if e.found.finished() {
		options.GracePeriodSeconds = new(int64)
	} else {
		e.progress("deleting the Pod; its guest shuts down")
	}
	if err := e.p.client.CoreV1().Pods(e.namespace).Delete(ctx, e.name, options); err != nil && !isGone(err) {
		return e.failed("deleting the Pod", err)
	}
	patience := time.Duration(e.step.GraceSeconds)*time.Second + removeMargin
	err := e.await(ctx, patience, func(now *guest) (bool, error) { return now == nil || now.uid != e.found.uid, nil })
	if errors.Is(err, errPatience) {
		return fmt.Errorf("%w: the Pod %s is not gone after %s; its node may not answer", apply.ErrRetry, key(e.namespace, e.name), patience)
	}
	return err
}

func (e *execution) removeSecret(ctx context.Context) error {
	if err := e.p.client.CoreV1().Secrets(e.namespace).Delete(ctx, e.name, metav1.DeleteOptions{}); err != nil && !isGone(err) {
		return e.failed("deleting the Secret", err)
	}
	return nil
}

// make applies the Secret and the Pod, and waits for its guest.
func (e *execution) make(ctx context.Context) error {
	content, err := e.content()
	if err != nil {
		return err
	}
	pod, err := pods.Pod(e.step.VM, e.options)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	made := podapi.Step{Define: true, Power: string(plan.PowerOn), Emulation: e.options.Emulation}
	annotations, err := e.annotate(&made, content)
	if err != nil {
		return err
	}
	for name, value := range annotations {
		pod.Annotations[name] = value
	}
	e.progress("applying the Pod")
	if err := e.applySecret(ctx, content); err != nil {
		return err
	}
	if err := e.apply("the Pod", pod, func(patch []byte, options metav1.PatchOptions) error {
		_, err := e.p.client.CoreV1().Pods(e.namespace).Patch(ctx, e.name, types.ApplyPatchType, patch, options)
		return err
	}); err != nil {
		return err
	}
	return e.outcome(ctx, made.ID)
}

// change gives the living Pod another step, and waits for it.
func (e *execution) change(ctx context.Context) error {
	content, err := e.content()
	if err != nil {
		return err
	}
	next := podapi.Step{
		Precondition: agents(e.step.Precondition), Define: e.step.Define, Power: string(e.step.Power), GraceSeconds: e.step.GraceSeconds,
		// The Pod stays where it is, whatever other nodes offer by now.
		Emulation: e.options.Emulation || e.found.step.Emulation,
		Live:      e.step.ReachesGuest(),
	}
	annotations, err := e.annotate(&next, content)
	if err != nil {
		return err
	}
	applied, err := schemas.ReadRecord(e.found.record, true)
	if err != nil {
		return fmt.Errorf("%w: reading what was applied: %w", apply.ErrStalled, err)
	}
	if err := e.resize(ctx, applied); err != nil {
		return err
	}
	e.progress("telling the agent of " + e.found.node)
	if err := e.applySecret(ctx, content); err != nil {
		return err
	}
	patch, err := e.metadata(applied, annotations)
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: pods.FieldManager}
	if _, err := e.p.client.CoreV1().Pods(e.namespace).Patch(ctx, e.name, types.MergePatchType, patch, options); err != nil {
		return e.failed("changing the Pod", err)
	}
	return e.outcome(ctx, next.ID)
}

// metadata is a merge patch of what a living Pod takes of its new manifest: labels and annotations. Of its spec nothing is applied
// again: what this version of gitvirt makes otherwise would end its guest.
func (e *execution) metadata(applied *schemas.Recorded, annotations map[string]string) ([]byte, error) {
	pod, err := pods.Pod(e.step.VM, e.options)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	merge := func(wanted, before map[string]string) map[string]any {
		out := map[string]any{}
		for name := range before {
			if !strings.HasPrefix(name, "gitvirt.io/") && !strings.HasPrefix(name, "app.kubernetes.io/") {
				out[name] = nil // it is gone from the manifest, unless it comes again below
			}
		}
		for name, value := range wanted {
			out[name] = value
		}
		return out
	}
	before := pods.Given(e.step.Address.Kind, applied.Object)
	for name, value := range annotations {
		pod.Annotations[name] = value
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": e.found.uid, "labels": merge(pod.Labels, before.Labels), "annotations": merge(pod.Annotations, before.Annotations),
	}})
}

// resize lets the living Pod ask for as much CPU and memory as its machine is to have.
func (e *execution) resize(ctx context.Context, applied *schemas.Recorded) error {
	resources, err := pods.Resized(applied, e.step.VM, e.options)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	if resources == nil {
		return nil
	}
	e.progress("resizing the Pod")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": e.found.uid},
		"spec":     map[string]any{"containers": []map[string]any{{"name": pods.Container, "resources": resources}}},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	options := metav1.PatchOptions{FieldManager: pods.FieldManager}
	if _, err := e.p.client.CoreV1().Pods(e.namespace).Patch(ctx, e.name, types.StrategicMergePatchType, patch, options, "resize"); err != nil {
		return e.failed("resizing the Pod", err)
	}
	return nil
}

// content is what the Secret is to hold.
func (e *execution) content() ([]byte, error) {
	vm, err := wire.VM(e.target, e.step)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	content, err := podapi.EncodeVM(vm)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	return content, nil
}

// annotate completes a step, and returns the annotations that the Pod gets for it.
func (e *execution) annotate(step *podapi.Step, content []byte) (map[string]string, error) {
	step.Address, step.Fleet, step.Revision = e.step.Address.String(), e.target.Fleet, e.target.Revision
	step.Content, step.Hash = podapi.Digest(content), e.step.VM.Hash
	step.ID = e.id(step)
	annotations, err := step.Annotate(e.namespace, e.name, e.step.VM.Record, e.p.config.Keys.Sign)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	return annotations, nil
}

// id tells a step from every other one, and another try of it from the one before.
func (e *execution) id(step *podapi.Step) string {
	text := fmt.Sprintf("%+v", *step)
	if e.found != nil {
		text += e.found.uid
	}
	sum := sha256.Sum256([]byte(text))
	id := hex.EncodeToString(sum[:8])
	if e.found == nil || e.found.step == nil {
		return id + "-1"
	}
	before, count, _ := strings.Cut(e.found.step.ID, "-")
	n, err := strconv.Atoi(count)
	if before != id || err != nil {
		return id + "-1"
	}
	return id + "-" + strconv.Itoa(n+1)
}

func (e *execution) applySecret(ctx context.Context, content []byte) error {
	secret, err := pods.Secret(e.step.VM, content, e.options)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	return e.apply("the Secret", secret, func(patch []byte, options metav1.PatchOptions) error {
		_, err := e.p.client.CoreV1().Secrets(e.namespace).Patch(ctx, e.name, types.ApplyPatchType, patch, options)
		return err
	})
}

// apply is a server-side apply.
func (e *execution) apply(what string, object any, patch func([]byte, metav1.PatchOptions) error) error {
	encoded, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("%w: %w", apply.ErrStalled, err)
	}
	force := true
	if err := patch(encoded, metav1.PatchOptions{FieldManager: pods.FieldManager, Force: &force}); err != nil {
		return e.failed("applying "+what, err)
	}
	return nil
}

// outcome waits until the agent has told of a step.
func (e *execution) outcome(ctx context.Context, id string) error {
	last := ""
	err := e.await(ctx, e.p.config.Patience+time.Duration(e.step.GraceSeconds)*time.Second, func(now *guest) (bool, error) {
		if now == nil || now.forged != nil || now.step.ID != id {
			return false, nil // the cache is not there yet
		}
		if told := now.observed; told != nil && told.Step == id && told.Outcome != podapi.Retry {
			return true, outcomeOf(told)
		}
		if now.finished() {
			return true, fmt.Errorf("%w: its Pod has ended (%s)", apply.ErrRetry, now.waiting)
		}
		if text := now.doing(); text != last {
			last = text
			e.progress(text)
		}
		return false, nil
	})
	if errors.Is(err, errPatience) {
		return fmt.Errorf("%w: %s", apply.ErrRetry, last)
	}
	return err
}

// doing is what a Pod is at, for people.
func (g *guest) doing() string {
	switch {
	case g.observed != nil && g.observed.Outcome == podapi.Retry && g.observed.Message != "":
		return "the guest waits: " + g.observed.Message
	case g.phase == corev1.PodRunning:
		return "the Pod runs on " + g.node + "; its guest is made"
	case g.waiting != "":
		return "the Pod waits: " + g.waiting
	case g.node != "":
		return "the Pod is started on " + g.node
	}
	return "the Pod waits for a node"
}

func outcomeOf(told *podapi.Observed) error {
	switch told.Outcome {
	case podapi.Done:
		return nil
	case podapi.Stale:
		return fmt.Errorf("%w: %s", apply.ErrStale, told.Message)
	case podapi.Stalled:
		return fmt.Errorf("%w: %s", apply.ErrStalled, told.Message)
	default:
		return fmt.Errorf("%w: %s", apply.ErrRetry, told.Message)
	}
}
