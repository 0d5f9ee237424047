package conformance

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

func who(t *testing.T, w *shared) {
	f := w.Forge(t)
	if got := f.Name(); got != w.Name() {
		t.Errorf("Name is %q, want %q", got, w.Name())
	}
	if got := must[string](t)(f.Account(t.Context())); got != w.Account() {
		t.Errorf("Account is %q, want %q", got, w.Account())
	}
	if f.CommentLimit() < 10_000 {
		t.Errorf("CommentLimit is %d, which holds no plan", f.CommentLimit())
	}
}

func pullRequests(t *testing.T, w *shared) {
	f := w.Forge(t)
	get := func(number int) forges.PullRequest {
		t.Helper()
		return must[forges.PullRequest](t)(f.PullRequest(t.Context(), number))
	}
	number, _ := w.branch(t)
	w.Retitle(t, number, unicodeText)
	got := get(number)
	head := got.Head
	if inGit := w.GitHead(t, f.HeadRef(number)); !fullHash.MatchString(head) || inGit != "" && inGit != head {
		t.Errorf("the head is %q, and git finds %q under %s", head, inGit, f.HeadRef(number))
	}
	if !strings.Contains(got.URL, strconv.Itoa(number)) || !strings.HasPrefix(got.URL, "http") {
		t.Errorf("its page is %q", got.URL)
	}
	want := forges.PullRequest{Number: number, Title: unicodeText, Author: "ann", State: forges.Open, Base: "main", Head: head, URL: got.URL, Updated: got.Updated}
	if got != want {
		t.Errorf("opened:\n got %+v\nwant %+v", got, want)
	}

	moved := w.Push(t, number)
	eventually(t, "the head moves", func() bool { return get(number).Head == moved })
	w.Retitle(t, number, "another")
	if got := get(number); got.Title != "another" || got.State != forges.Open {
		t.Errorf("with another title it is %+v", got)
	}
	w.SetDraft(t, number, true)
	if !get(number).Draft {
		t.Error("a draft is none")
	}
	w.SetDraft(t, number, false)
	if get(number).Draft {
		t.Error("it is a draft still")
	}
	w.Close(t, number)
	if got := get(number).State; got != forges.Closed {
		t.Errorf("closed it is %q", got)
	}
	w.Reopen(t, number)
	if got := get(number).State; got != forges.Open {
		t.Errorf("open again it is %q", got)
	}
	w.Merge(t, number)
	if got := get(number); got.State != forges.Merged || got.Head != moved {
		t.Errorf("merged it is %+v, with the head %s before", got, moved)
	}
	if _, err := f.PullRequest(t.Context(), 987654); !errors.Is(err, forges.ErrNotFound) {
		t.Errorf("of one that is not there: %v", err)
	}
}

func heads(t *testing.T, w *shared) {
	f := w.Forge(t)
	check := func(what string, number int, head string) {
		t.Helper()
		got := must[forges.PullRequest](t)(f.PullRequest(t.Context(), number))
		if got.Head != head || !fullHash.MatchString(head) {
			t.Errorf("%s: the head is %q, want %q", what, got.Head, head)
		}
		if inGit := w.GitHead(t, f.HeadRef(number)); inGit != "" && inGit != head {
			t.Errorf("%s: git finds %q under %s, want %q", what, inGit, f.HeadRef(number), head)
		}
	}
	fork, forkHead := w.fork(t)
	check("fork", fork, forkHead)
	if got := must[forges.PullRequest](t)(f.PullRequest(t.Context(), fork)); !got.Fork || got.Author != "ben" {
		t.Errorf("from a fork: %+v", got)
	}
	moved := w.Push(t, fork)
	eventually(t, "the fork's head moves", func() bool {
		return must[forges.PullRequest](t)(f.PullRequest(t.Context(), fork)).Head == moved
	})
	check("fork, moved", fork, moved)
	w.DeleteFork(t, fork)
	if got := must[forges.PullRequest](t)(f.PullRequest(t.Context(), fork)); !got.Fork {
		t.Errorf("its repository is gone: %+v", got)
	}
	check("fork, gone", fork, moved)
}

func numbers(pulls []forges.PullRequest) []int {
	result := []int{}
	for _, p := range pulls {
		result = append(result, p.Number)
	}
	return result
}

func changed(t *testing.T, w World) {
	f := w.Forge(t)
	since := func(when time.Time, want ...int) []forges.PullRequest {
		t.Helper()
		got := must[[]forges.PullRequest](t)(f.Changed(t.Context(), when))
		if !slices.Equal(numbers(got), want) {
			t.Errorf("since %s: %v, want %v", when, numbers(got), want)
		}
		return got
	}
	since(time.Time{})
	first, _ := w.Open(t, Opening{Author: "ann", Title: "first"})
	w.NextSecond(t)
	second, _ := w.Open(t, Opening{Author: "ben", Title: "second", Fork: true})
	w.NextSecond(t)
	third, _ := w.Open(t, Opening{Author: "ann", Title: "third"})
	got := since(time.Time{}, third, second, first)
	for _, p := range got {
		if alone := must[forges.PullRequest](t)(f.PullRequest(t.Context(), p.Number)); alone != p {
			t.Errorf("alone and in the list it is not the same:\n%+v\n%+v", alone, p)
		}
	}
	since(got[0].Updated, third)
	since(got[1].Updated, third, second)
	since(got[0].Updated.Add(time.Minute))

	// A poll costs one request, whatever was asked before.
	before := w.Requests()
	since(got[0].Updated, third)
	if n := w.Requests() - before; n != 1 {
		t.Errorf("a poll costs %d requests", n)
	}

	w.NextSecond(t)
	w.Comment(t, first, "ann", "what is this?")
	commented := since(got[0].Updated, first, third)
	w.NextSecond(t)
	w.Close(t, second)
	w.NextSecond(t)
	w.Merge(t, third)
	after := since(commented[0].Updated, third, second, first)
	if len(after) == 3 && (after[0].State != forges.Merged || after[1].State != forges.Closed || after[2].State != forges.Open) {
		t.Errorf("the states are %s, %s, %s", after[0].State, after[1].State, after[2].State)
	}
	since(time.Time{}, first)
}

func changedOverPages(t *testing.T, w World) {
	f := w.Forge(t)
	count := w.PageSize() + 2
	want := map[int]bool{}
	for _, p := range must[[]forges.PullRequest](t)(f.Changed(t.Context(), time.Time{})) {
		want[p.Number] = true
	}
	closed := 0
	for len(want) < count {
		closed, _ = w.Open(t, Opening{Author: "ann"})
		want[closed] = true
	}
	all := must[[]forges.PullRequest](t)(f.Changed(t.Context(), time.Time{}))
	if got := numbers(all); len(got) != count {
		t.Errorf("%d of %d are listed: %v", len(got), count, got)
	}
	for _, p := range all {
		if !want[p.Number] {
			t.Errorf("%d is there twice, or not ours", p.Number)
		}
		delete(want, p.Number)
	}
	w.Close(t, closed)
	got := numbers(must[[]forges.PullRequest](t)(f.Changed(t.Context(), all[len(all)-1].Updated)))
	for _, p := range all {
		if !slices.Contains(got, p.Number) {
			t.Errorf("%d has changed, and is not among %v", p.Number, got)
		}
	}
	if got := must[[]forges.PullRequest](t)(f.Changed(t.Context(), time.Time{})); len(got) != count-1 {
		t.Errorf("%d of %d are open: %v", len(got), count-1, numbers(got))
	}

	// However many are open, nothing new is one request.
	w.NextSecond(t)
	last, _ := w.Open(t, Opening{Author: "ann"})
	newest := must[[]forges.PullRequest](t)(f.Changed(t.Context(), time.Time{}))[0]
	if newest.Number != last {
		t.Errorf("the newest is %d, want %d", newest.Number, last)
	}
	before := w.Requests()
	if got := must[[]forges.PullRequest](t)(f.Changed(t.Context(), newest.Updated)); len(got) != 1 || got[0].Number != last {
		t.Errorf("since the last one: %v", numbers(got))
	}
	if n := w.Requests() - before; n != 1 {
		t.Errorf("a poll of many costs %d requests", n)
	}
}
