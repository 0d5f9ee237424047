package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
)

// method is one of forges.Forge that asks the forge.
type method struct {
	name  string
	reads bool
	call  func(context.Context) error
}

func methods(f forges.Forge, number int, head string, comment int64) []method {
	return []method{
		{"Changed", true, func(ctx context.Context) error {
			_, err := f.Changed(ctx, time.Unix(1, 0))
			return err
		}},
		{"Changed, all", true, func(ctx context.Context) error {
			_, err := f.Changed(ctx, time.Time{})
			return err
		}},
		{"PullRequest", true, func(ctx context.Context) error {
			_, err := f.PullRequest(ctx, number)
			return err
		}},
		{"Comments", true, func(ctx context.Context) error {
			_, err := f.Comments(ctx, number)
			return err
		}},
		{"Statuses", true, func(ctx context.Context) error {
			_, err := f.Statuses(ctx, head)
			return err
		}},
		{"Permission", true, func(ctx context.Context) error {
			_, err := f.Permission(ctx, "ann")
			return err
		}},
		{"EditComment", false, func(ctx context.Context) error { return f.EditComment(ctx, number, comment, "edited") }},
		{"DeleteComment", false, func(ctx context.Context) error { return f.DeleteComment(ctx, number, 1) }},
		{"SetStatus", false, func(ctx context.Context) error {
			return f.SetStatus(ctx, head, forges.Status{Context: "gitvirt/plan", State: forges.Success})
		}},
		{"Comment", false, func(ctx context.Context) error {
			_, err := f.Comment(ctx, number, "another")
			return err
		}},
	}
}

func faults(t *testing.T, w *shared) {
	f, server := w.Forge(t), w.Server()
	number, head := w.branch(t)
	before := read(t, f, number, nil)
	comment := must[int64](t)(f.Comment(t.Context(), number, "mine"))
	all := methods(f, number, head, comment)

	// Everything but a new comment may be asked twice.
	for what, fault := range map[string]forgetest.Fault{
		"500": {Status: 500}, "502": {Status: 502}, "503, retry after a second": {Status: 503, Header: http.Header{"Retry-After": {"1"}}},
		"cut": {Cut: true}, "dropped": {Drop: true}, "500, but done": {Status: 500, After: true},
	} {
		for _, m := range all[:len(all)-1] {
			fault.Times = 1
			server.Fail(fault)
			if err := m.call(t.Context()); err != nil {
				t.Errorf("%s, once: %s: %v", what, m.name, err)
			}
			server.Heal()
		}
	}
	// What a forge has refused it has not done.
	for what, fault := range map[string]forgetest.Fault{
		"429":                       {Status: 429, Times: 1},
		"429, retry after a second": {Status: 429, Times: 1, Header: http.Header{"Retry-After": {"1"}}},
	} {
		for _, m := range all {
			server.Fail(fault)
			if err := m.call(t.Context()); err != nil {
				t.Errorf("%s, once: %s: %v", what, m.name, err)
			}
		}
	}
	commented := len(read(t, f, number, before))
	if commented != 3 {
		t.Errorf("there are %d comments", commented)
	}

	// A new comment that may have been written is not written again.
	for what, fault := range map[string]forgetest.Fault{"500, but done": {Status: 500, After: true}, "cut": {Cut: true}, "no answer, but done": {Drop: true, After: true}} {
		fault.Times = 1
		server.Fail(fault)
		if _, err := f.Comment(t.Context(), number, what); !errors.Is(err, forges.ErrUnavailable) {
			t.Errorf("%s: Comment: %v", what, err)
		}
		server.Heal()
		commented++
		if n := len(read(t, f, number, before)); n != commented {
			t.Errorf("%s: there are %d comments, want %d", what, n, commented)
		}
	}

	// What lasts is an ErrUnavailable, after few requests.
	for what, fault := range map[string]forgetest.Fault{
		"500": {Status: 500}, "cut": {Cut: true}, "down": {Drop: true}, "a page": {Body: "<html><body>Please log in</body></html>"},
		"nothing": {Body: " "}, "null": {Body: "null"},
	} {
		for _, m := range all {
			server.Forget()
			server.Fail(fault)
			if err := m.call(t.Context()); !errors.Is(err, forges.ErrUnavailable) {
				t.Errorf("%s: %s: %v", what, m.name, err)
			}
			if n := len(server.Requests()); n > 8 {
				t.Errorf("%s: %s costs %d requests", what, m.name, n)
			}
			server.Heal()
		}
	}
	// JSON that is something else, to any question.
	for _, body := range []string{"{}", "[]", "[null]", "[{}]", `"text"`, "12", "true", `{"message": "hello"}`, `[{"id": 1}]`, `{"id": {}}`, `{"user": null}`, `[{"number": 1, "iid": 1}]`} {
		for _, m := range all {
			server.Fail(forgetest.Fault{Body: body})
			err := m.call(t.Context())
			if m.reads && err == nil && body != "[]" || err != nil && !errors.Is(err, forges.ErrUnavailable) {
				t.Errorf("%s to %s: %v", body, m.name, err)
			}
			server.Heal()
		}
	}

	hanging(t, server, all)
	redirects(t, f, server, number)
	if got := must[forges.PullRequest](t)(f.PullRequest(t.Context(), number)); got.Head != head {
		t.Errorf("after all that it is %+v", got)
	}
}

// hanging: methods end soon after their context does.
func hanging(t *testing.T, server *forgetest.Server, all []method) {
	for _, m := range all {
		server.Forget()
		server.Fail(forgetest.Fault{Hang: true})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- m.call(ctx) }()
		eventually(t, "a request arrives", func() bool { return len(server.Requests()) > 0 })
		cancel()
		select {
		case err := <-result:
			if !errors.Is(err, context.Canceled) || !errors.Is(err, forges.ErrUnavailable) {
				t.Errorf("no answer: %s: %v", m.name, err)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no answer: %s does not end with its context", m.name)
		}
		server.Heal()
	}
}

// redirects are followed within the forge, and credentials go nowhere else.
func redirects(t *testing.T, f forges.Forge, server *forgetest.Server, number int) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		server.Fail(forgetest.Fault{Status: status, Header: http.Header{"Location": {thief.URL + "/api"}}})
		if _, err := f.Changed(t.Context(), time.Unix(1, 0)); !errors.Is(err, forges.ErrUnavailable) {
			t.Errorf("sent on to somebody else: %v", err)
		}
		if _, err := f.Comment(t.Context(), number, "hello"); !errors.Is(err, forges.ErrUnavailable) {
			t.Errorf("sent on to somebody else with a comment: %v", err)
		}
		server.Heal()
	}
	if n := stolen.Load(); n != 0 {
		t.Errorf("somebody else got %d requests", n)
	}
	server.Forget()
	if _, err := f.PullRequest(t.Context(), number); err != nil {
		t.Fatal(err)
	}
	path := server.Requests()[0].Path
	server.Fail(forgetest.Fault{Times: 1, Status: http.StatusMovedPermanently, Header: http.Header{"Location": {path}}})
	if _, err := f.PullRequest(t.Context(), number); err != nil {
		t.Errorf("sent on within the forge: %v", err)
	}
}

// limits: nobody waits for a rate limit that is further away than some seconds.
func limits(t *testing.T, w *shared) {
	f, server, clock := w.Forge(t), w.Server(), w.Clock()
	number, head := w.branch(t)
	comment := must[int64](t)(f.Comment(t.Context(), number, "mine"))
	for what, test := range map[string]struct {
		fault forgetest.Fault
		want  time.Duration
	}{
		"seconds":   {forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"600"}}}, 10 * time.Minute},
		"a date":    {forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {clock.Now().Add(10 * time.Minute).UTC().Format(http.TimeFormat)}}}, 10 * time.Minute},
		"unknown":   {forgetest.Fault{Status: 429}, time.Minute},
		"for ever":  {forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"99999999999"}}}, 2 * time.Hour},
		"forbidden": {forgetest.Fault{Status: 403, Header: http.Header{"Retry-After": {"600"}}}, 10 * time.Minute},
	} {
		for _, m := range methods(f, number, head, comment) {
			server.Forget()
			server.Fail(test.fault)
			err := m.call(t.Context())
			var limited *forges.RateLimitedError
			if !errors.As(err, &limited) || !errors.Is(err, forges.ErrUnavailable) {
				t.Errorf("%s: %s: %v", what, m.name, err)
			} else if wait := limited.Until.Sub(clock.Now()); wait < test.want-time.Minute/2 || wait > test.want+time.Minute/2 {
				t.Errorf("%s: %s is to wait for %s, want about %s", what, m.name, wait, test.want)
			}
			server.Heal()
		}
	}

	// An account that has no requests left asks nothing until it has some again.
	for _, prefix := range []string{"X-Ratelimit-", "Ratelimit-"} {
		reset := clock.Now().Add(30 * time.Minute).Truncate(time.Second)
		server.Fail(forgetest.Fault{Times: 1, Status: 429, Header: http.Header{
			prefix + "Remaining": {"0"}, prefix + "Reset": {strconv.FormatInt(reset.Unix(), 10)},
		}})
		server.Forget()
		for i := range 3 {
			_, err := f.PullRequest(t.Context(), number)
			var limited *forges.RateLimitedError
			if !errors.As(err, &limited) || !limited.Until.Equal(reset) {
				t.Errorf("%sReset, request %d: %v, want until %s", prefix, i, err, reset)
			}
		}
		if got := fmt.Sprint(len(server.Requests())); got != "1" {
			t.Errorf("%sReset: %s requests were made", prefix, got)
		}
		clock.Advance(31 * time.Minute)
		if _, err := f.PullRequest(t.Context(), number); err != nil {
			t.Errorf("%sReset, after it: %v", prefix, err)
		}
	}
}
