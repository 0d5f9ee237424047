package podagent

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// worker looks after one Pod. Its goroutines: the one of run does things, the teller writes on the Pod, and while the guest's agent is
// open three more follow that. All share state.
type worker struct {
	agent  *Agent
	log    *slog.Logger
	place  Pod
	wake   chan struct{} // something may have to be done
	news   chan struct{} // something may have to be told
	paused time.Duration // how long the last wait was that nothing ended

	// What follows belongs to the goroutine of run.
	job     job
	refused string // the annotations that were refused last
	open    *opened
	lease   leaseState

	mu    sync.Mutex
	pod   *corev1.Pod
	gone  bool
	over  bool // nothing is left to be done, ever
	state state
}

func newWorker(a *Agent, pod *corev1.Pod) *worker {
	w := &worker{
		agent: a, wake: make(chan struct{}, 1), news: make(chan struct{}, 1), pod: pod,
		log: a.config.Logger.With("pod", pod.Namespace+"/"+pod.Name),
		place: Pod{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Dir: filepath.Join(a.config.KubeletDir, "pods", string(pod.UID)),
			StateDir: filepath.Join(a.config.StateDir, "pods", string(pod.UID)),
		},
	}
	// What an agent before this one told is where this one goes on. Somebody else may have written it: then the step counts as done, or is
	// carried out again and finds the domain changed, and in either case the controller is told what the domain is.
	if observed, err := podapi.DecodeObserved(pod.Annotations); err == nil && observed != nil {
		w.state.done, w.state.outcome, w.state.message = observed.Step, observed.Outcome, observed.Message
	}
	return w
}

// see notes the Pod as it is now, unless it is older than what this worker has written itself.
func (w *worker) see(pod *corev1.Pod) {
	w.mu.Lock()
	if order, err := resourceversion.CompareResourceVersion(pod.ResourceVersion, w.pod.ResourceVersion); err != nil || order >= 0 {
		w.pod = pod
	}
	w.mu.Unlock()
	nudge(w.wake)
	nudge(w.news)
}

func (w *worker) miss() {
	w.mu.Lock()
	w.gone = true
	w.mu.Unlock()
	nudge(w.wake)
}

func (w *worker) current() (pod *corev1.Pod, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.gone
}

func (w *worker) finished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over
}

func nudge(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// The waits between two looks when nobody says that something has changed.
const (
	firstWait = 50 * time.Millisecond
	lastWait  = 30 * time.Second
)

// next is when to look again by itself.
type next struct {
	// after a time that grows with each look that found the same, at most most. Zero: only when something happens.
	most time.Duration
	// over ends the worker.
	over bool
}

func whenever() next               { return next{} }
func soon(most time.Duration) next { return next{most: most} }

// run works until the Pod is gone and nothing of it is left, or ctx ends. What is told is told once more at the end, so that the next
// agent knows.
func (w *worker) run(ctx, life context.Context) {
	telling, done := context.WithCancel(life)
	var teller sync.WaitGroup
	teller.Go(func() { w.tell(ctx, telling) })
	defer teller.Wait()
	defer done()
	defer w.shut()
	for {
		now := w.advance(ctx, life)
		if now.over {
			w.mu.Lock()
			w.over = true
			w.mu.Unlock()
			return
		}
		var again <-chan time.Time
		if now.most > 0 {
			w.paused = min(max(2*w.paused, firstWait), now.most)
			again = time.After(w.paused/2 + rand.N(w.paused/2+1)) //nolint:gosec // a wait need not be a secret
		} else {
			w.paused = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-again:
		}
	}
}

// advance does what is next.
func (w *worker) advance(ctx, life context.Context) next {
	pod, gone := w.current()
	verified := w.read(pod)
	if gone || hasEnded(pod) {
		return w.end(ctx, gone)
	}
	if !verified {
		return soon(lastWait) // the keys may change
	}
	if err := w.content(); err != nil {
		w.wait("the Secret's content", err)
		return soon(time.Second)
	}
	if !launcherRuns(pod) {
		return whenever()
	}
	if err := w.enter(ctx); err != nil {
		w.wait("the Pod's libvirt", err)
		return soon(time.Second)
	}
	domain, seen := w.domain()
	if !seen {
		return whenever() // libvirt is being asked
	}
	w.hold(ctx, domain)
	known := w.known()
	if known.done == w.job.step.ID && known.outcome != podapi.Retry || pod.DeletionTimestamp != nil {
		w.wait("", nil)
		return whenever()
	}
	if ctx.Err() != nil {
		return whenever()
	}
	return w.carryOut(ctx, life)
}

// end does what is left when the Pod has ended: it lets go of the Pod, and when no process of it lives any more, of its Lease.
func (w *worker) end(ctx context.Context, gone bool) next {
	w.shut()
	if w.job.step != nil {
		w.note(func(s *state) { s.ended = true })
	}
	count, err := w.agent.processes.of(w.place.UID)
	if err == nil && count == 0 {
		err = w.release(ctx)
	}
	if err != nil {
		w.log.Warn("cannot find out whether the Pod's guest is off", "error", err)
		return soon(lastWait)
	}
	if count > 0 {
		return soon(5 * time.Second)
	}
	if !gone {
		return whenever()
	}
	w.agent.orphans.inPod(w.place.UID, nil)
	if err := os.RemoveAll(w.place.StateDir); err != nil {
		w.log.Warn("cannot remove what was kept of the Pod", "error", err)
	}
	return next{over: true}
}

// reference names a Pod in what is told to people.
func reference(pod *corev1.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
}
