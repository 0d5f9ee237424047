package podagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/schemas"
)

// readiness is when the guest counts as ready, and what was found out by asking it.
type readiness struct {
	want schemas.Ready
	// probe says that the machine has a readiness probe, whose result is told with the domain.
	probe bool
	// runs numbers the runs of the guest that were seen; running says that there is one now.
	runs    int
	running bool
	// awaited says that this run of the guest was found ready; found is why not yet.
	awaited bool
	found   string
	// guest is who is asked; nil while there is nobody.
	guest Guest
}

// take notes when the guest counts as ready from now on.
func (r *readiness) take(wanted readiness) {
	if r.want != wanted.want {
		r.awaited, r.found = false, ""
	}
	r.want, r.probe = wanted.want, wanted.probe
}

// run notes whether the guest runs.
func (r *readiness) run(running bool) {
	if running && !r.running {
		r.restart()
	}
	r.running = running
}

// restart begins another run of the guest.
func (r *readiness) restart() {
	r.runs++
	r.awaited, r.found = false, ""
}

// asks tells whether the guest has to be asked itself.
func (r *readiness) asks() bool {
	switch r.want.Kind {
	case schemas.ReadyAgent, schemas.ReadyTCP, schemas.ReadyCloudInit:
		return r.running && !r.awaited
	default:
		return false
	}
}

// readinessOf reads when a machine counts as ready.
func readinessOf(object *kubevirtv1.VirtualMachine) (readiness, error) {
	out := readiness{probe: object.Spec.Template.Spec.ReadinessProbe != nil}
	if text := object.Annotations[schemas.AnnotationReady]; text != "" {
		want, err := schemas.ParseReady(text)
		if err != nil {
			return readiness{}, fmt.Errorf("%s: %w", schemas.AnnotationReady, err)
		}
		out.want = want
	}
	return out, nil
}

// The bounds of asking a guest.
const (
	// awaitTime is how long one question takes until what was found is told.
	awaitTime = 20 * time.Second
	// awaitPause is the wait after an answer that was none.
	awaitPause = 5 * time.Second
	// lookPause is how often it is looked whether somebody has to be asked.
	lookPause = 500 * time.Millisecond
)

// follow asks the guest whether it is ready, once in each of its runs, until ctx ends.
func (w *worker) follow(ctx context.Context, guest Guest) {
	pause := time.NewTicker(lookPause)
	defer pause.Stop()
	for {
		known := w.known()
		if known.step != nil && known.ready.asks() {
			w.ask(ctx, guest, known)
		}
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// ask asks the guest once.
func (w *worker) ask(ctx context.Context, guest Guest, known state) {
	want := known.ready.want
	_, err := guest.Await(ctx, &api.AwaitRequest{
		Address: known.step.Address, Ready: string(want.Kind), Port: uint32(max(want.Port, 0)),
		TimeoutSeconds: int64(awaitTime / time.Second),
	})
	if ctx.Err() != nil {
		return
	}
	w.note(func(s *state) {
		if s.ready.runs != known.ready.runs || s.ready.want != want {
			return // it is another run by now
		}
		s.ready.awaited, s.ready.found = err == nil, ""
		if err != nil {
			s.ready.found = short(err.Error())
		}
	})
	if err != nil && !errors.Is(err, nodeagent.ErrNotReadyInTime) {
		pause := time.NewTimer(awaitPause)
		defer pause.Stop()
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}

// The reasons of the condition.
const (
	reasonReady    = "GuestReady"
	reasonNotReady = "GuestNotReady"
	reasonPaused   = "GuestPaused"
	reasonOff      = "GuestOff"
	reasonEnded    = "LauncherEnded"
	reasonWaiting  = "Waiting"
	reasonFailed   = "StepFailed"
)

// condition is what is told of the guest: whether it is ready, and why not.
func (s *state) condition() corev1.PodCondition {
	no := func(reason, message string) corev1.PodCondition {
		return corev1.PodCondition{Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	var domain *api.Domain
	if s.sight != nil {
		domain = s.sight.Domain
	}
	switch {
	case s.ended:
		return no(reasonEnded, "the Pod's launcher has ended")
	case domain.GetState() == "paused":
		return no(reasonPaused, "the guest is paused")
	case domain.GetState() == "running":
		return s.runningCondition(domain)
	case s.waiting != "":
		return no(reasonWaiting, s.waiting)
	case s.message != "":
		return no(reasonFailed, s.message)
	}
	return no(reasonOff, "the guest is off")
}

// runningCondition is that of a guest that runs.
func (s *state) runningCondition(domain *api.Domain) corev1.PodCondition {
	out := corev1.PodCondition{Status: corev1.ConditionTrue, Reason: reasonReady, Message: "the guest runs"}
	no := func(message string) {
		out.Status, out.Reason, out.Message = corev1.ConditionFalse, reasonNotReady, message
	}
	switch s.ready.want.Kind {
	case schemas.ReadyRunning:
		return out
	case schemas.ReadyAgent, schemas.ReadyTCP, schemas.ReadyCloudInit:
		if !s.ready.awaited {
			no("the guest has not been found ready yet (" + s.ready.want.String() + ")")
			if s.ready.found != "" {
				no(s.ready.found)
			}
			return out
		}
	case "", schemas.ReadyProbe:
	}
	switch {
	case !s.ready.probe:
	case domain.GetReady() == "true":
		out.Message = "the readiness probe succeeds"
	case domain.GetReady() == "":
		no("readiness probe: the guest has not been asked yet")
	default:
		no("readiness probe: " + domain.GetReadyReason())
	}
	return out
}

// readLimited reads a file of at most so many bytes.
func readLimited(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(content)) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return content, err
}
