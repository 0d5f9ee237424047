package backoff

import "time"

// Ticker paces a loop: it fires at once when it is made, and again some time after each round was reported with
// Done: after the interval, spread by jitter so that many controllers do not poll in step, or after a backoff when
// the round failed. It has no goroutine. One goroutine selects on C and calls Done.
//
//	ticker := backoff.NewTicker(time.Minute)
//	defer ticker.Stop()
//	for {
//		select {
//		case <-ctx.Done():
//			return
//		case <-ticker.C():
//			ticker.Done(round(ctx))
//		}
//	}
type Ticker struct {
	interval time.Duration
	jitter   float64
	random   func() float64
	backoff  Backoff
	clock    Clock
	timer    Timer
	next     time.Time
}

// TickerOption adjusts a Ticker.
type TickerOption func(*Ticker)

// WithJitter spreads the interval: up to this share of it, in [0,1], is taken away by chance. The default is 0.1.
func WithJitter(share float64) TickerOption { return func(t *Ticker) { t.jitter = share } }

// WithBackoff replaces the backoff after failures. The default goes from one second (or the interval, when that is
// shorter) to five minutes (or the interval, when that is longer).
func WithBackoff(b Backoff) TickerOption { return func(t *Ticker) { t.backoff = b } }

// WithClock replaces the clock.
func WithClock(c Clock) TickerOption { return func(t *Ticker) { t.clock = c } }

// WithRand replaces the source of randomness: numbers in [0,1).
func WithRand(random func() float64) TickerOption { return func(t *Ticker) { t.random = random } }

// NewTicker returns a Ticker that fires at once and then every interval (at least a millisecond).
func NewTicker(interval time.Duration, opts ...TickerOption) *Ticker {
	interval = max(interval, time.Millisecond)
	t := &Ticker{
		interval: interval,
		jitter:   0.1,
		clock:    SystemClock{},
		backoff:  Backoff{Min: min(time.Second, interval), Max: max(5*time.Minute, interval)},
	}
	for _, opt := range opts {
		opt(t)
	}
	if t.backoff.Rand == nil {
		t.backoff.Rand = t.random
	}
	t.arm(0)
	return t
}

// C fires when the next round is due.
func (t *Ticker) C() <-chan time.Time { return t.timer.C() }

// Done reports the round that C started and arms the next one; it returns how long that is away.
func (t *Ticker) Done(err error) time.Duration {
	var wait time.Duration
	if err != nil {
		wait = t.backoff.Next()
	} else {
		t.backoff.Reset()
		wait = spread(float64(t.interval), t.jitter, t.random)
	}
	t.arm(wait)
	return wait
}

// Now makes the next round due at once, as when a webhook says that the source has changed.
func (t *Ticker) Now() { t.arm(0) }

// Next returns when the next round is due.
func (t *Ticker) Next() time.Time { return t.next }

// Failures returns how many rounds in a row have failed.
func (t *Ticker) Failures() int { return t.backoff.Failures() }

// Stop releases the timer; C does not fire any more.
func (t *Ticker) Stop() { t.timer.Stop() }

func (t *Ticker) arm(wait time.Duration) {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.next = t.clock.Now().Add(wait)
	t.timer = t.clock.NewTimer(wait)
}
