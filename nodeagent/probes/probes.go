// Package probes asks guests whether they live and are ready, as KubeVirt's livenessProbe and readinessProbe say and with
// the meaning that Kubernetes gives them: after an initial delay a check runs each period, and so many results in a row
// change the verdict. The package only tells the verdict: what follows from it is the caller's.
package probes

import (
	"context"
	"time"

	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Kubernetes' defaults.
const (
	defaultPeriod    = 10 * time.Second
	defaultTimeout   = time.Second
	defaultSuccesses = 1
	defaultFailures  = 3
)

// Timing says when a probe's check runs and how many results make a verdict.
type Timing struct {
	InitialDelay, Period, Timeout time.Duration
	// Successes and Failures are how many in a row make a verdict.
	Successes, Failures int
}

// TimingOf returns the timing of a probe with Kubernetes' defaults filled in.
func TimingOf(probe *kubevirtv1.Probe) Timing {
	seconds := func(value int32, otherwise time.Duration) time.Duration {
		if value < 1 {
			return otherwise
		}
		return time.Duration(value) * time.Second
	}
	count := func(value int32, otherwise int) int {
		if value < 1 {
			return otherwise
		}
		return int(value)
	}
	return Timing{
		InitialDelay: seconds(probe.InitialDelaySeconds, 0), Period: seconds(probe.PeriodSeconds, defaultPeriod),
		Timeout: seconds(probe.TimeoutSeconds, defaultTimeout), Successes: count(probe.SuccessThreshold, defaultSuccesses),
		Failures: count(probe.FailureThreshold, defaultFailures),
	}
}

// Result is what one check found.
type Result string

// The results of a check, and the verdicts of a probe.
const (
	Success Result = "success"
	Failure Result = "failure"
	// Unknown says that the check could not be made, which proves nothing about the guest.
	Unknown Result = "unknown"
)

// Check asks the guest once; message says why it did not succeed.
type Check func(ctx context.Context) (result Result, message string)

// Verdict is what a probe thinks of its guest.
type Verdict struct {
	Result  Result
	Message string
}

// Clock is time, as far as probes need it.
type Clock interface {
	// After sends once after a duration.
	After(d time.Duration) <-chan time.Time
}

// SystemClock is the real time.
type SystemClock struct{}

// After implements Clock.
func (SystemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Run probes until ctx ends. The verdict is initial until the checks change it: Kubernetes takes a guest for alive and not
// for ready. report is called with each verdict that differs from the one before, from this goroutine.
func Run(ctx context.Context, clock Clock, timing Timing, check Check, initial Result, report func(Verdict)) {
	p := prober{verdict: Verdict{Result: initial}, timing: timing, report: report}
	if timing.InitialDelay > 0 && !wait(ctx, clock, timing.InitialDelay) {
		return
	}
	for {
		attempt, cancel := context.WithTimeout(ctx, timing.Timeout)
		result, message := check(attempt)
		cancel()
		if ctx.Err() != nil {
			return // a check that ended with its guest says nothing about it
		}
		p.take(result, message)
		if !wait(ctx, clock, timing.Period) {
			return
		}
	}
}

// wait reports whether the time has passed before ctx ended.
func wait(ctx context.Context, clock Clock, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-clock.After(d):
		return true
	}
}

// prober counts results.
type prober struct {
	timing  Timing
	verdict Verdict
	last    Result
	row     int // how many results like the last there were in a row
	report  func(Verdict)
}

// take adds a result. What is not known leaves no row and is told at once; the verdict that it replaces has to be earned
// again.
func (p *prober) take(result Result, message string) {
	if result != p.last {
		p.last, p.row = result, 0
	}
	p.row++
	enough := 1
	switch result {
	case Success:
		enough = p.timing.Successes
	case Failure:
		enough = p.timing.Failures
	case Unknown:
	}
	if p.row < enough {
		return
	}
	if p.row > enough && result == Failure && p.verdict.Result == Failure {
		return // why it fails may read differently each time; once is enough
	}
	if next := (Verdict{Result: result, Message: message}); next != p.verdict {
		p.verdict = next
		p.report(next)
	}
}
