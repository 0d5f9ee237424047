package schemas

import (
	"github.com/gitvirt/gitvirt/schemas/rules"
)

// Receiver is who is told of events (Fleet spec.notifications). Where it is reached is no part of the Fleet: the address of a webhook is a
// secret, and the controller has it from a file.
type Receiver struct {
	// Name is what the controller's files are given for.
	Name string       `json:"name"`
	Kind ReceiverKind `json:"kind"`
	// Filter is a CEL expression over event; only events for which it is true are told. It defaults to DefaultFilter.
	Filter string `json:"filter,omitempty"`
}

// ReceiverKind is what a receiver understands.
type ReceiverKind string

// The kinds of receivers.
const (
	// ReceiverSlack is an incoming webhook as Slack has it, and Mattermost and others after it.
	ReceiverSlack ReceiverKind = "slack"
	// ReceiverHTTP gets the events as JSON.
	ReceiverHTTP ReceiverKind = "http"
)

// DefaultFilter is that of a receiver which has none.
const DefaultFilter = "event.type == 'Warning'"

// notifications checks a Fleet's spec.notifications, and returns those without mistakes: whoever else was meant is not told what nobody may
// have meant for them.
func (c *checker) notifications(receivers []Receiver) []Receiver {
	in := func(parts ...any) []any { return append(at("spec", "notifications"), parts...) }
	c.policyItems(in(), len(receivers), func(i int) string { return receivers[i].Name })
	if len(receivers) > maxPolicyItems {
		return nil
	}
	var good []Receiver
	for i := range receivers {
		c.receiver(in(i), &receivers[i])
		if !c.reported(in(i)) && !c.misread(in(i)) {
			good = append(good, receivers[i])
		}
	}
	return good
}

func (c *checker) receiver(path []any, r *Receiver) {
	field := func(name string) []any { return append(path[:len(path):len(path)], name) }
	if r.Kind == "" {
		c.fail(field("kind"), "no kind", "write kind: slack or kind: http")
	}
	oneOf(c, func() []any { return field("kind") }, r.Kind, ReceiverSlack, ReceiverHTTP)
	if r.Filter == "" || c.misread(field("filter")) {
		return
	}
	if _, problem := rules.CompileFilter(r.Filter); problem != nil {
		c.fail(field("filter"), oneLine(problem.Error()), "event is what it can speak of: see gitvirt explain fleet.spec.notifications.filter")
	}
}

// setReceiverDefaults fills in what was not said.
func setReceiverDefaults(receivers []Receiver) {
	for i := range receivers {
		if receivers[i].Filter == "" {
			receivers[i].Filter = DefaultFilter
		}
	}
}
