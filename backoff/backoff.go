// Package backoff waits: the one backoff type of the project (exponential, with jitter), the one wait that a context can end, and a
// clock that tests can hold. It stands below every other package, so that loops of controllers and of agents wait alike.
//
// The clock and the source of randomness are injected, so tests of loops need no real time.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff grows from Min to Max, each wait Factor times the one before, less a random share of up to Jitter. The
// zero value is usable: 1 s to 1 min, doubling, jitter 0.5. It is not safe for concurrent use.
type Backoff struct {
	// Min and Max bound the wait.
	Min, Max time.Duration
	// Factor multiplies the wait after each failure; at most 1 means 2.
	Factor float64
	// Jitter is the largest share of the wait, in [0,1], that chance takes away; negative means none, 0 means 0.5.
	Jitter float64
	// Rand returns a number in [0,1); nil means math/rand/v2.
	Rand func() float64

	failures int
}

// Next counts a failure and returns how long to wait after it.
func (b *Backoff) Next() time.Duration {
	minimum, maximum, factor, jitter := b.Min, b.Max, b.Factor, b.Jitter
	if minimum <= 0 {
		minimum = time.Second
	}
	if maximum <= 0 {
		maximum = time.Minute
	}
	if factor <= 1 {
		factor = 2
	}
	if jitter == 0 {
		jitter = 0.5
	}
	wait := float64(minimum)
	for i := 0; i < b.failures && wait < float64(maximum); i++ {
		wait *= factor
	}
	b.failures++
	wait = min(wait, float64(maximum))
	return max(spread(wait, jitter, b.Rand), minimum/2)
}

// Reset forgets the failures: the next wait is Min again.
func (b *Backoff) Reset() { b.failures = 0 }

// Failures returns how many failures were counted since the last Reset.
func (b *Backoff) Failures() int { return b.failures }

// spread takes a random share of up to jitter away from wait.
func spread(wait, jitter float64, random func() float64) time.Duration {
	if random == nil {
		random = rand.Float64
	}
	jitter = min(max(jitter, 0), 1)
	return time.Duration(wait * (1 - jitter*random()))
}

// Timer is what a Clock hands out: it fires once on C.
type Timer interface {
	C() <-chan time.Time
	Stop() bool
}

// Clock tells the time and makes timers.
type Clock interface {
	Now() time.Time
	NewTimer(d time.Duration) Timer
}

// SystemClock is the real clock.
type SystemClock struct{}

// Now returns the current time.
func (SystemClock) Now() time.Time { return time.Now() }

// NewTimer returns a timer that fires after d.
func (SystemClock) NewTimer(d time.Duration) Timer { return systemTimer{time.NewTimer(d)} }

type systemTimer struct{ *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.Timer.C }

// Wait waits for d by the clock (nil means SystemClock), or until ctx ends and then returns its error.
func Wait(ctx context.Context, clock Clock, d time.Duration) error {
	if clock == nil {
		clock = SystemClock{}
	}
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}
