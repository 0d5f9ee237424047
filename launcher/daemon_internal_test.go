package launcher

import (
	"testing"
	"time"
)

// A daemon that dies again and again is started less and less often, and one that had lived is started at once.
func TestDaemonDelay(t *testing.T) {
	start := time.Unix(1000, 0)
	d := daemon{started: start}
	last := time.Duration(0)
	for range 100 {
		delay := d.died(start.Add(time.Second))
		if delay < last || delay > longDelay {
			t.Fatalf("a delay of %s after one of %s", delay, last)
		}
		last = delay
	}
	if last != longDelay {
		t.Errorf("the delay grows to %s, want %s", last, longDelay)
	}
	if delay := d.died(start.Add(2 * livedLong)); delay != firstDelay {
		t.Errorf("a daemon that had lived is started after %s, want %s", delay, firstDelay)
	}
}
