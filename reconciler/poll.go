package reconciler

import (
	"context"
	"errors"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/sources"
)

// poll is the outcome of asking the source once.
type poll struct {
	// snapshot is what is known now; with err, the one of an earlier run or nil.
	snapshot *sources.Snapshot
	err      error
	took     time.Duration
}

// poller asks the source again and again, and knows nothing else.
type poller struct {
	r       *Reconciler
	backoff backoff.Backoff
	// last is what an earlier run has fetched, until the first poll has succeeded or failed.
	last *sources.Snapshot
	// wanted is the Fleet's interval; 0 when it says nothing.
	wanted time.Duration
}

func newPoller(r *Reconciler) *poller {
	return &poller{r: r, backoff: backoff.Backoff{Min: time.Second, Max: time.Minute, Rand: r.config.Rand}}
}

// run polls at once, then after each interval, and whenever it is nudged, until ctx ends.
func (p *poller) run(ctx context.Context, out chan<- poll) {
	if source, ok := p.r.source.(LastSource); ok {
		p.last, _ = source.Last(ctx) // a first start has nothing; the poll tells what is wrong
		if p.last != nil {
			p.r.earlier.Store(&p.last.Revision)
		}
	}
	for {
		result := p.poll(ctx)
		if ctx.Err() != nil {
			return
		}
		select {
		case out <- result:
		case <-ctx.Done():
			return
		}
		timer := p.r.config.Clock.NewTimer(p.wait(result.err))
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-p.r.nudges:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func (p *poller) poll(ctx context.Context) poll {
	timeout := p.r.config.PollTimeout
	if p.last != nil {
		timeout = min(timeout, firstPoll)
	}
	start := p.r.config.Clock.Now()
	asking, cancel := context.WithTimeout(ctx, timeout)
	snapshot, err := p.r.source.Poll(asking)
	cancel()
	result := poll{snapshot: snapshot, err: err, took: p.r.config.Clock.Now().Sub(start)}
	if err != nil {
		result.snapshot = p.last
	}
	p.last = nil
	if result.snapshot != nil {
		p.wanted = fleetInterval(result.snapshot)
	}
	return result
}

// wait returns how long to wait before the next poll.
func (p *poller) wait(err error) time.Duration {
	interval := p.interval()
	if err != nil && !errors.Is(err, sources.ErrUntrusted) { // which was read, and waits for another push
		p.backoff.Max = max(time.Minute, interval)
		return p.backoff.Next()
	}
	p.backoff.Reset()
	// A tenth, by chance, so that many controllers do not poll in step.
	return time.Duration(float64(interval) * (1 - 0.1*p.r.config.Rand()))
}

// interval is the configuration's, else the Fleet's, else the default.
func (p *poller) interval() time.Duration {
	if p.r.config.Interval > 0 {
		return p.r.config.Interval
	}
	if p.wanted > 0 {
		return p.wanted
	}
	return DefaultInterval
}

func fleetInterval(snapshot *sources.Snapshot) time.Duration {
	for _, file := range snapshot.Files {
		if file.Fleet != nil {
			return time.Duration(file.Fleet.Spec.Interval)
		}
	}
	return 0
}
