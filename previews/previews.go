// Package previews shows on pull requests what they would change. It stands beside the reconciler's loop: it takes what the loop saw, merges the
// head of each pull request into the base in memory, plans that against what lives, and keeps one comment and one commit status on the
// forge as the plan is. It takes no lock, carries nothing out, and what the forge does or fails to do never reaches the loop.
//
// What it knows of the past is on the forge: a comment says in a hidden line what it was made of. So a restart edits nothing when nothing
// has changed. Only our own comments count. What others write is nothing but text, unless the Fleet of the base lets people command by
// comments: then the forge is asked what they may do, and what became of it stands in our comment.
package previews

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/sources"
)

// World says what a round of the loop saw; *reconciler.Reconciler is one.
type World interface {
	// View is never nil.
	View() *reconciler.View
	// Report records what happened.
	Report(note reconciler.Note)
}

// Source is the repository; *git.Source is one.
type Source interface {
	// Heads says where the branch and other references are, and fetches them.
	Heads(ctx context.Context, names []string) (*sources.Heads, error)
	merger
}

// The reasons of the events.
const (
	ForgeFailed    reconciler.Reason = "ForgeFailed"
	ForgeRecovered reconciler.Reason = "ForgeRecovered"
	CommandDone    reconciler.Reason = "CommandDone"
	CommandRefused reconciler.Reason = "CommandRefused"
	CommandFailed  reconciler.Reason = "CommandFailed" // it is tried again
)

// Config adjusts Previews. The zero value is usable.
type Config struct {
	// ExternalURL is where people reach the controller; plans are linked there. Empty links nothing.
	ExternalURL string
	// Interval is the time between two polls of the forge; 0 means reconciler.DefaultInterval.
	Interval time.Duration
	// Settle is the shortest time between two looks at one pull request because the world moved; 0 means half a minute.
	Settle time.Duration
	// Parallel is how many pull requests are looked at at a time; 0 means 2.
	Parallel int
	// Approvals returns the branch of a name that approvals are recorded on; nil means that nobody can approve anything by a comment.
	Approvals func(branch string) ApprovalBranch
	// Registry gets the metrics; nil means nobody reads them.
	Registry prometheus.Registerer
	// Clock and Rand (numbers in [0,1)) are for tests; nil means the real ones.
	Clock backoff.Clock
	Rand  func() float64
}

func (c Config) withDefaults() (Config, error) {
	if c.Interval < 0 || c.Settle < 0 || c.Parallel < 0 {
		return c, errors.New("previews: Interval, Settle and Parallel must not be negative")
	}
	if strings.ContainsAny(c.ExternalURL, " \t\r\n()<>\"'`\\") {
		return c, errors.New("previews: the external URL holds a character that cannot stand in a link")
	}
	c.ExternalURL = strings.TrimRight(c.ExternalURL, "/")
	if c.Interval == 0 {
		c.Interval = reconciler.DefaultInterval
	}
	if c.Settle == 0 {
		c.Settle = 30 * time.Second
	}
	if c.Parallel == 0 {
		c.Parallel = 2
	}
	if c.Clock == nil {
		c.Clock = backoff.SystemClock{}
	}
	if c.Rand == nil {
		c.Rand = rand.Float64
	}
	return c, nil
}

// Previews keeps the pull requests of one repository right. Its methods are safe for concurrent use; Run is called once.
type Previews struct {
	forge   forges.Forge
	source  Source
	world   World
	config  Config
	metrics *metrics
	nudges  chan struct{}
	// asking lets one full plan be made at a time for people who ask.
	asking chan struct{}

	mu sync.Mutex
	// pulls is what Run knows, for those who ask.
	pulls   map[int]Status
	problem string
}

// Status is what is known of a pull request.
type Status struct {
	Number int    `json:"number"`
	Title  string `json:"title"`
	Author string `json:"author"`
	Fork   bool   `json:"fork,omitempty"`
	// Branch is what it is to be merged into, Head the commit that is, Base where the branch was when the plan was made.
	Branch string `json:"branch"`
	Head   string `json:"head"`
	Base   string `json:"base,omitempty"`
	URL    string `json:"url,omitempty"`
	// State is that of the commit status; empty before it is known.
	State forges.StatusState `json:"state,omitempty"`
	// Summary is the line that the commit status says.
	Summary string `json:"summary,omitempty"`
	// Problem says why the comment or the status could not be written.
	Problem string `json:"problem,omitempty"`
}

// New returns Previews that do nothing until Run.
func New(forge forges.Forge, source Source, world World, config Config) (*Previews, error) {
	if forge == nil || source == nil || world == nil {
		return nil, errors.New("previews: a forge, a source and a world are needed")
	}
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Previews{
		forge: forge, source: source, world: world, config: config, nudges: make(chan struct{}, 1), asking: make(chan struct{}, 1), pulls: map[int]Status{},
	}
	p.metrics, err = newMetrics(p, config.Registry)
	return p, err
}

// Nudge polls the forge now, as when a webhook says that something has changed.
func (p *Previews) Nudge() {
	select {
	case p.nudges <- struct{}{}:
	default:
	}
}

// Problem says why the forge could not be read last; empty when it could.
func (p *Previews) Problem() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.problem
}

// Pulls returns what is known of the open pull requests, by number.
func (p *Previews) Pulls() map[int]Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	pulls := make(map[int]Status, len(p.pulls))
	for number, status := range p.pulls {
		pulls[number] = status
	}
	return pulls
}

// ErrNoPlan says that a pull request has no plan: it is not open, not ours to plan, or nothing is known yet.
var ErrNoPlan = errors.New("there is no plan for it")

// Full makes the plan of an open pull request and returns all of it, as text for people.
func (p *Previews) Full(ctx context.Context, number int) (string, error) {
	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	p.mu.Lock()
	pull, known := p.pulls[number]
	p.mu.Unlock()
	w := newWorld(p.world.View(), p.config.Clock.Now())
	if !known || pull.Base == "" || !w.known() {
		return "", ErrNoPlan
	}
	r, err := w.plan(ctx, p.source, pull.Head, pull.Fork)
	if err != nil {
		return "", err
	}
	r.branch = pull.Branch
	if r.plan == nil {
		return r.text(p.forge.CommentLimit()), nil
	}
	var out strings.Builder
	err = r.plan.Text(&out, plan.TextOptions{Node: r.node})
	return out.String(), err
}
