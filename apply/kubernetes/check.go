package kubernetes

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/plan"
)

// Check implements apply.Checker: the API server says what it would make of the Pod, with its quotas and admission, and changes
// nothing. What a node would say is known when the Pod is on it.
func (p *Platform) Check(ctx context.Context, target apply.Target, step plan.Step) (apply.Findings, error) {
	var found apply.Findings
	if step.VM == nil || step.StopsGuest() || step.Pod == nil || !step.Pod.New {
		return found, nil
	}
	target = target.For(&step)
	pod, err := pods.Pod(step.VM, p.options(target.Fleet, target.Revision))
	if err != nil {
		found.Problems = []string{err.Error()}
		return found, nil
	}
	pod.Name, pod.GenerateName = "", "gitvirt-check-" // the machine's own name may be taken by the Pod that is to go
	_, err = p.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: pods.FieldManager})
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		found.Problems = []string{"the namespace " + pod.Namespace + " does not exist"}
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		found.Problems = []string{"Kubernetes refuses the Pod: " + err.Error()}
	default:
		return found, fmt.Errorf("%w: checking the Pod: %w", apply.ErrRetry, err)
	}
	return found, nil
}
