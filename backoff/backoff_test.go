package backoff_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/backoff"
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
