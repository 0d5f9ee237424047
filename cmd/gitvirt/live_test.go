package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/schemas"
)

// screen is a terminal: it keeps what is to be seen on it.
type screen struct {
	lines []string
	width int
	wraps bool
}

func (s *screen) Write(text []byte) (int, error) {
	rest := string(text)
	for rest != "" {
		var up int
		if n, err := fmt.Sscanf(rest, "\x1b[%dA", &up); n == 1 && err == nil {
			s.lines = s.lines[:len(s.lines)-up]
			_, rest, _ = strings.Cut(rest, "\r\x1b[J")
			continue
		}
		var line string
		line, rest, _ = strings.Cut(rest, "\n")
		s.wraps = s.wraps || len([]rune(line)) >= s.width
		s.lines = append(s.lines, line)
	}
	return len(text), nil
}

func TestLiveTeller(t *testing.T) {
	now := time.Unix(1000, 0)
	width, height := 80, 24
	s := &screen{width: 80}
	var errs strings.Builder
	live := &liveTeller{out: s, err: &errs, now: func() time.Time { return now }, size: func() (int, int) { return width, height }, stop: func() {}}
	var steps []*plan.Step
	for i := range 5 {
		steps = append(steps, &plan.Step{Address: schemas.Address{Kind: "VirtualMachine", Namespace: "default", Name: fmt.Sprintf("vm-%d", i)}, Action: plan.ActionCreate})
	}
	check := func(what string, want ...string) {
		t.Helper()
		if got := strings.Join(s.lines, "\n"); got != strings.Join(want, "\n") {
			t.Errorf("%s: the screen shows\n%s\nwant\n%s", what, got, strings.Join(want, "\n"))
		}
	}
	event := func(i int, progress string) { live.report(apply.Event{Step: steps[i], Progress: progress}) }
	event(0, "")
	event(1, "")
	now = now.Add(67 * time.Second)
	event(1, "waiting for the guest agent")
	check("two under way", "| default/vm-0: create 1m07s", "| default/vm-1: create 1m07s, waiting for the guest agent")
	live.tick()
	check("time passes", "/ default/vm-0: create 1m07s", "/ default/vm-1: create 1m07s, waiting for the guest agent")
	live.report(apply.Event{Step: steps[0], Done: true})
	check("one is over", "default/vm-0: create done after 1m7s", "/ default/vm-1: create 1m07s, waiting for the guest agent")
	width, s.width = 20, 20
	live.tick()
	check("a narrow terminal", "default/vm-0: create done after 1m7s", "- default/vm-1: ...")
	if s.wraps {
		t.Error("a line wraps")
	}
	width, s.width, height = 200, 200, 6
	for i := 2; i < 5; i++ {
		event(i, "")
	}
	check("more than fit", "default/vm-0: create done after 1m7s", "- default/vm-1: create 1m07s, waiting for the guest agent", "- default/vm-2: create 0s", "  ... and 2 more")
	live.interrupted()
	check("interrupted", "default/vm-0: create done after 1m7s", "- default/vm-1: create 1m07s, waiting for the guest agent", "- default/vm-2: create 0s", "  ... and 2 more", interruptedText)
	sick := apply.Result{Step: *steps[1], Err: fmt.Errorf("create VirtualMachine/default/vm-1: %w", apply.NotReadyError{Reason: "the guest agent does not answer"})}
	live.report(apply.Event{Step: steps[1], Done: true, Err: sick.Err, Console: []string{"Kernel panic", "end"}})
	waits := apply.Result{Step: *steps[4], Err: fmt.Errorf("create: %w: interrupted", apply.ErrNotBegun)}
	live.report(apply.Event{Step: steps[4], Done: true, Err: waits.Err})
	left := apply.Result{Step: *steps[2], Err: apply.ErrLeft}
	live.report(apply.Event{Step: steps[2], Done: true, Err: left.Err})
	tally := newTally([]apply.Result{{Step: *steps[0]}, sick, left, waits}, true)
	live.end(tally)
	check("at the end", "default/vm-0: create done after 1m7s", "default/vm-1: create FAILED", "  its console said last:", "  | Kernel panic", "  | end",
		"default/vm-2: create left under way", interruptedText, "default/vm-4: create not begun")
	if want := "Error: create VirtualMachine/default/vm-1: the guest is not ready: the guest agent does not answer\n"; errs.String() != want {
		t.Errorf("errors: %q, want %q", errs.String(), want)
	}
	err := tally.err()
	want := "interrupted of 4 steps: 1 done, 1 failed, 1 left under way, 1 not begun; what was carried out stays, run again to go on"
	if !errors.Is(err, errInterrupted) || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestClip(t *testing.T) {
	for _, test := range []struct {
		text  string
		width int
		want  string
	}{{"abcdef", 80, "abcdef"}, {"abcdef", 7, "abcdef"}, {"abcdef", 6, "ab..."}, {"éééééé", 6, "éé..."}, {"abcdef", 3, "ab"}, {"abcdef", 1, ""}, {"abcdef", 0, "abcdef"}} {
		if got := clip(test.text, test.width); got != test.want {
			t.Errorf("clip(%q, %d) is %q, want %q", test.text, test.width, got, test.want)
		}
	}
}
