package rest

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gitvirt/gitvirt/forges"
)

// list is a forge's: pull requests by number, and what happens to them between two pages.
type list struct {
	pulls    map[int]forges.PullRequest
	now      time.Time
	pageSize int
	between  []func(*list)
	requests int
}

func (l *list) open() {
	n := len(l.pulls) + 1
	l.now = l.now.Add(time.Second)
	l.pulls[n] = forges.PullRequest{Number: n, State: forges.Open, Updated: l.now}
}

func (l *list) set(number int, state forges.State) {
	l.now = l.now.Add(time.Second)
	p := l.pulls[number]
	p.State, p.Updated = state, l.now
	l.pulls[number] = p
}

func (l *list) page(_ context.Context, open bool, page int) ([]forges.PullRequest, int, error) {
	l.requests++
	var sorted []forges.PullRequest
	for _, p := range l.pulls {
		if !open || p.State == forges.Open {
			sorted = append(sorted, p)
		}
	}
	slices.SortFunc(sorted, func(a, b forges.PullRequest) int {
		return cmp.Or(b.Updated.Compare(a.Updated), b.Number-a.Number)
	})
	from := min((page-1)*l.pageSize, len(sorted))
	to := min(from+l.pageSize, len(sorted))
	next := 0
	if to < len(sorted) {
		next = page + 1
	}
	if len(l.between) > 0 {
		l.between[0](l)
		l.between = l.between[1:]
	}
	return sorted[from:to], next, nil
}

func newList(count, pageSize int) *list {
	l := &list{pulls: map[int]forges.PullRequest{}, now: time.Unix(1000, 0), pageSize: pageSize}
	for range count {
		l.open()
	}
	return l
}

// Whatever happens while pages are turned, what was open all the time is found: by the first poll, or by those that go on from what it has seen.
func TestNothingIsMissedWhilePagesAreTurned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(0, 40).Draw(t, "count")
		l := newList(count, rapid.IntRange(1, 10).Draw(t, "page size"))
		untouched := map[int]bool{}
		for n := range count {
			untouched[n+1] = true
		}
		for range rapid.IntRange(0, 6).Draw(t, "events") {
			number := rapid.IntRange(1, max(count, 1)).Draw(t, "number")
			what := rapid.SampledFrom([]forges.State{forges.Closed, forges.Merged, forges.Open, ""}).Draw(t, "what")
			if count > 0 && what != "" {
				delete(untouched, number)
			}
			l.between = append(l.between, func(l *list) {
				if what == "" || count == 0 {
					l.open()
				} else {
					l.set(number, what)
				}
			})
		}
		// The last of three readings may still have been disturbed; that takes a change during each of them.
		first, err := Changed(t.Context(), time.Time{}, time.Second, l.page)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int]forges.PullRequest{}
		newest := time.Unix(1, 0)
		for _, p := range first {
			seen[p.Number] = p
			newest = p.Updated
		}
		for _, p := range first {
			if p.Updated.After(newest) {
				newest = p.Updated
			}
		}
		later, err := Changed(t.Context(), newest, time.Second, l.page)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range later {
			seen[p.Number] = p
		}
		if len(l.between) == 0 {
			again, err := Changed(t.Context(), newest, time.Second, l.page)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range again {
				seen[p.Number] = p
			}
		}
		for n := range untouched {
			if _, ok := seen[n]; !ok {
				t.Fatalf("%d was open all the time and is missing", n)
			}
		}
	})
}

func TestRequestsOfAPoll(t *testing.T) {
	l := newList(1000, 100)
	if got, err := Changed(t.Context(), time.Time{}, time.Second, l.page); err != nil || len(got) != 1000 || l.requests != 13 {
		t.Errorf("the first poll of 1000 finds %d with %d requests: %v", len(got), l.requests, err)
	}
	l.requests = 0
	if got, err := Changed(t.Context(), l.now.Add(900*time.Millisecond), time.Second, l.page); err != nil || len(got) != 1 || l.requests != 1 {
		t.Errorf("another poll finds %d with %d requests: %v", len(got), l.requests, err)
	}
	l.requests = 0
	for n := range 250 {
		l.set(n+1, forges.Merged)
	}
	if got, err := Changed(t.Context(), time.Unix(2001, 0), time.Second, l.page); err != nil || len(got) != 250 || l.requests != 3 {
		t.Errorf("after 250 merges it finds %d with %d requests: %v", len(got), l.requests, err)
	}
}

func TestPagesEnd(t *testing.T) {
	turned := 0
	if err := Pages(func(page int) (int, bool, error) { turned++; return page, true, nil }); err == nil || turned != 1 {
		t.Errorf("a circle of one page: %v after %d", err, turned)
	}
	if err := Pages(func(page int) (int, bool, error) { return page + 1, true, nil }); err == nil {
		t.Error("pages without an end")
	}
}
