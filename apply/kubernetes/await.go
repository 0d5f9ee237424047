package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/kubernetes/pods"
	"github.com/gitvirt/gitvirt/schemas"
)

// errPatience: what was waited for did not come in time.
var errPatience = errors.New("it takes too long")

// await looks at the Pod of a step whenever something changes, until done says so.
func (e *execution) await(ctx context.Context, patience time.Duration, done func(*guest) (bool, error)) error {
	return e.p.await(ctx, e.namespace, e.name, patience, done)
}

func (p *Platform) await(ctx context.Context, namespace, name string, patience time.Duration, done func(*guest) (bool, error)) error {
	return until(ctx, patience, func() (*guest, <-chan struct{}) { return p.get(namespace, name) }, done)
}

// until looks at something, again whenever the channel that it came with is closed, until done says so or patience is over.
func until[T any](ctx context.Context, patience time.Duration, look func() (T, <-chan struct{}), done func(T) (bool, error)) error {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		now, changes := look()
		if over, err := done(now); over {
			return err
		}
		select {
		case <-changes:
		case <-limit.C:
			return errPatience
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Await implements apply.Executor: a guest is ready when its agent says so on its Pod. Of one that only has to run, that it runs is enough.
func (p *Platform) Await(ctx context.Context, of apply.Guest, timeout time.Duration) error {
	last := "it has no Pod"
	err := p.await(ctx, of.Address.Namespace, pods.Name(of.Address), timeout, func(now *guest) (bool, error) {
		switch {
		case now == nil:
			return false, nil
		case now.forged != nil:
			return true, apply.NotReadyError{Reason: now.forged.Error(), Never: true}
		case now.finished():
			return true, apply.NotReadyError{Reason: "its Pod has ended: " + now.waiting, Never: true}
		case now.ready, of.Ready.Kind == schemas.ReadyRunning && now.observed != nil && now.observed.Domain.GetState() == stateRunning:
			return true, nil
		}
		last = cmp.Or(now.waiting, now.doing())
		return false, nil
	})
	switch {
	case errors.Is(err, errPatience):
		return apply.NotReadyError{Reason: last}
	case err != nil && ctx.Err() != nil:
		return apply.ErrLeft
	}
	return err
}

// stateRunning is what agents call a guest that runs.
const stateRunning = "running"

func isGone(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsConflict(err) }

// failed turns an answer of the API server into the kinds of package apply.
func (e *execution) failed(what string, err error) error {
	kind := apply.ErrRetry
	hint := ""
	switch {
	case apierrors.IsNotFound(err) && e.found == nil:
		kind, hint = apply.ErrStalled, "; make the namespace first (kubectl create namespace "+e.namespace+")"
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		kind = apply.ErrStale
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota"):
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		kind = apply.ErrStalled
	}
	return fmt.Errorf("%w: %s %s: %w%s", kind, what, key(e.namespace, e.name), err, hint)
}

// maxConsole is how many bytes of a console are read.
const maxConsole = 64 << 10

// Console returns the last lines of a Pod's log, which has the guest's serial console when the manifest asks for that
// (devices.logSerialConsole); nothing of others.
func (p *Platform) Console(ctx context.Context, of apply.Guest, lines int) ([]string, error) {
	now, _ := p.get(of.Address.Namespace, pods.Name(of.Address))
	if now == nil || now.forged != nil {
		return nil, nil
	}
	read, err := schemas.ReadRecord(now.record, false)
	if err != nil {
		return nil, fmt.Errorf("reading the record of %s: %w", of.Address, err)
	}
	if log := read.Object.Spec.Template.Spec.Domain.Devices.LogSerialConsole; log == nil || !*log {
		return nil, nil
	}
	tail, limit := int64(lines), int64(maxConsole)
	text, err := p.client.CoreV1().Pods(now.namespace).GetLogs(now.name, &corev1.PodLogOptions{Container: pods.Container, TailLines: &tail, LimitBytes: &limit}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the log of the Pod %s: %w", key(now.namespace, now.name), err)
	}
	return strings.Split(strings.TrimRight(string(text), "\n"), "\n"), nil
}
