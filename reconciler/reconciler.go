package reconciler

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/apply/ledger"
	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// Source is where the manifests come from.
type Source interface {
	// Poll returns the present revision: the same pointer as before when nothing changed. Whatever the error, what
	// was returned before stays what is known.
	Poll(ctx context.Context) (*sources.Snapshot, error)
}

// LastSource is a Source that keeps what it fetched. What Last returns is used when the first Poll of a process fails.
type LastSource interface {
	Last(ctx context.Context) (*sources.Snapshot, error)
}

// Platform is where the machines run.
type Platform interface {
	// Observed returns what lives there. It is cheap; the result is shared and immutable.
	Observed() plan.Observed
	// Changed receives a value whenever Observed has something new. It is buffered: several changes may be one value.
	Changed() <-chan struct{}
	apply.Executor
}

// PodPlatform is a Platform on which machines are Pods.
type PodPlatform interface{ Pods() plan.Pods }

// Notifier is a Platform that has something to tell that is not in Observed.
type Notifier interface {
	Notes() <-chan Note
}

// DiskLister is a Platform that can name the disks with data whose machine is gone.
type DiskLister interface {
	KeptDisks(ctx context.Context) ([]status.KeptDisk, error)
}

// StatusBranch is a branch that the status is written to.
type StatusBranch interface {
	// Read returns what the branch holds, by path; nothing when it does not exist.
	Read(ctx context.Context) (map[string][]byte, error)
	// Publish makes the branch hold exactly these files (the paths that status.Owned names) and reports whether that
	// took a commit.
	Publish(ctx context.Context, files map[string][]byte, message string) (changed bool, err error)
}

// Config adjusts a Reconciler. The zero value is usable.
type Config struct {
	// Parallel is the number of steps of one kind (starting, defining; four times as many for those that wait for a
	// guest to shut down) that are carried out at a time; 0 means 20, as many as libvirtd has workers.
	Parallel int
	// Interval is the time between two polls. 0 leaves it to the Fleet's spec.interval, and then to DefaultInterval.
	Interval time.Duration
	// PollTimeout is how long one poll may take; 0 means a minute.
	PollTimeout time.Duration
	// Status returns the status branch of a name; nil means that no status is published.
	Status func(branch string) StatusBranch
	// PublishInterval is the shortest time between two pushes of the status; 0 means 2 s.
	PublishInterval time.Duration
	// Unmet says what of a Fleet the controller cannot carry out as it was started; it is written to the status. nil means nothing.
	Unmet func(fleet *schemas.Fleet) []string
	// Log gets what happens; nil means nobody reads it.
	Log *slog.Logger
	// Ledger keeps what was done at each revision, beyond this process; nil keeps it in memory.
	Ledger *ledger.Book
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

// DefaultInterval is the time between two polls when neither the configuration nor the Fleet says another.
const DefaultInterval = 15 * time.Second

// firstPoll is how long the first poll may take when there is a revision from an earlier run to go by.
const firstPoll = 5 * time.Second

func (c Config) withDefaults() (Config, error) {
	if c.Parallel < 0 || c.Interval < 0 || c.PollTimeout < 0 || c.PublishInterval < 0 {
		return c, errors.New("reconciler: Parallel, Interval, PollTimeout and PublishInterval must not be negative")
	}
	if c.Parallel == 0 {
		c.Parallel = 20
	}
	if c.PollTimeout == 0 {
		c.PollTimeout = time.Minute
	}
	if c.PublishInterval == 0 {
		c.PublishInterval = 2 * time.Second
	}
	if c.Unmet == nil {
		c.Unmet = func(*schemas.Fleet) []string { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = backoff.SystemClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c, nil
}

// Reconciler keeps a platform as a source wants it. Its methods are safe for concurrent use; Run is called once.
type Reconciler struct {
	source   Source
	platform Platform
	config   Config
	events   *recorder
	metrics  *metrics

	view    atomic.Pointer[View]
	history atomic.Pointer[status.History]
	// earlier is the revision that an earlier run fetched last; nil for none.
	earlier atomic.Pointer[string]
	// busySince is when the loop last stopped waiting, in Unix nanoseconds; 0 while it waits.
	busySince atomic.Int64
	// unpublished is since when the status branch is behind, in Unix nanoseconds; 0 when it is not.
	unpublished atomic.Int64
	nudges      chan struct{}
	// approvalNudges is nudges for the approver.
	approvalNudges chan struct{}
	views          chan struct{} // tells the publisher of a new view
	followers      followers     // are told of new views and events
	// doing is what is being done right now: an address and a text.
	doing sync.Map
}

// New returns a Reconciler that does nothing until Run.
func New(source Source, platform Platform, config Config) (*Reconciler, error) {
	if source == nil || platform == nil {
		return nil, errors.New("reconciler: a source and a platform are needed")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Reconciler{
		source: source, platform: platform, config: config, events: newRecorder(),
		nudges: make(chan struct{}, 1), approvalNudges: make(chan struct{}, 1), views: make(chan struct{}, 1),
	}
	r.metrics = newMetrics(r)
	r.view.Store(&View{Time: config.Clock.Now()})
	r.history.Store(status.NewHistory(nil))
	return r, nil
}

// Run reconciles until ctx ends, waits for the steps that are being carried out (they are cancelled) and returns nil.
func (r *Reconciler) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	polls := make(chan poll)
	running.Go(func() { newPoller(r).run(ctx, polls) })
	running.Go(func() { newPublisher(r).run(ctx) })
	given := make(chan approvals)
	running.Go(func() { (&approver{r: r}).run(ctx, given) })
	l := newLoop(r)
	l.run(ctx, polls, given)
	return nil
}

// Nudge polls now, as when a webhook says that the source has changed, or that somebody has approved something.
func (r *Reconciler) Nudge() {
	select {
	case r.nudges <- struct{}{}:
	default:
	}
	r.nudgeApprover()
}

func (r *Reconciler) nudgeApprover() {
	select {
	case r.approvalNudges <- struct{}{}:
	default:
	}
}

// View returns what the last round saw and decided. It is never nil and must not be changed.
func (r *Reconciler) View() *View { return r.view.Load() }

// Earlier returns the revision that was fetched last before this process, as far as that is known; "" when it is not. It is known when View has a
// Plan.
func (r *Reconciler) Earlier() string {
	if revision := r.earlier.Load(); revision != nil {
		return *revision
	}
	return ""
}

// VMs returns the status of every machine of the fleet, ordered by address.
func (r *Reconciler) VMs() []status.VM {
	view := r.View()
	return r.withProgress(r.history.Load().Merge(view.Statuses(), view.Time))
}

// VM returns the status of the machine of a namespace and name.
func (r *Reconciler) VM(namespace, name string) (status.VM, bool) {
	view := r.View()
	vms := view.statusesOf(namespace, name)
	if len(vms) == 0 {
		return status.VM{}, false
	}
	return r.withProgress(r.history.Load().Merge(vms[:1], view.Time))[0], true
}

// Events returns the events with an ID above since, oldest first.
func (r *Reconciler) Events(since uint64) []Event { return r.events.since(since) }

// Registry holds the metrics.
func (r *Reconciler) Registry() *prometheus.Registry { return r.metrics.registry }

// stuckAfter is how long the loop may be at one thing. A round of 5,000 machines takes milliseconds.
const stuckAfter = 30 * time.Second

// Healthy returns an error when the loop is stuck.
func (r *Reconciler) Healthy() error {
	since := r.busySince.Load()
	if since != 0 && r.config.Clock.Now().Sub(time.Unix(0, since)) > stuckAfter {
		return errors.New("the loop is stuck")
	}
	return nil
}

// Ready returns an error that says what is missing until both sides are known.
func (r *Reconciler) Ready() error {
	view := r.View()
	switch {
	case view.Snapshot == nil && view.Refused != "":
		return errors.New("no revision is trusted: " + view.Refused)
	case view.Snapshot == nil && view.PollError != "":
		return errors.New("git is not known yet: " + view.PollError)
	case view.Snapshot == nil:
		return errors.New("git is not known yet")
	case view.Plan == nil:
		return errors.New("no round is complete yet")
	case view.Plan.Unknown != "":
		return errors.New("the host is not known: " + view.Plan.Unknown)
	}
	return nil
}

// event records and logs what happened.
func (r *Reconciler) event(kind EventType, reason Reason, address schemas.Address, revision, message string) {
	r.events.add(Event{Time: r.config.Clock.Now(), Type: kind, Reason: reason, Address: address, Revision: revision, Message: message})
	r.followers.tell()
	level := slog.LevelInfo
	if kind == Warning {
		level = slog.LevelWarn
	}
	attributes := []slog.Attr{slog.String("reason", string(reason))}
	if !address.IsZero() {
		attributes = append(attributes, slog.String("vm", address.String()))
	}
	if revision != "" {
		attributes = append(attributes, slog.String("revision", short(revision)))
	}
	r.config.Log.LogAttrs(context.Background(), level, message, attributes...)
}

// short is a revision for people.
func short(revision string) string { return status.ShortRevision(revision) }

// progress notes what a step is doing, for those who ask. It is called from the workers.
func (r *Reconciler) progress(event apply.Event) {
	if event.Done {
		r.doing.Delete(event.Address)
		return
	}
	if event.Progress != "" {
		r.doing.Store(event.Address, event.Progress)
		r.config.Log.Debug(event.Progress, "vm", event.Address.String())
	}
}

// withProgress adds what is being done right now.
func (r *Reconciler) withProgress(vms []status.VM) []status.VM {
	for i := range vms {
		if text, ok := r.doing.Load(vms[i].Address); ok {
			vms[i].Progress, _ = text.(string)
		}
	}
	return vms
}
