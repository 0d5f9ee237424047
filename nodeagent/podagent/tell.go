package podagent

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// FieldManager is the name under which the agent writes.
const FieldManager = "gitvirt-agent"

const (
	// holdBack is how long the changes of a step that is being carried out are kept to ourselves: most end before, and are told in one.
	holdBack = 10 * time.Second
	// writeLimit bounds one write, firstRewrite and lastRewrite the waits after one that failed.
	writeLimit   = 5 * time.Second
	firstRewrite = 250 * time.Millisecond
	lastRewrite  = 30 * time.Second
)

// told is what a Pod says of its guest.
type told struct {
	observed  string
	condition corev1.PodCondition
}

// tell writes on the Pod what is known, whenever that is something else than what the Pod says, until life ends. From the end of ctx on
// it only waits for the last.
func (w *worker) tell(ctx, life context.Context) {
	var delay time.Duration
	for {
		var again <-chan time.Time
		if delay > 0 {
			again = time.After(delay/2 + rand.N(delay/2+1)) //nolint:gosec // a wait need not be a secret
		}
		select {
		case <-life.Done():
			_, _ = w.publish(context.WithoutCancel(ctx)) // the next agent tells what could not be told
			return
		case <-w.news:
			if backoff.Wait(life, nil, w.agent.config.Settle) != nil { // what belongs to the same news comes meanwhile
				continue
			}
			drain(w.news)
		case <-again:
		}
		later, err := w.publish(life)
		switch {
		case err != nil:
			delay = min(max(2*delay, firstRewrite), lastRewrite)
		default:
			delay = later
		}
	}
}

func drain(channel chan struct{}) {
	select {
	case <-channel:
	default:
	}
}

// publish writes what is known if the Pod says something else. later is when to look again although nothing changes.
func (w *worker) publish(ctx context.Context) (later time.Duration, err error) {
	pod, gone := w.current()
	known := w.known()
	if gone || pod.DeletionTimestamp != nil || known.step == nil {
		return 0, nil // a Pod that is on its way out is ready for nobody
	}
	want, later, err := known.compose(&w.agent.config, conditionOf(pod), time.Now())
	if err != nil {
		w.log.Warn("cannot tell of the guest", "error", err)
		return 0, nil
	}
	if want == nil || want.said(pod) {
		return later, nil
	}
	patch, err := want.patch(pod, time.Now())
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	now, err := w.agent.config.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: FieldManager}, "status")
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil // the informer tells so as well
	case err != nil:
		w.agent.metrics.writes.WithLabelValues("error").Inc()
		if ctx.Err() == nil {
			w.log.Warn("cannot write on the Pod", "error", err)
		}
		return 0, err
	}
	w.agent.metrics.writes.WithLabelValues("ok").Inc()
	w.mu.Lock()
	defer w.mu.Unlock()
	if order, err := resourceversion.CompareResourceVersion(now.ResourceVersion, w.pod.ResourceVersion); err != nil || order > 0 {
		w.pod = trimmed(now)
	}
	return later, nil
}

// compose says what the Pod should say; nil for nothing yet. before is the condition that it has.
func (s *state) compose(config *Config, before *corev1.PodCondition, now time.Time) (want *told, later time.Duration, err error) {
	quiet := time.Duration(0)
	switch {
	case s.ended && before == nil:
		return nil, 0, nil
	case !s.since.IsZero():
		quiet = holdBack - now.Sub(s.since)
	case s.waiting != "":
		quiet = config.Quiet - now.Sub(s.waitingSince)
	case s.sight == nil && !s.ended:
		return nil, 0, nil
	}
	out := &told{condition: s.condition()}
	out.condition.Type = podapi.GuestReady
	// That a guest which was ready is not any more is never kept back: Services send requests to it.
	urgent := before != nil && before.Status == corev1.ConditionTrue && out.condition.Status != corev1.ConditionTrue
	if quiet > 0 && !urgent {
		return nil, quiet, nil
	}
	observed := podapi.Observed{Step: s.done, Outcome: s.outcome, Message: s.message, Node: config.Node}
	if s.sight != nil {
		observed.Live = s.sight.Live
		if s.sight.Domain != nil {
			observed.Domain = podapi.Trim(s.sight.Domain, s.step.Hash)
		}
	}
	out.observed, err = observed.Encode()
	return out, 0, err
}

// said tells whether a Pod says this already.
func (t *told) said(pod *corev1.Pod) bool {
	condition := conditionOf(pod)
	return condition != nil && pod.Annotations[podapi.AnnotationObserved] == t.observed &&
		condition.Status == t.condition.Status && condition.Reason == t.condition.Reason && condition.Message == t.condition.Message
}

// patch is the one write that has a Pod say this: a strategic merge patch of its status, which may change annotations as well and
// leaves the other conditions alone. The UID makes it one for this Pod and for no other of its name.
func (t *told) patch(pod *corev1.Pod, now time.Time) ([]byte, error) {
	condition := t.condition
	condition.LastTransitionTime = metav1.NewTime(now)
	if before := conditionOf(pod); before != nil && before.Status == condition.Status {
		condition.LastTransitionTime = before.LastTransitionTime
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "annotations": map[string]string{podapi.AnnotationObserved: t.observed}},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
}
