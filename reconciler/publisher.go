package reconciler

import (
	"bytes"
	"context"
	"maps"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// The publisher's pace.
const (
	// gather is how long the publisher waits for more to happen before it writes.
	gather = 200 * time.Millisecond
	// unknownGrace is how long a host may be unknown until that is written: an agent that is restarted is no news.
	unknownGrace = 10 * time.Second
	// publishTimeout is for one push with all its retries against others who push to the branch.
	publishTimeout = 2 * time.Minute
	// disksTimeout is for asking the host for the disks that outlived their machine.
	disksTimeout = 5 * time.Second
)

// publisher writes the status to git. It follows the loop's views and never holds the loop up: views that come while it
// pushes are one push afterwards.
type publisher struct {
	r       *Reconciler
	backoff backoff.Backoff

	name   string // the branch
	branch StatusBranch
	// published is what the branch holds; nil until it was read.
	published map[string][]byte
	kept      []status.KeptDisk
	// pending is when the first view came that was not looked at; zero when there is none.
	pending time.Time
	// notBefore is the end of a pause, hostBefore that of the patience with a host that cannot be read.
	notBefore    time.Time
	hostBefore   time.Time
	unknownSince time.Time
}

func newPublisher(r *Reconciler) *publisher {
	return &publisher{r: r, backoff: backoff.Backoff{Min: time.Second, Max: 2 * time.Minute, Rand: r.config.Rand}}
}

func (p *publisher) now() time.Time { return p.r.config.Clock.Now() }

// run follows the views until ctx ends.
func (p *publisher) run(ctx context.Context) {
	for {
		var timer backoff.Timer
		var due <-chan time.Time
		if at := p.due(); !at.IsZero() {
			timer = p.r.config.Clock.NewTimer(at.Sub(p.now()))
			due = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-p.r.views:
			if p.pending.IsZero() {
				p.pending = p.now()
			}
			p.watchHost()
		case <-due:
			p.write(ctx)
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// due is when to write next; zero when there is nothing to write.
func (p *publisher) due() time.Time {
	if p.pending.IsZero() {
		return time.Time{}
	}
	return latest(p.pending.Add(gather), p.notBefore, p.hostBefore)
}

func latest(at time.Time, others ...time.Time) time.Time {
	for _, other := range others {
		if other.After(at) {
			at = other
		}
	}
	return at
}

// write brings the branch up to the present view, or says when to try again.
func (p *publisher) write(ctx context.Context) {
	view := p.r.View()
	if view.Plan == nil {
		p.pending = time.Time{}
		return
	}
	if !p.open(ctx, view) {
		p.remember(view)
		return
	}
	fleet := p.fleet(ctx, view)
	files := fleet.Files()
	if maps.EqualFunc(files, p.published, bytes.Equal) {
		p.settled()
		return
	}
	p.r.unpublished.CompareAndSwap(0, view.Time.UnixNano())
	pushing, cancel := context.WithTimeout(ctx, publishTimeout)
	changed, err := p.branch.Publish(pushing, files, fleet.Subject())
	cancel()
	if err != nil {
		p.failed(ctx, "publishing the status to "+p.name, err)
		return
	}
	p.published = files
	p.settled()
	p.notBefore = p.now().Add(p.r.config.PublishInterval)
	result := "unchanged"
	if changed {
		result = "ok"
		p.r.event(Normal, StatusPublished, schemas.Address{}, view.Revision(), fleet.Subject())
	}
	p.r.metrics.statusPushes.WithLabelValues(result).Inc()
}

// watchHost waits a little when the host cannot be read: mostly that is no news.
func (p *publisher) watchHost() {
	view := p.r.View()
	if view.Plan == nil || view.Plan.Unknown == "" {
		p.unknownSince, p.hostBefore = time.Time{}, time.Time{}
		return
	}
	if p.unknownSince.IsZero() {
		p.unknownSince = p.now()
		p.hostBefore = p.unknownSince.Add(unknownGrace)
	}
}

// settled notes that the branch holds what it should.
func (p *publisher) settled() {
	p.pending = time.Time{}
	p.backoff.Reset()
	p.r.unpublished.Store(0)
}

func (p *publisher) failed(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil {
		return
	}
	p.notBefore = p.now().Add(p.backoff.Next())
	p.r.unpublished.CompareAndSwap(0, p.now().UnixNano())
	p.r.metrics.statusPushes.WithLabelValues("error").Inc()
	p.r.event(Warning, StatusPublishFailed, schemas.Address{}, "", doing+": "+problemOf(err))
}

// open finds the branch that the Fleet names and reads what it holds, once. It returns false when nothing is to be
// written, or not yet.
func (p *publisher) open(ctx context.Context, view *View) bool {
	wanted := view.Desired.Fleet.Spec.Status
	if p.r.config.Status == nil || !wanted.IsEnabled() {
		p.settled()
		p.name, p.branch, p.published = "", nil, nil
		return false
	}
	if wanted.Branch != p.name {
		p.name, p.branch, p.published = wanted.Branch, p.r.config.Status(wanted.Branch), nil
	}
	if p.published != nil {
		return true
	}
	reading, cancel := context.WithTimeout(ctx, publishTimeout)
	files, err := p.branch.Read(reading)
	cancel()
	if err != nil {
		p.failed(ctx, "reading the status branch "+p.name, err)
		return false
	}
	p.r.history.Store(p.r.history.Load().Or(status.ReadHistory(files)))
	p.published = make(map[string][]byte, len(files))
	for path, content := range files {
		if status.Owned(path) {
			p.published[path] = content
		}
	}
	return true
}

// remember keeps the times of what a view shows.
func (p *publisher) remember(view *View) []status.VM {
	vms := p.r.history.Load().Merge(view.Statuses(), view.Time)
	p.r.history.Store(status.NewHistory(vms))
	return vms
}

// fleet derives what is written.
func (p *publisher) fleet(ctx context.Context, view *View) *status.Fleet {
	if lister, ok := p.r.platform.(DiskLister); ok && view.Plan.Unknown == "" {
		asking, cancel := context.WithTimeout(ctx, disksTimeout)
		if kept, err := lister.KeptDisks(asking); err == nil { // else the ones of before: unknown is not absent
			p.kept = kept
		}
		cancel()
	}
	fleet := &status.Fleet{
		Name: view.Plan.Fleet, Revision: view.Revision(), VMs: p.remember(view), Unknown: view.Plan.Unknown, Refused: view.Refused,
		Broken: view.Desired.Diagnostics, Unmet: p.r.config.Unmet(view.Desired.Fleet), KeptDisks: p.kept, Parts: view.Snapshot.Parts,
	}
	if approvable(view.Plan) {
		var encoded bytes.Buffer
		if err := view.Plan.JSON(&encoded, "  "); err != nil {
			p.r.event(Warning, StatusPublishFailed, schemas.Address{}, view.Revision(), "writing the plan that waits: "+problemOf(err))
		} else {
			fleet.PlanID, fleet.Plan = view.Plan.ID, encoded.Bytes()
		}
	}
	return fleet
}
