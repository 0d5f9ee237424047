package podagent

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/api"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
	"github.com/gitvirt/gitvirt/schemas"
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

// opened is an agent of the Pod that was opened.
type opened struct {
	guest Guest
	close func()
}

// state is what is known of a Pod and told on it.
type state struct {
	// step is the last one that could be verified; nil before there is one. Nothing is told of a Pod without.
	step *podapi.Step
	// done is the ID of the step that was carried out last, with its outcome.
	done    string
	outcome podapi.Outcome
	message string
	// sight is what the Pod's libvirt has; nil until it was seen.
	sight *nodeagent.PodState
	// since is when the step began that is being carried out; zero while none is.
	since time.Time
	// waiting says what is being waited for, from when on.
	waiting      string
	waitingSince time.Time
	// ready is how the guest is asked whether it is; found is what was found, of this run of the guest.
	ready readiness
	// ended says that the launcher has ended.
	ended bool
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

// note changes what is known, and has it told if that is news.
func (w *worker) note(change func(*state)) {
	w.mu.Lock()
	change(&w.state)
	w.mu.Unlock()
	nudge(w.news)
}

func (w *worker) known() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
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

// wait notes what is being waited for; "" for nothing.
func (w *worker) wait(what string, why error) {
	text := ""
	if what != "" {
		text = "waiting for " + what
		if why != nil {
			text += ": " + why.Error()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.waiting == text {
		return
	}
	if w.state.waiting == "" || text == "" {
		w.state.waitingSince = time.Now()
	}
	w.state.waiting = text
	nudge(w.news)
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
		w.agent.metrics.refused.Inc()
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

// enter opens the agent of the Pod.
func (w *worker) enter(ctx context.Context) error {
	if w.open != nil {
		return nil
	}
	if err := os.MkdirAll(w.place.StateDir, 0o700); err != nil {
		return err
	}
	place, err := w.locate()
	if err != nil {
		return err
	}
	guest, closeGuest, err := w.agent.config.Open(ctx, place)
	if err != nil {
		return err
	}
	// It follows the Pod until the worker ends: a step that is on its way when the agent stops needs it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var followers sync.WaitGroup
	followers.Go(func() { guest.Run(life) })
	followers.Go(func() { guest.Watch(life, w.look) })
	followers.Go(func() { w.follow(life, guest) })
	w.open = &opened{guest: guest, close: func() {
		end()
		followers.Wait()
		closeGuest()
	}}
	w.mu.Lock()
	w.state.ready.guest = guest
	w.mu.Unlock()
	return nil
}

// locate finds what is needed to open the agent of the Pod.
func (w *worker) locate() (Pod, error) {
	place := w.place
	var err error
	if place.Address, err = schemas.ParseAddress(w.job.step.Address); err != nil {
		return place, err
	}
	if place.PID, err = w.agent.processes.launcher(place.UID); err != nil {
		return place, err
	}
	pod, _ := w.current()
	place.Object, place.IP, place.Networks = w.job.object, pod.Status.PodIP, pod.Annotations[annotationNetworks]
	place.VHost = len(pod.Spec.Containers) > 0
	return place, nil
}

// shut lets go of the Pod; what is in it goes on.
func (w *worker) shut() {
	if w.open != nil {
		w.mu.Lock()
		w.state.ready.guest = nil
		w.mu.Unlock()
		w.open.close()
		w.open = nil
	}
}

// look takes what the Pod's libvirt has.
func (w *worker) look(sight nodeagent.PodState) {
	if sight.Unknown != "" {
		return // the guest goes on while libvirt does not answer: what was seen last holds
	}
	w.note(func(s *state) {
		s.sight = &sight
		s.ready.run(active(sight.Domain))
	})
	w.agent.labels.learn(sight.Live)
	nudge(w.wake)
}

// domain returns the Pod's domain; nil when there is none. It is not seen while libvirt has not answered yet.
func (w *worker) domain() (domain *api.Domain, seen bool) {
	known := w.known()
	if known.sight == nil {
		return nil, false
	}
	return known.sight.Domain, true
}

// active tells whether a guest runs.
func active(domain *api.Domain) bool {
	return domain.GetState() == "running" || domain.GetState() == "paused"
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
