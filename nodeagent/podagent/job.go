package podagent

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// job is the step that the Pod has now, with what it needs.
type job struct {
	// annotations are what the step was read from, "" before there is one.
	annotations string
	step        *podapi.Step
	vm          *api.VM // nil until the Secret has the step's content, as object is
	object      *kubevirtv1.VirtualMachine
	claims      bool // whether the guest writes to claims
	// retryAt is when a step that failed is tried again, delay how long the last wait was.
	retryAt time.Time
	delay   time.Duration
}

// read takes the step from the Pod, and tells whether there is one that the controller signed.
func (w *worker) read(pod *corev1.Pod) bool {
	text := pod.Annotations[podapi.AnnotationStep] + "\x00" + pod.Annotations[podapi.AnnotationSignature] + "\x00" + pod.Annotations[podapi.AnnotationRecord]
	if text == w.job.annotations {
		return true
	}
	trust, err := w.agent.config.Trust()
	if err != nil {
		w.log.Warn("no Pod can be verified", "error", err)
		return false
	}
	verify := func(payload, signature []byte) bool { return trust.VerifyStep(payload, signature) == nil }
	step, record, err := podapi.Read(pod.Namespace, pod.Name, pod.Annotations, verify)
	var claims bool
	if err == nil {
		claims, err = writesClaims(record)
	}
	if err != nil && w.refused == text {
		return false
	}
	if err != nil {
		w.refused = text
		reason := podapi.ForgedRecord // writesClaims cannot read it
		var forgery *podapi.Forgery
		if errors.As(err, &forgery) {
			reason = forgery.Reason
		}
		w.agent.metrics.refused.WithLabelValues(reason).Inc()
		w.log.Warn("the Pod is refused", "error", err)
		w.agent.config.Events.Event(reference(pod), corev1.EventTypeWarning, "Refused", err.Error())
		return false
	}
	w.refused = ""
	w.job = job{annotations: text, step: step, claims: claims}
	w.paused = 0
	w.note(func(s *state) { s.step = step })
	return true
}

// maxContent bounds what is read of a Secret, in bytes: as much as the API server takes.
const maxContent = 2 << 20

// content reads what the kubelet has of the Secret. A new content comes a moment after the annotations have changed.
func (w *worker) content() error {
	if w.job.vm != nil {
		return nil
	}
	content, err := readLimited(filepath.Join(w.place.Dir, secretVolume, podapi.SecretKey), maxContent)
	if err != nil {
		return err
	}
	vm, err := w.job.step.DecodeVM(content)
	if err != nil {
		return err
	}
	object := &kubevirtv1.VirtualMachine{}
	if err := json.Unmarshal(vm.GetObject(), object); err != nil || object.Spec.Template == nil {
		return errors.New("the machine in it cannot be read") // what cannot be read may be quoted in the error
	}
	ready, err := readinessOf(object)
	if err != nil {
		return err
	}
	w.job.vm, w.job.object = vm, object
	w.note(func(s *state) { s.ready.take(ready) })
	return nil
}
