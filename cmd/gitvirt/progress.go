package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

// The words for an interrupt.
const (
	interruptedText = "Interrupted: no step begins any more, those under way are waited for. Interrupt again to leave them."
	leftText        = "left under way"
)

// vmName is a step's machine for people.
func vmName(step *plan.Step) string { return step.Address.Namespace + "/" + step.Address.Name }

// endOf is how a step ended, in a line; empty for one that never began, which is told at the end.
func endOf(event *apply.Event, took time.Duration) string {
	name := vmName(event.Step)
	switch {
	case event.Err == nil:
		return fmt.Sprintf("%s: %s done after %s", name, event.Step.Action, took.Round(10*time.Millisecond))
	case errors.Is(event.Err, apply.ErrNotBegun):
		return ""
	case errors.Is(event.Err, apply.ErrLeft):
		return fmt.Sprintf("%s: %s %s", name, event.Step.Action, leftText)
	}
	return fmt.Sprintf("%s: %s FAILED", name, event.Step.Action)
}

// tellEnd says which steps failed and which did not begin.
func tellEnd(out, errs io.Writer, t *tally) {
	for _, result := range t.results {
		switch {
		case result.Err == nil || errors.Is(result.Err, apply.ErrLeft):
		case errors.Is(result.Err, apply.ErrNotBegun) && t.interrupted:
			fmt.Fprintf(out, "%s: %s not begun\n", vmName(&result.Step), result.Step.Action)
		default:
			fmt.Fprintln(errs, "Error:", result.Err)
		}
	}
	if t.done == len(t.results) {
		fmt.Fprintf(out, "Applied: %d step%s.\n", t.done, plural(t.done))
	}
}

// plainTeller writes lines that stay.
type plainTeller struct {
	mu    sync.Mutex
	out   io.Writer
	err   io.Writer
	began map[*plan.Step]time.Time
	first bool
}

func (t *plainTeller) report(event apply.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.first {
		t.first = true
		fmt.Fprintln(t.out)
	}
	switch {
	case event.Done:
		if text := endOf(&event, time.Since(t.began[event.Step])); text != "" {
			fmt.Fprintln(t.out, text)
		}
	case event.Progress != "":
		fmt.Fprintf(t.out, "%s: %s\n", vmName(event.Step), event.Progress)
	default:
		t.began[event.Step] = time.Now()
	}
}

func (t *plainTeller) interrupted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(t.out, interruptedText)
}

func (t *plainTeller) end(tally *tally) { tellEnd(t.out, t.err, tally) }

// The types of the lines of "apply -o json".
const (
	linePlan        = "plan"
	lineDoneAlready = "done_already"
	lineStart       = "step_start"
	lineProgress    = "progress"
	lineComplete    = "step_complete"
	lineFailed      = "step_failed"
	lineNotBegun    = "step_not_begun"
	lineInterrupted = "interrupted"
	lineSummary     = "summary"
)

// line is one line of "apply -o json". Fields may be added; programs pass over types and fields that they do not know.
type line struct {
	Type string    `json:"type"`
	Time time.Time `json:"time"`
	// Plan, Revision, Fleet and Steps are those of the plan that is carried out.
	Plan     string `json:"plan_id,omitempty"`
	Revision string `json:"revision,omitempty"`
	Fleet    string `json:"fleet,omitempty"`
	Steps    int    `json:"steps,omitempty"`
	// Address, Action and Domain say what a step is about.
	Address string      `json:"address,omitempty"`
	Action  plan.Action `json:"action,omitempty"`
	Domain  string      `json:"domain,omitempty"`
	StepID  string      `json:"step_id,omitempty"`
	// Elapsed is how long the step, or all of it, has taken.
	Elapsed float64 `json:"elapsed_seconds,omitempty"`
	Message string  `json:"message,omitempty"`
	// Error says why a step failed, Kind for programs: stale, retry, stalled, not_ready, left.
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Counts are how the steps came out.
	Counts *counts `json:"counts,omitempty"`
}

type counts struct {
	Done        int  `json:"done"`
	Failed      int  `json:"failed"`
	Left        int  `json:"left"`
	NotBegun    int  `json:"not_begun"`
	Interrupted bool `json:"interrupted"`
}

func writeLine(out io.Writer, l *line) error {
	l.Time = time.Now().UTC()
	encoded, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", encoded)
	return err
}

// jsonTeller writes a JSON object per line.
type jsonTeller struct {
	mu    sync.Mutex
	out   io.Writer
	start time.Time
	began map[*plan.Step]time.Time
}

func (t *jsonTeller) write(l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = writeLine(t.out, l) // whoever no longer reads does not stop the steps
}

func (t *jsonTeller) report(event apply.Event) {
	step := event.Step
	l := &line{Type: lineStart, Address: step.Address.String(), Action: step.Action, Domain: step.Domain, StepID: step.ID, Message: event.Progress}
	began, running := t.began[step]
	if running {
		l.Elapsed = time.Since(began).Seconds()
	}
	switch {
	case event.Done && event.Err == nil:
		l.Type = lineComplete
	case event.Done && errors.Is(event.Err, apply.ErrNotBegun):
		l.Type, l.Error = lineNotBegun, event.Err.Error()
	case event.Done:
		l.Type, l.Error, l.Kind = lineFailed, event.Err.Error(), kindOf(event.Err)
	case event.Progress != "":
		l.Type = lineProgress
	default:
		t.began[step] = time.Now()
	}
	t.write(l)
}

// kindOf is a kind of failure for programs.
func kindOf(err error) string {
	for _, kind := range []struct {
		err  error
		name string
	}{
		{apply.ErrStale, "stale"}, {apply.ErrStalled, "stalled"}, {apply.ErrNotReady, "not_ready"}, {apply.ErrLeft, "left"},
	} {
		if errors.Is(err, kind.err) {
			return kind.name
		}
	}
	return "retry"
}

func (t *jsonTeller) interrupted() {
	t.write(&line{Type: lineInterrupted, Message: interruptedText})
}

func (t *jsonTeller) end(tally *tally) {
	t.write(&line{
		Type: lineSummary, Elapsed: time.Since(t.start).Seconds(),
		Counts: &counts{Done: tally.done, Failed: tally.failed, Left: tally.left, NotBegun: tally.notBegun, Interrupted: tally.interrupted},
	})
}
