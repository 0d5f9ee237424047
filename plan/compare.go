package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gitvirt/gitvirt/schemas"
)

// Moved is one thing that is not what it was when a plan was made.
type Moved struct {
	// Address is zero for what is about the whole plan.
	Address schemas.Address `json:"address,omitzero"`
	What    string          `json:"what"`
}

// Comparison says what has become of a saved plan.
type Comparison struct {
	// Done are the objects of steps that nothing is left to do for: the host is as the plan wanted it.
	Done []schemas.Address
	// Rest are the IDs of the steps that are exactly as they were.
	Rest []string
	// Moved is what is different; then the plan is stale.
	Moved []Moved
}

// Compare says what has become of a saved plan, now being the plan that the same revision gives today. A step that is not
// needed any more is done; every other difference makes the plan stale.
func Compare(saved, now *Plan) Comparison {
	var c Comparison
	whole := func(what string) { c.Moved = append(c.Moved, Moved{What: what}) }
	switch {
	case now.Unknown != "":
		whole("the host cannot be read: " + now.Unknown)
		return c
	case saved.Unknown != "":
		whole("the host could not be read when the plan was made, so it holds no steps")
		return c
	}
	if saved.Fleet != now.Fleet {
		whole(fmt.Sprintf("the fleet was %q, is %q", saved.Fleet, now.Fleet))
	}
	if saved.Policy != now.Policy {
		whole("the policy is another one")
	}
	present := make(map[schemas.Address]*Step, len(now.Steps))
	for i := range now.Steps {
		present[now.Steps[i].Address] = &now.Steps[i]
	}
	held := make(map[schemas.Address]string, len(now.Held))
	for _, object := range now.Held {
		held[object.Address] = object.Reason
	}
	planned := make(map[schemas.Address]bool, len(saved.Steps))
	for i := range saved.Steps {
		was := &saved.Steps[i]
		planned[was.Address] = true
		is, needed := present[was.Address]
		reason, isHeld := held[was.Address]
		switch {
		case needed && is.ID == was.ID && was.Blocked != is.Blocked:
			c.Moved = append(c.Moved, Moved{was.Address, fmt.Sprintf("blocked was %s, is %s", orNone(was.Blocked), orNone(is.Blocked))})
		case needed && is.ID == was.ID && was.Runs() && !is.Runs():
			c.Moved = append(c.Moved, Moved{was.Address, "it waits now: " + is.Waits[0].Reason})
		case needed && is.ID == was.ID:
			c.Rest = append(c.Rest, is.ID)
		case needed:
			c.Moved = append(c.Moved, Moved{was.Address, moved(was, is)})
		case isHeld:
			c.Moved = append(c.Moved, Moved{was.Address, "it is left as it is now: " + reason})
		default:
			c.Done = append(c.Done, was.Address)
		}
	}
	for _, object := range saved.Held {
		planned[object.Address] = true
		if step, ok := present[object.Address]; ok {
			c.Moved = append(c.Moved, Moved{object.Address, "was left as it was (" + object.Reason + "), and now it " + step.Summary})
		}
	}
	for i := range now.Steps {
		if step := &now.Steps[i]; !planned[step.Address] {
			c.Moved = append(c.Moved, Moved{step.Address, "was as git wants it, and now it " + step.Summary})
		}
	}
	for _, object := range now.Held {
		if !planned[object.Address] {
			c.Moved = append(c.Moved, Moved{object.Address, "was as git wants it, and is left as it is now: " + object.Reason})
		}
	}
	slices.SortStableFunc(c.Moved, func(a, b Moved) int { return a.Address.Compare(b.Address) })
	return c
}

// moved says how a step differs from the one that was saved, what weighs most first.
func moved(was, is *Step) string {
	var parts []string
	differ := func(format, before, after string) {
		if before != after {
			parts = append(parts, fmt.Sprintf(format, before, after))
		}
	}
	switch {
	case was.Precondition == "" && is.Precondition != "":
		parts = append(parts, "the domain was not there, and exists now")
	case was.Precondition != "" && is.Precondition == "":
		parts = append(parts, "the domain was there, and is gone")
	case was.Precondition != is.Precondition:
		parts = append(parts, "the domain has changed")
	}
	if was.Summary != is.Summary {
		parts = append(parts, fmt.Sprintf("planned: %s; now: %s", was.Summary, is.Summary))
	} else {
		differ("the action was %s, is %s", string(was.Action), string(is.Action))
	}
	differ("the consequence was %s, is %s", string(was.Consequence), string(is.Consequence))
	if len(parts) == 0 || was.Blocked != is.Blocked {
		differ("blocked was %s, is %s", orNone(was.Blocked), orNone(is.Blocked))
	}
	if text := driftOf(is); text != driftOf(was) && text != "" {
		parts = append(parts, "changed outside gitvirt: "+text)
	}
	if len(parts) == 0 {
		parts = append(parts, "the step is another one (another gitvirt, or other values of Secrets)")
	}
	return strings.Join(parts, "; ")
}

func orNone(s string) string {
	if s == "" {
		return "(no)"
	}
	return s
}

func driftOf(step *Step) string {
	var parts []string
	for _, list := range [][]Change{step.Drift, step.RunningDrift} {
		for _, drift := range list {
			if drift.Sensitive {
				parts = append(parts, drift.Path)
				continue
			}
			parts = append(parts, fmt.Sprintf("%s was %s, is %s", drift.Path, brief(drift.Before), brief(drift.After)))
		}
	}
	return strings.Join(parts, ", ")
}
