package backoff_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/sources/backoff"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fixed(x float64) func() float64 { return func() float64 { return x } }

func TestBackoff(t *testing.T) {
	s := time.Second
	tests := []struct {
		name, reason string
		backoff      backoff.Backoff
		want         []time.Duration
	}{
		{"zero value", "usable as it is", backoff.Backoff{Rand: fixed(0)}, []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s}},
		{"half the jitter", "chance takes away a quarter of each", backoff.Backoff{Rand: fixed(0.5)}, []time.Duration{s * 3 / 4, s * 3 / 2, 3 * s}},
		{"factor", "slower growth", backoff.Backoff{Min: s, Max: 3 * s, Factor: 1.5, Rand: fixed(0)}, []time.Duration{s, s * 3 / 2, s * 9 / 4, 3 * s}},
		{"no jitter", "negative means none", backoff.Backoff{Jitter: -1, Rand: fixed(0.9)}, []time.Duration{s, 2 * s}},
		{"full jitter", "it never comes near zero", backoff.Backoff{Jitter: 1, Rand: fixed(1)}, []time.Duration{s / 2, s / 2}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := test.backoff
			for range 2 {
				var got []time.Duration
				for range test.want {
					got = append(got, b.Next())
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("got %v, want %v", got, test.want)
				}
				if b.Failures() != len(test.want) {
					t.Errorf("%d failures", b.Failures())
				}
				b.Reset()
			}
		})
	}
}

func TestBackoffForEver(t *testing.T) {
	var b backoff.Backoff
	for range 5000 {
		if d := b.Next(); d < time.Second/2 || d > time.Minute {
			t.Fatalf("wait of %s", d)
		}
	}
}

// clock is a Clock whose timers fire when advance passes them.
type clock struct {
	now    time.Time
	timers []*timer
}

type timer struct {
	at time.Time
	c  chan time.Time
}

func (t *timer) C() <-chan time.Time { return t.c }
func (t *timer) Stop() bool          { t.at = time.Time{}; return true }

func (c *clock) Now() time.Time { return c.now }

func (c *clock) NewTimer(d time.Duration) backoff.Timer {
	t := &timer{c.now.Add(d), make(chan time.Time, 1)}
	c.timers = append(c.timers, t)
	c.advance(0)
	return t
}

func (c *clock) advance(d time.Duration) {
	c.now = c.now.Add(d)
	for _, t := range c.timers {
		if !t.at.IsZero() && !t.at.After(c.now) {
			t.at = time.Time{}
			t.c <- c.now
		}
	}
}

func due(ticker *backoff.Ticker) bool {
	select {
	case <-ticker.C():
		return true
	default:
		return false
	}
}

func TestTicker(t *testing.T) {
	c := &clock{now: time.Unix(1_700_000_000, 0)}
	ticker := backoff.NewTicker(time.Minute, backoff.WithClock(c), backoff.WithRand(fixed(0.5)), backoff.WithJitter(0.2))
	defer ticker.Stop()
	if !due(ticker) {
		t.Fatal("the first round is not due at once")
	}
	failed := errors.New("failed")
	for i, step := range []struct {
		err  error
		want time.Duration
	}{
		{nil, 54 * time.Second},
		{failed, 750 * time.Millisecond},
		{failed, 1500 * time.Millisecond},
		{failed, 3 * time.Second},
		{nil, 54 * time.Second},
		{failed, 750 * time.Millisecond},
	} {
		if got := ticker.Done(step.err); got != step.want {
			t.Errorf("step %d: next round in %s, want %s", i, got, step.want)
		}
		if got := ticker.Next().Sub(c.now); got != step.want {
			t.Errorf("step %d: Next is in %s", i, got)
		}
		c.advance(step.want - 1)
		if due(ticker) {
			t.Errorf("step %d: too early", i)
		}
		c.advance(1)
		if !due(ticker) {
			t.Errorf("step %d: not due", i)
		}
	}
	ticker.Done(nil)
	ticker.Now()
	if !due(ticker) || ticker.Failures() != 0 {
		t.Error("Now does not make it due")
	}
}

func TestWait(t *testing.T) {
	if err := backoff.Wait(t.Context(), nil, time.Millisecond); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := backoff.Wait(ctx, nil, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
