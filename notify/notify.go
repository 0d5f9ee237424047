package notify

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/schemas/rules"
)

// Controller is where events come from; *reconciler.Reconciler is one.
type Controller interface {
	View() *reconciler.View
	Events(since uint64) []reconciler.Event
	Follow() (changed <-chan struct{}, stop func())
	Report(note reconciler.Note)
}

// Config adjusts a Notifier. The zero value is usable.
type Config struct {
	// Gather is how long a receiver waits for more to happen before a message is sent; 0 means a second.
	Gather time.Duration
	// Pause is the shortest time between two messages to a receiver; 0 means 10 s.
	Pause time.Duration
	// Transport sends; nil means one that checks certificates by the system's authorities.
	Transport http.RoundTripper
	// ReadFile reads the files with addresses and secrets, anew for each message; nil means os.ReadFile.
	ReadFile func(path string) ([]byte, error)
	// Registerer gets the metrics; nil means nobody does.
	Registerer prometheus.Registerer
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

func (c Config) withDefaults() (Config, error) {
	if c.Gather < 0 || c.Pause < 0 {
		return c, errors.New("notify: Gather and Pause must not be negative")
	}
	if c.Gather == 0 {
		c.Gather = time.Second
	}
	if c.Pause == 0 {
		c.Pause = 10 * time.Second
	}
	if c.Transport == nil {
		c.Transport = http.DefaultTransport
	}
	if c.ReadFile == nil {
		c.ReadFile = os.ReadFile
	}
	if c.Clock == nil {
		c.Clock = backoff.SystemClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c, nil
}

// Notifier tells receivers of events. Run is called once.
type Notifier struct {
	controller Controller
	endpoints  Endpoints
	config     Config
	metrics    *metrics

	// fleet is the one that receivers is of; last is the ID of the last event that was looked at.
	fleet     *schemas.Fleet
	receivers map[string]*receiver
	last      uint64
	// problems were told of the present Fleet.
	problems map[string]bool
}

// New returns a Notifier that does nothing until Run.
func New(controller Controller, endpoints Endpoints, config Config) (*Notifier, error) {
	if controller == nil {
		return nil, errors.New("notify: a controller is needed")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Notifier{controller: controller, endpoints: endpoints, config: config, receivers: map[string]*receiver{}, problems: map[string]bool{}}
	n.metrics, err = newMetrics(config.Registerer)
	return n, err
}

// Run follows the events until ctx ends, and then waits for the messages that are being sent (they are cancelled). It returns nil.
func (n *Notifier) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changed, stop := n.controller.Follow()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			n.look(ctx, &running)
		}
	}
}

// look hands new events to the receivers of the present Fleet. Before git is known there are none, and the events wait.
func (n *Notifier) look(ctx context.Context, running *sync.WaitGroup) {
	view := n.controller.View()
	if view.Desired == nil {
		return
	}
	if view.Desired.Fleet != n.fleet {
		n.settle(ctx, running, view.Desired.Fleet)
	}
	for _, event := range n.controller.Events(n.last) {
		n.last = event.ID
		if event.Reason == reconciler.NotificationFailed || event.Reason == reconciler.NotificationRecovered {
			continue // telling that nobody can be told has no end
		}
		for _, to := range n.receivers {
			if to.wants(&event, n.fleet.Name) {
				n.metrics.dropped.WithLabelValues(to.name).Add(float64(to.queue.add(event)))
			}
		}
	}
}

// settle takes the receivers of a Fleet. Those that stay keep what they have not sent.
func (n *Notifier) settle(ctx context.Context, running *sync.WaitGroup, fleet *schemas.Fleet) {
	n.fleet = fleet
	n.tellProblems(n.endpoints.Unmet(fleet))
	wanted := map[string]bool{}
	for _, spec := range fleet.Spec.Notifications {
		endpoint, known := n.endpoints[spec.Name]
		filter, problem := rules.CompileFilter(spec.Filter)
		if !known || problem != nil { // the Fleet's diagnostics tell a mistake of the filter
			continue
		}
		wanted[spec.Name] = true
		to, ok := n.receivers[spec.Name]
		if ok && to.kind == spec.Kind && to.fleet == fleet.Name {
			to.filter = filter
			continue
		}
		waiting := newQueue()
		if ok {
			to.stop()
			waiting = to.queue
		}
		receiving, stop := context.WithCancel(ctx)
		to = &receiver{n: n, name: spec.Name, kind: spec.Kind, fleet: fleet.Name, endpoint: endpoint, filter: filter, stop: stop, queue: waiting}
		n.receivers[spec.Name] = to
		running.Go(func() { to.run(receiving) })
		waiting.wake() // the one before may have taken what it was woken by
	}
	for name, to := range n.receivers {
		if !wanted[name] {
			to.stop()
			delete(n.receivers, name)
		}
	}
}

// tellProblems tells what the controller lacks for the Fleet's receivers, each once as long as it is so.
func (n *Notifier) tellProblems(found []string) {
	present := make(map[string]bool, len(found))
	for _, problem := range found {
		present[problem] = true
		if !n.problems[problem] {
			n.controller.Report(reconciler.Note{Type: reconciler.Warning, Reason: reconciler.NotificationFailed, Message: problem})
		}
	}
	n.problems = present
}
