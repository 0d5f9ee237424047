package giteatest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

// AddHook makes a webhook that sends events to an address: "push", "pull_request", "issue_comment" and the like; it returns its number.
func (r *Repository) AddHook(tb testing.TB, address, secret string, events ...string) int64 {
	tb.Helper()
	var made struct{ ID int64 }
	r.Do(tb, r.Owner, http.MethodPost, "/hooks", map[string]any{
		"type": "gitea", "active": true, "events": events, "config": map[string]any{"url": address, "content_type": "json", "secret": secret},
	}, &made)
	return made.ID
}

// Hook does what an event is about, with a pull request that there is, and returns what Gitea sends then to a webhook of a secret.
func (r *Repository) Hook(tb testing.TB, secret string, kind forges.EventKind, number int) (header http.Header, body []byte) {
	tb.Helper()
	type delivery struct {
		header http.Header
		body   []byte
	}
	arrived := make(chan delivery, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		if body, err := io.ReadAll(request.Body); err == nil {
			arrived <- delivery{request.Header.Clone(), body}
		}
	}))
	defer receiver.Close()
	event := map[forges.EventKind]string{
		forges.EventPush: "push", forges.EventPullRequest: "pull_request", forges.EventComment: "pull_request_comment", forges.EventOther: "issues",
	}[kind]
	id := r.AddHook(tb, receiver.URL, secret, event)
	switch kind {
	case forges.EventPullRequest:
		r.Edit(tb, number, map[string]any{"title": "another, for a webhook"})
	case forges.EventComment:
		r.Comment(tb, number, r.Owner, "for a webhook")
	case forges.EventPush:
		r.Push(tb, number)
	case forges.EventOther:
		r.Do(tb, r.Owner, http.MethodPost, "/issues", map[string]any{"title": "for a webhook"}, nil)
	}
	select {
	case got := <-arrived:
		r.Do(tb, r.Owner, http.MethodDelete, fmt.Sprintf("/hooks/%d", id), nil, nil)
		return got.header, got.body
	case <-time.After(time.Minute):
		tb.Fatalf("Gitea sends no webhook for %q", event)
		return nil, nil
	}
}
