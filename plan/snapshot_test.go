package plan_test

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/plan"
)

// TestLive: a plan against what was kept is the plan against what lives, to the byte.
func TestSnapshot(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want, have := storyParts(t)
	observed := plan.Observed{Node: "host-1", Domains: have}
	options := plan.Options{Revision: "4fa1c7e"}
	live, err := plan.NewLive(observed, nil, at)
	if err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(live)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := plan.DecodeLive(content)
	if err != nil {
		t.Fatal(err)
	}
	if !kept.Time.Equal(at.Truncate(time.Second)) || kept.Pods != nil {
		t.Errorf("kept are the time %s and the pods %s", kept.Time, kept.Pods)
	}
	before, err := plan.Build(want, observed, options)
	if err != nil {
		t.Fatal(err)
	}
	after, err := plan.Build(want, kept.Observed, options)
	if err != nil {
		t.Fatal(err)
	}
	if one, other := before.Markdown(plan.MarkdownOptions{}), after.Markdown(plan.MarkdownOptions{}); one != other || before.ID != after.ID {
		t.Errorf("the plan against what was kept is another:\n%s\nbefore\n%s", other, one)
	}

	if _, err := plan.NewLive(plan.Observed{Unknown: "libvirt is away"}, nil, at); err == nil {
		t.Error("what nobody knows was kept")
	}
	for content, want := range map[string]error{"": plan.ErrNoLive, "{}": plan.ErrNoLive, "[1]": plan.ErrNoLive} {
		if _, err := plan.DecodeLive([]byte(content)); !errors.Is(err, want) {
			t.Errorf("%q: %v", content, err)
		}
	}
	if _, err := plan.DecodeLive(append(content[:len(content)-2:len(content)-2], `,"observed":{"domains":7}}`...)); err == nil {
		t.Error("damage was not seen")
	}
}
