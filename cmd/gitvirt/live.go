package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/gitvirt/gitvirt/apply"
	"github.com/gitvirt/gitvirt/plan"
)

// liveTeller has a line for each step under way at the bottom of a terminal, and writes what is over above them.
type liveTeller struct {
	mu    sync.Mutex
	out   io.Writer
	err   io.Writer
	size  func() (width, height int)
	color bool
	now   func() time.Time

	running []*liveStep
	shown   int // how many lines are at the bottom
	frame   int
	note    string
	stop    func()
}

type liveStep struct {
	step  *plan.Step
	doing string
	began time.Time
}

// redraw is how often the lines of what is under way are drawn again.
const redraw = 150 * time.Millisecond

func newLiveTeller(file *os.File, color bool, errs io.Writer) *liveTeller {
	t := &liveTeller{out: file, err: errs, color: color, now: time.Now, size: func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil {
			return 80, 24
		}
		return width, height
	}}
	fmt.Fprintln(t.out)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(redraw)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				t.tick()
			}
		}
	}()
	t.stop = func() {
		close(done)
		<-ended
	}
	return t
}

func (t *liveTeller) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frame++
	t.draw("")
}

func (t *liveTeller) report(event apply.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case event.Done:
		t.draw(t.over(&event))
	case event.Progress != "":
		for _, one := range t.running {
			if one.step == event.Step {
				one.doing = event.Progress
			}
		}
		t.draw("")
	default:
		t.running = append(t.running, &liveStep{step: event.Step, began: t.now()})
		t.draw("")
	}
}

// over takes a step from those under way and returns what stays of it.
func (t *liveTeller) over(event *apply.Event) string {
	took := time.Duration(0)
	for i, one := range t.running {
		if one.step == event.Step {
			took = t.now().Sub(one.began)
			t.running = append(t.running[:i], t.running[i+1:]...)
			break
		}
	}
	text := endOf(event, took)
	if text == "" {
		return ""
	}
	if t.color {
		color := "\x1b[32m"
		if event.Err != nil {
			color = "\x1b[31m"
		}
		text = color + text + "\x1b[0m"
	}
	if len(event.Console) > 0 {
		text += "\n  its console said last:"
		for _, line := range event.Console {
			text += "\n  | " + line
		}
	}
	return text
}

func (t *liveTeller) interrupted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note = interruptedText
	t.draw("")
}

func (t *liveTeller) end(tally *tally) {
	t.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = nil
	note := t.note
	t.note = ""
	t.draw(note)
	tellEnd(t.out, t.err, tally)
}

// draw replaces the lines at the bottom, with something that stays above them.
func (t *liveTeller) draw(above string) {
	var b strings.Builder
	if t.shown > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", t.shown)
	}
	if above != "" {
		b.WriteString(above + "\n")
	}
	lines := t.lines()
	for _, line := range lines {
		b.WriteString(line + "\n")
	}
	t.shown = len(lines)
	if b.Len() > 0 {
		_, _ = io.WriteString(t.out, b.String()) // whoever no longer looks does not stop the steps
	}
}

// lines are those at the bottom: at most half a screen, and none wider than the screen, which would wrap.
func (t *liveTeller) lines() []string {
	width, height := t.size()
	most := max(height/2, 1)
	spinner := `|/-\`[t.frame%4 : t.frame%4+1]
	var out []string
	for i, one := range t.running {
		if i == most-1 && len(t.running) > most {
			out = append(out, clip(fmt.Sprintf("  ... and %d more", len(t.running)-i), width))
			break
		}
		text := fmt.Sprintf("%s %s: %s %s", spinner, vmName(one.step), one.step.Action, clock(t.now().Sub(one.began)))
		if one.doing != "" {
			text += ", " + one.doing
		}
		out = append(out, clip(text, width))
	}
	if t.note != "" {
		out = append(out, clip(t.note, width))
	}
	return out
}

// clock is a time as it is shown while it passes: 7s, 1m07s.
func clock(d time.Duration) string {
	seconds := int(d / time.Second)
	if seconds < 60 {
		return fmt.Sprintf("%ds", seconds)
	}
	return fmt.Sprintf("%dm%02ds", seconds/60, seconds%60)
}

// clip shortens a line to less than a width.
func clip(text string, width int) string {
	runes := []rune(text)
	if width <= 0 || len(runes) < width {
		return text
	}
	if width <= 4 {
		return string(runes[:max(width-1, 0)])
	}
	return string(runes[:width-4]) + "..."
}
