package reconciler

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

var webAddress = schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: "web"}

func gateStep(action plan.Action, power plan.PowerChange, hash, fingerprint string) *plan.Step {
	return &plan.Step{Address: webAddress, Action: action, Power: power, Precondition: fingerprint, VM: &schemas.VM{Address: webAddress, Hash: hash}}
}

// TestGateRemembers says for each outcome of a step what may be done next.
func TestGateRemembers(t *testing.T) {
	start := time.Unix(1000, 0)
	tests := []struct {
		reason      string
		err         error
		hash        string // of the next step
		fingerprint string
		after       time.Duration
		admit       bool
	}{
		{"a success settles until the host shows it", nil, "h1", "f1", time.Second, false},
		{"what the host shows goes on", nil, "h1", "f2", 0, true},
		{"nobody waits for ever", nil, "h1", "f1", settleTime, true},
		{"a failure waits", apply.ErrRetry, "h1", "f1", 500 * time.Millisecond, false},
		{"and is tried again", apply.ErrRetry, "h1", "f1", time.Second, true},
		{"a failure of an unknown kind waits as well", errors.New("x"), "h1", "f1", 500 * time.Millisecond, false},
		{"another wish is not what failed", apply.ErrRetry, "h2", "f1", 0, true},
		{"another state of the domain may be the failure's own work", apply.ErrRetry, "h1", "f2", 500 * time.Millisecond, false},
		{"what is stalled stays so", apply.ErrStalled, "h1", "f1", 9 * time.Minute, false},
		{"for ten minutes: somebody may have mended the host", apply.ErrStalled, "h1", "f1", 10 * time.Minute, true},
		{"until git changes", apply.ErrStalled, "h2", "f1", 0, true},
		{"or the domain", apply.ErrStalled, "h1", "f2", 0, true},
		{"a stale plan waits for a new picture", apply.ErrStale, "h1", "f1", 10 * time.Millisecond, false},
		{"which is carried out at once", apply.ErrStale, "h1", "f2", 0, true},
		{"even if nobody told of it", apply.ErrStale, "h1", "f1", 60 * time.Millisecond, true},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			g := newGate(func() float64 { return 0 })
			step := gateStep(plan.ActionUpdate, plan.PowerKeep, "h1", "f1")
			if !g.ask(step, nil, start).admit {
				t.Fatal("the first try is not let through")
			}
			g.begin(*step, nil, start)
			if g.ask(step, nil, start).admit {
				t.Fatal("two steps of a machine at a time")
			}
			err := test.err
			if err != nil {
				err = fmt.Errorf("update: %w", err)
			}
			g.end(step, err, start)
			next := gateStep(plan.ActionRestart, plan.PowerCycle, test.hash, test.fingerprint)
			answer := g.ask(next, nil, start.Add(test.after))
			if answer.admit != test.admit {
				t.Errorf("admit is %t", answer.admit)
			}
			if !answer.admit && answer.until.IsZero() {
				t.Error("it waits for ever")
			}
		})
	}
}

// TestGateNotConverging: a step that succeeds and is needed again at once is slowed down.
func TestGateNotConverging(t *testing.T) {
	g := newGate(func() float64 { return 0 })
	now := time.Unix(1000, 0)
	tries := 0
	for end := now.Add(time.Hour); now.Before(end); {
		step := gateStep(plan.ActionUpdate, plan.PowerKeep, "h1", fmt.Sprint(tries))
		answer := g.ask(step, nil, now)
		if !answer.admit {
			now = answer.until
			continue
		}
		tries++
		g.begin(*step, nil, now)
		g.end(step, nil, now)
	}
	if tries < 5 || tries > 30 {
		t.Errorf("tried %d times in an hour", tries)
	}
	if problem := g.state(keyFor(webAddress)).problem; problem == "" {
		t.Error("nobody is told")
	}
	g.confirm(g.state(keyFor(webAddress)))
	if !g.ask(gateStep(plan.ActionUpdate, plan.PowerKeep, "h1", "new"), nil, now).admit {
		t.Error("what was fine in between waits")
	}
}

func TestLaneOf(t *testing.T) {
	tests := []struct {
		step plan.Step
		want lane
	}{
		{plan.Step{Action: plan.ActionStart, Power: plan.PowerOn}, laneStart},
		{plan.Step{Action: plan.ActionCreate, Define: true, Power: plan.PowerOn}, laneDefine},
		{plan.Step{Action: plan.ActionUpdate, Define: true}, laneDefine},
		{plan.Step{Action: plan.ActionStop, Power: plan.PowerOff}, laneShutdown},
		{plan.Step{Action: plan.ActionRestart, Define: true, Power: plan.PowerCycle}, laneShutdown},
		{plan.Step{Action: plan.ActionReplace, Define: true}, laneShutdown},
		{plan.Step{Action: plan.ActionDestroy}, laneShutdown},
	}
	for _, test := range tests {
		if got := laneOf(&test.step); got != test.want {
			t.Errorf("%s/%s is in lane %d, want %d", test.step.Action, test.step.Power, got, test.want)
		}
	}
}

// TestGateRestarts: when a guest that is down may be started again.
func TestGateRestarts(t *testing.T) {
	start := time.Unix(1000, 0)
	k := keyFor(webAddress)
	tests := []struct {
		reason   string
		restarts int
		ran      time.Duration // from the last start until it went down
		byHand   bool          // somebody started it in between, and it went down again
		want     time.Duration
	}{
		{"the first time at once", 0, time.Second, false, 0},
		{"the third time as well", 2, time.Second, false, 0},
		{"then it waits", 3, time.Second, false, 10 * time.Second},
		{"longer", 4, time.Second, false, 20 * time.Second},
		{"and longer", 7, time.Second, false, 160 * time.Second},
		{"up to five minutes", 8, time.Second, false, 5 * time.Minute},
		{"and no longer", 1000, time.Second, false, 5 * time.Minute},
		{"one that ran for a while begins anew", 8, 5 * time.Minute, false, 0},
		{"almost is not enough", 8, 5*time.Minute - 1, false, 5 * time.Minute},
		{"one that somebody started waits from when it went down again", 4, time.Second, true, 20 * time.Second},
	}
	for _, test := range tests {
		t.Run(test.reason, func(t *testing.T) {
			g := newGate(func() float64 { return 0 })
			down := start.Add(test.ran)
			s := g.state(k)
			s.hash, s.restarts, s.startedAt = "h1", test.restarts, start
			have := &plan.Domain{Address: webAddress, State: plan.StateStopped, Ran: true, Stop: plan.StopCrashed}
			step := gateStep(plan.ActionStart, plan.PowerOn, "h1", "f1")
			if test.byHand {
				g.ask(step, have, down)
				g.running(k, down.Add(time.Second))
				down = down.Add(time.Minute)
			}
			answer := g.ask(step, have, down)
			if test.want == 0 {
				if !answer.admit {
					t.Fatalf("waits until %s", answer.until)
				}
				return
			}
			if answer.admit || answer.until.Sub(down) != test.want {
				t.Fatalf("admit is %t, waits for %s, want %s", answer.admit, answer.until.Sub(down), test.want)
			}
			if !g.ask(step, have, answer.until).admit {
				t.Error("the wait has no end")
			}
		})
	}
}
