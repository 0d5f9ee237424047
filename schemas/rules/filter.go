package rules

import (
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
)

// Event is what has happened, as filters of notifications see it: event.type, event.namespace and so on. They are fields, because a
// variable of CEL can be called neither type nor namespace.
type Event struct {
	Type, Reason, Namespace, Name, Message, Revision, Fleet string
	// Count is how often it has happened.
	Count int64
}

// Filter is an expression over an event that was checked. It has the bounds of a Rule.
type Filter struct {
	rule *Rule
}

var eventType = types.NewObjectType("gitvirt.Event")

// eventFields has the fields of an event.
func eventFields() map[string]*types.Type {
	return map[string]*types.Type{
		"type": types.StringType, "reason": types.StringType, "namespace": types.StringType, "name": types.StringType,
		"message": types.StringType, "revision": types.StringType, "fleet": types.StringType, "count": types.IntType,
	}
}

// filters has what all filters share.
var filters = sync.OnceValues(func() (*cel.Env, error) { return speakingOf(cel.Variable("event", eventType)) })

// CompileFilter checks an expression over an event: its syntax, the names and types in it, and what it may cost at worst.
func CompileFilter(expression string) (*Filter, *Problem) {
	rule, problem := compile(filters, expression, "filter")
	if problem != nil {
		return nil, problem
	}
	return &Filter{rule: rule}, nil
}

// Matches reports whether the filter is true for an event. An error says why that could not be found out, without quoting the event.
func (f *Filter) Matches(event *Event) (bool, error) {
	matches, err := f.rule.Holds(&Arguments{values: map[string]any{"event": map[string]any{
		"type": event.Type, "reason": event.Reason, "namespace": event.Namespace, "name": event.Name,
		"message": event.Message, "revision": event.Revision, "fleet": event.Fleet, "count": event.Count,
	}}})
	if err != nil {
		return false, fmt.Errorf("the filter cannot be evaluated: %w", err)
	}
	return matches, nil
}
