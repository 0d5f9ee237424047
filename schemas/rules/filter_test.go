package rules_test

import (
	"strings"
	"testing"

	"github.com/gitvirt/gitvirt/schemas/rules"
)

func TestFilters(t *testing.T) {
	event := rules.Event{
		Type: "Warning", Reason: "Crashed", Namespace: "shop", Name: "web-1", Message: "the guest crashed",
		Revision: "4c1f0c2", Fleet: "demo", Count: 3,
	}
	for expression, want := range map[string]bool{
		`event.type == 'Warning'`:                                               true,
		`event.reason in ['ApplyFailed', 'Stalled']`:                            false,
		`event.namespace == 'shop' && event.name.startsWith('web-')`:            true,
		`event.message.contains('crashed') && event.fleet == 'demo'`:            true,
		`event.count == 1`:                                                      false,
		`event.count > 2 && event.revision != ''`:                               true,
		`event.reason.matches('^(Crashed|BackOff)$')`:                           true,
		`!(event.type == 'Normal' && event.name == '') && size(event.name) > 1`: true,
	} {
		filter, problem := rules.CompileFilter(expression)
		if problem != nil {
			t.Errorf("%s: %v", expression, problem)
			continue
		}
		if got, err := filter.Matches(&event); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", expression, got, err, want)
		}
	}
}

func TestMistakesOfFilters(t *testing.T) {
	for expression, want := range map[string]string{
		``:                                    "the expression is empty",
		`event.typ == 'Warning'`:              "undefined field 'typ'",
		`object.metadata.name == 'a'`:         "undeclared reference to 'object'",
		`event.type`:                          "the expression is a string, and a filter is true or false",
		`event.count == 'one'`:                "found no matching overload for '_==_' applied to '(int, string)'",
		`event.type = 'Warning'`:              "token recognition error",
		`event.name.replace('a', 'aa') == ''`: `filters have no "replace": there is no bound to what it makes`,
		strings.Repeat("a", 5000) + `== a`:    "the expression has 5004 characters, at most 4096 are allowed",
	} {
		if _, problem := rules.CompileFilter(expression); problem == nil || !strings.HasPrefix(problem.Error(), want) {
			t.Errorf("%q: %v, want %s", expression, problem, want)
		}
	}
}

// TestErrorsOfFilters: what an error says never quotes the event.
func TestErrorsOfFilters(t *testing.T) {
	filter, problem := rules.CompileFilter(`int(event.name) == 1`)
	if problem != nil {
		t.Fatal(problem)
	}
	_, err := filter.Matches(&rules.Event{Name: "hush-hush"})
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("%v", err)
	}
}
