package podagent

import (
	"time"

	"github.com/gitvirt/gitvirt/nodeagent"
	"github.com/gitvirt/gitvirt/nodeagent/podapi"
)

// state is what is known of a Pod and told on it.
type state struct {
	// step is the last one that could be verified; nil before there is one. Nothing is told of a Pod without.
	step *podapi.Step
	// done is the ID of the step that was carried out last, with its outcome.
	done    string
	outcome podapi.Outcome
	message string
	// sight is what the Pod's libvirt has; nil until it was seen.
	sight *nodeagent.PodState
	// since is when the step began that is being carried out; zero while none is.
	since time.Time
	// waiting says what is being waited for, from when on.
	waiting      string
	waitingSince time.Time
	// ready is how the guest is asked whether it is; found is what was found, of this run of the guest.
	ready readiness
	// ended says that the launcher has ended.
	ended bool
}

// note changes what is known, and has it told if that is news.
func (w *worker) note(change func(*state)) {
	w.mu.Lock()
	change(&w.state)
	w.mu.Unlock()
	nudge(w.news)
}

func (w *worker) known() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// wait notes what is being waited for; "" for nothing.
func (w *worker) wait(what string, why error) {
	text := ""
	if what != "" {
		text = "waiting for " + what
		if why != nil {
			text += ": " + why.Error()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state.waiting == text {
		return
	}
	if w.state.waiting == "" || text == "" {
		w.state.waitingSince = time.Now()
	}
	w.state.waiting = text
	nudge(w.news)
}
