package podagent

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/emulation"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

const (
	// stepLimit is how long one step may go without progress, beside the guest's grace period.
	stepLimit = 30 * time.Minute
	// firstRetry and lastRetry are the waits before a step is tried again that could not be carried out.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// leaseRetry is the longest wait of a guest for the Lease of its claims: nobody tells when it is given up, and the machine is down.
	leaseRetry = 5 * time.Second
	// echoLimit bounds the wait for libvirt's view to be that of after the step.
	echoLimit = 2 * time.Second
)

// reasonEmulation is why a step is refused that was made for a node with KVM.
const reasonEmulation = "emulation"

// carryOut carries out the Pod's step. One that fails for now is tried again: the controller need not be there for it.
func (w *worker) carryOut(ctx, life context.Context) next {
	if left := time.Until(w.job.retryAt); left > 0 {
		return soon(left)
	}
	step := w.job.step
	starts := step.Power == "on" || step.Power == "cycle"
	if starts && !step.Emulation && w.agent.config.DomainType == emulation.DomainQEMU {
		const why = "this node has no KVM that works, and the guest was not allowed to be emulated: the Pod is here against its request for devices.gitvirt.io/kvm, or the " +
			"agent was started with another --emulation than gitvirt was installed with"
		w.agent.metrics.refused.WithLabelValues(reasonEmulation).Inc()
		w.log.Warn("the step is refused", "step", step.ID, "error", why)
		w.conclude(podapi.Stalled, why)
		return whenever()
	}
	if starts && w.job.claims && !w.lease.held {
		if err := w.acquire(ctx); err != nil {
			w.wait("", nil)
			w.retry(leaseRetry)
			w.conclude(podapi.Retry, err.Error())
			return soon(leaseRetry)
		}
	}
	select {
	case w.agent.lanes <- struct{}{}:
		defer func() { <-w.agent.lanes }()
	case <-ctx.Done():
		return whenever()
	}
	w.wait("", nil)
	w.note(func(s *state) { s.since = time.Now() })
	w.log.Info("step begins", "step", step.ID, "revision", step.Revision, "define", step.Define, "live", step.Live, "power", step.Power)
	started := time.Now()
	fingerprint, err := w.execute(life)
	if err != nil && life.Err() != nil {
		w.log.Info("step is left", "step", step.ID, "error", err)
		return whenever() // the next agent carries it out again
	}
	outcome, message := outcomeOf(err)
	if err == nil {
		w.awaitEcho(life, fingerprint)
	}
	w.log.Info("step ended", "step", step.ID, "outcome", outcome, "error", message, "took", time.Since(started).Round(time.Millisecond))
	w.agent.metrics.steps.WithLabelValues(string(outcome)).Inc()
	w.agent.metrics.seconds.Observe(time.Since(started).Seconds())
	if outcome == podapi.Retry {
		w.retry(lastRetry)
	}
	if step.Power == "cycle" {
		w.mu.Lock()
		w.state.ready.restart()
		w.mu.Unlock()
	}
	w.conclude(outcome, message)
	return soon(firstWait)
}

// execute has the guest's agent carry the step out; one that makes no progress for long is left.
func (w *worker) execute(life context.Context) (fingerprint string, err error) {
	ctx, cancel := context.WithCancelCause(life)
	defer cancel(nil)
	limit := stepLimit + time.Duration(w.job.step.GraceSeconds)*time.Second
	patience := time.AfterFunc(limit, func() { cancel(fmt.Errorf("the step told of no progress for %s", limit)) })
	defer patience.Stop()
	return w.open.guest.Execute(ctx, w.job.step.Request(w.job.vm), func(text string) {
		patience.Reset(limit)
		w.log.Debug("step goes on", "step", w.job.step.ID, "progress", text)
	})
}

// retry has the step wait before it is tried again, longer each time, and at most so long.
func (w *worker) retry(most time.Duration) {
	w.job.delay = min(max(2*w.job.delay, firstRetry), most)
	w.job.retryAt = time.Now().Add(w.job.delay)
}

// conclude notes what became of the step.
func (w *worker) conclude(outcome podapi.Outcome, message string) {
	id := w.job.step.ID
	w.note(func(s *state) { s.done, s.outcome, s.message, s.since = id, outcome, message, time.Time{} })
}

// outcomeOf says what the controller is to make of an error.
func outcomeOf(err error) (podapi.Outcome, string) {
	if err == nil {
		return podapi.Done, ""
	}
	said := status.Convert(nodeagent.StatusOf(err))
	message := short(said.Message())
	switch said.Code() {
	case codes.Aborted:
		return podapi.Stale, message
	case codes.InvalidArgument, codes.FailedPrecondition:
		return podapi.Stalled, message
	default:
		return podapi.Retry, message
	}
}

// messageLimit bounds what is told in words, in bytes.
const messageLimit = 1000

func short(text string) string {
	if len(text) > messageLimit {
		return text[:messageLimit] + "..."
	}
	return text
}

// awaitEcho waits until what is seen of the domain is what it was after the step, so that both are told at once.
func (w *worker) awaitEcho(ctx context.Context, fingerprint string) {
	limit := time.NewTimer(echoLimit)
	defer limit.Stop()
	for {
		domain, _ := w.domain()
		if domain.GetFingerprint() == fingerprint {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-limit.C:
			return
		case <-w.wake: // whoever woke it is looked at next
		}
	}
}
