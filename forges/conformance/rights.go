package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

func permissions(t *testing.T, w *shared) {
	f := w.Forge(t)
	for login, permission := range map[string]forges.Permission{"rita": forges.Read, "will": forges.Write, "ada": forges.Admin} {
		w.AddUser(t, login)
		w.Allow(t, login, permission)
	}
	w.AddUser(t, "stranger")
	check := func(where, login string, want forges.Permission) {
		t.Helper()
		got, err := f.Permission(t.Context(), login)
		if err != nil || got != want {
			t.Errorf("%s: %q may %s (%v), want %s", where, login, got, err, want)
		}
	}
	w.SetPublic(t)
	everybody := map[string]forges.Permission{"rita": forges.Read, "will": forges.Write, "WILL": forges.Write, "ada": forges.Admin}
	nobody := []string{"unknown-user", "", ".", "..", "will/../ada", "ada%2f", "ada?x=1", "ada ", "ädä", strings.Repeat("a", 300)}
	for login, want := range everybody {
		check("public", login, want)
	}
	check("public", "stranger", forges.Read)
	w.SetPrivate(t)
	for login, want := range everybody {
		w.Allow(t, strings.ToLower(login), want)
		check("private", login, want)
	}
	check("private", "stranger", forges.NoPermission)
	for _, login := range nobody {
		check("private", login, forges.NoPermission)
	}
	w.Allow(t, "will", forges.Read)
	check("private, less than before", "will", forges.Read)
}

// denied tells whether an error says that somebody may not. Forges may hide what one may not see.
func denied(err error) bool {
	return errors.Is(err, forges.ErrDenied) || errors.Is(err, forges.ErrNotFound)
}

func rights(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, head := w.branch(t)
	before := read(t, f, number, nil)
	mine := must[int64](t)(f.Comment(t.Context(), number, "mine"))

	reader := w.As(t, "rita", forges.Read)
	theirs := must[int64](t)(reader.Comment(t.Context(), number, "theirs"))
	if err := reader.EditComment(t.Context(), number, mine, "forged"); !denied(err) {
		t.Errorf("a reader edits what is another's: %v", err)
	}
	if err := reader.DeleteComment(t.Context(), number, mine); err == nil {
		if got := read(t, f, number, before); len(got) != 2 {
			t.Errorf("a reader deletes what is another's: %v", bodies(got))
		}
	} else if !denied(err) {
		t.Errorf("a reader deletes what is another's: %v", err)
	}
	if err := reader.SetStatus(t.Context(), head, forges.Status{Context: "gitvirt/plan", State: forges.Success}); !denied(err) {
		t.Errorf("a reader tells a status: %v", err)
	}
	if err := f.SetStatus(t.Context(), strings.Repeat("ab", 20), forges.Status{Context: "gitvirt/plan", State: forges.Success}); !errors.Is(err, forges.ErrNotFound) && !errors.Is(err, forges.ErrRefused) {
		t.Errorf("a status of a commit that is not there: %v", err)
	}
	if _, err := reader.Permission(t.Context(), "ann"); err != nil && !denied(err) {
		t.Errorf("a reader asks what others may do: %v", err)
	}
	if err := reader.EditComment(t.Context(), number, theirs, "theirs, edited"); err != nil {
		t.Errorf("a reader edits what is their own: %v", err)
	}
	if got := fmt.Sprint(bodies(read(t, f, number, before))); got != fmt.Sprintf("[%s: mine rita: theirs, edited]", w.Account()) {
		t.Errorf("after all that there are %s", got)
	}

	w.SetPrivate(t)
	stranger := w.As(t, "stranger", forges.NoPermission)
	if _, err := stranger.Changed(t.Context(), time.Time{}); !denied(err) {
		t.Errorf("a stranger looks into what is hidden: %v", err)
	}
	if _, err := stranger.Comment(t.Context(), number, "hello"); !denied(err) {
		t.Errorf("a stranger comments on what is hidden: %v", err)
	}
	if _, err := f.Changed(t.Context(), time.Time{}); err != nil {
		t.Errorf("hidden from ourselves: %v", err)
	}
}

func tokens(t *testing.T, w *shared) {
	file := filepath.Join(t.TempDir(), "token")
	f, token := w.WithTokenFile(t, file)
	if f == nil {
		return // an App has a key, whose test is its client's own
	}
	const wrong = "wrong-0123456789abcdef"
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string) {
		t.Helper()
		_, err := f.Account(t.Context())
		if !errors.Is(err, forges.ErrDenied) || strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("no token file")
	write(" \n")
	refused("an empty token file")
	write(wrong + "\nX-Other: header\n")
	refused("more than a token")
	write(wrong + "\n")
	refused("a wrong token")
	write(token + "\n")
	if got, err := f.Account(t.Context()); err != nil || got != w.Account() {
		t.Errorf("with a new token it is %q: %v", got, err)
	}
}

func hooks(t *testing.T, w *shared) {
	f := w.Forge(t)
	const secret = "s3cret-of-the-hook"
	number, _ := w.branch(t)
	seen := map[string]bool{}
	for kind, want := range map[forges.EventKind]int{forges.EventPush: 0, forges.EventPullRequest: number, forges.EventComment: number, forges.EventOther: 0} {
		header, body := w.Hook(t, kind, number, secret)
		w.Server().Forget()
		event, err := f.Hook(header, body, secret)
		if err != nil || event.Kind != kind || event.Number != want {
			t.Errorf("%s: %+v, %v; want the number %d", kind, event, err, want)
		}
		if event.Delivery == "" || seen[event.Delivery] {
			t.Errorf("%s: the delivery is %q", kind, event.Delivery)
		}
		seen[event.Delivery] = true
		again, err := f.Hook(header, body, secret)
		if err != nil || again != event {
			t.Errorf("%s, again: %+v, %v", kind, again, err)
		}

		for what, try := range map[string]func() (http.Header, []byte, string){
			"another secret": func() (http.Header, []byte, string) { return header, body, "another" },
			"no secret":      func() (http.Header, []byte, string) { return header, body, "" },
			"no proof": func() (http.Header, []byte, string) {
				bare := header.Clone()
				bare.Del(w.HookHeader())
				return bare, body, secret
			},
			"no proof, no secret": func() (http.Header, []byte, string) {
				bare := header.Clone()
				bare.Del(w.HookHeader())
				return bare, body, ""
			},
			"a broken proof": func() (http.Header, []byte, string) {
				bad := header.Clone()
				bad.Set(w.HookHeader(), "sha256=zz")
				return bad, body, secret
			},
		} {
			if _, err := f.Hook(try()); !errors.Is(err, forges.ErrDenied) || strings.Contains(err.Error(), secret) {
				t.Errorf("%s, %s: %v", kind, what, err)
			}
		}
		if n := len(w.Server().Requests()); n != 0 {
			t.Errorf("%s: it made %d requests", kind, n)
		}
	}
	for _, body := range []string{"", "payload=%7B%7D", "{", "[]"} {
		if _, err := f.Hook(w.SignHook([]byte(body), secret), []byte(body), secret); !errors.Is(err, forges.ErrRefused) {
			t.Errorf("the content %q: %v", body, err)
		}
	}
}

func atTheSameTime(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, head := w.branch(t)
	before := read(t, f, number, nil)
	const several = 8
	var wait sync.WaitGroup
	for i := range several {
		wait.Go(func() {
			if _, err := f.Comment(t.Context(), number, fmt.Sprint("comment ", i)); err != nil {
				t.Error(err)
			}
			if err := f.SetStatus(t.Context(), head, forges.Status{Context: fmt.Sprint("same-time-", i), State: forges.Success}); err != nil {
				t.Error(err)
			}
			if _, err := f.Changed(t.Context(), time.Time{}); err != nil {
				t.Error(err)
			}
			if _, err := f.Account(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if got := read(t, f, number, before); len(got) != several {
		t.Errorf("%d of %d comments: %v", len(got), several, bodies(got))
	}
	if got := slices.DeleteFunc(shown(t, f, head), func(s forges.Status) bool { return !strings.HasPrefix(s.Context, "same-time-") }); len(got) != several {
		t.Errorf("%d of %d statuses: %+v", len(got), several, got)
	}
}

func contexts(t *testing.T, w *shared) {
	f := w.Forge(t)
	number, _ := w.branch(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.PullRequest(ended, number); !errors.Is(err, context.Canceled) || !errors.Is(err, forges.ErrUnavailable) {
		t.Errorf("with a context that has ended: %v", err)
	}
}
