package forgetest

import (
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/backoff"
)

// Clock is a backoff.Clock whose timers fire at once: whoever waits for a second finds that it has passed. It begins with the real time.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a Clock.
func NewClock() *Clock { return &Clock{now: time.Now()} }

// Now implements backoff.Clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance lets time pass.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// NewTimer implements backoff.Clock.
func (c *Clock) NewTimer(d time.Duration) backoff.Timer {
	c.Advance(d)
	fired := make(timer, 1)
	fired <- c.Now()
	return fired
}

type timer chan time.Time

func (t timer) C() <-chan time.Time { return t }
func (t timer) Stop() bool          { return false }
