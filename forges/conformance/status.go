package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gitvirt/gitvirt/forges"
)

func shown(t *testing.T, f forges.Forge, commit string) []forges.Status {
	t.Helper()
	got := must[[]forges.Status](t)(f.Statuses(t.Context(), commit))
	slices.SortFunc(got, func(a, b forges.Status) int { return strings.Compare(a.Context, b.Context) })
	return got
}

func statuses(t *testing.T, w *shared) {
	f := w.Forge(t)
	_, head := w.branch(t)
	_, fork := w.fork(t)
	for _, commit := range []string{head, fork} {
		if got := shown(t, f, commit); len(got) != 0 {
			t.Errorf("nobody told a status, and there is %+v", got)
		}
		apply := forges.Status{Context: "gitvirt/apply", State: forges.Success, Description: "3 of 3"}
		if err := f.SetStatus(t.Context(), commit, apply); err != nil {
			t.Fatal(err)
		}
		// Each is told after the one before it, and what was told last counts: also the same again, and the same state with other words.
		for i, status := range []forges.Status{
			{State: forges.Pending, Description: "planning"},
			{State: forges.Pending, Description: "planning"},
			{State: forges.Pending, Description: "planning again " + unicodeText},
			{State: forges.Success, Description: "2 to change", URL: "https://gitvirt.example.com/plans/1"},
			{State: forges.Success, Description: "3 to change", URL: "https://gitvirt.example.com/plans/2"},
			{State: forges.Failure, Description: "2 mistakes"},
			{State: forges.Pending, Description: "planning"},
			{State: forges.Failure, Description: "1 mistake"},
			{State: forges.Success, Description: "nothing to do"},
		} {
			status.Context = "gitvirt/plan"
			if err := f.SetStatus(t.Context(), commit, status); err != nil {
				t.Fatalf("status %d: %v", i, err)
			}
			if got, want := fmt.Sprintf("%+v", shown(t, f, commit)), fmt.Sprintf("%+v", []forges.Status{apply, status}); got != want {
				t.Errorf("status %d:\n got %s\nwant %s", i, got, want)
			}
		}
	}

	// Annotations may be left out, and do not disturb.
	var annotations []forges.Annotation
	for i := range 60 {
		annotations = append(annotations, forges.Annotation{Path: "vms/web.yaml", Line: i + 1, Message: unicodeText, Warning: i%2 == 0})
	}
	long := forges.Status{Context: "gitvirt/plan", State: forges.Failure, Description: strings.Repeat("数", 2*forges.DescriptionLimit), Annotations: annotations}
	if err := f.SetStatus(t.Context(), head, long); err != nil {
		t.Fatal(err)
	}
	got := shown(t, f, head)
	if n := utf8.RuneCountInString(got[1].Description); n != forges.DescriptionLimit || !strings.HasPrefix(got[1].Description, "数数") {
		t.Errorf("a description of %d characters has %d: %q", 2*forges.DescriptionLimit, n, got[1].Description)
	}
	if err := f.SetStatus(t.Context(), head, forges.Status{Context: "gitvirt/plan", State: forges.Failure, Description: "two\n lines "}); err != nil {
		t.Fatal(err)
	}
	if got := shown(t, f, head)[1].Description; got != "two lines" {
		t.Errorf("a description of two lines is %q", got)
	}

	good := forges.Status{Context: "gitvirt/plan", State: forges.Success}
	for _, commit := range []string{"", "main", head[:12], "../" + head[3:]} {
		if err := f.SetStatus(t.Context(), commit, good); !errors.Is(err, forges.ErrRefused) {
			t.Errorf("of the commit %q: %v", commit, err)
		}
		if _, err := f.Statuses(t.Context(), commit); !errors.Is(err, forges.ErrRefused) {
			t.Errorf("reading those of the commit %q: %v", commit, err)
		}
	}
	for _, bad := range []forges.Status{{Context: "gitvirt/plan"}, {State: forges.Success}, {Context: "gitvirt/plan", State: "odd"}} {
		if err := f.SetStatus(t.Context(), head, bad); !errors.Is(err, forges.ErrRefused) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func statusesOverPages(t *testing.T, w *shared) {
	f := w.Forge(t)
	_, head := w.branch(t)
	count := w.PageSize() + 2
	for i := range count {
		if err := f.SetStatus(t.Context(), head, forges.Status{Context: fmt.Sprintf("context-%03d", i), State: forges.Success, Description: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	got := slices.DeleteFunc(shown(t, f, head), func(s forges.Status) bool { return !strings.HasPrefix(s.Context, "context-") })
	if len(got) != count {
		t.Fatalf("%d of %d statuses", len(got), count)
	}
	for i, s := range got {
		if s.Context != fmt.Sprintf("context-%03d", i) || s.Description != fmt.Sprint(i) {
			t.Fatalf("status %d is %+v", i, s)
		}
	}
}
