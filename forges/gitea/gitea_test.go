package gitea_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/conformance"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/gitea"
	"github.com/gitvirt/gitvirt/forges/gitea/giteatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pageSize is small, so that a second page needs few pull requests.
const pageSize = 2

// The tests share one Gitea, which takes two seconds to start.
func TestGitea(t *testing.T) {
	server := giteatest.New(t, giteatest.WithPageSize(pageSize))
	repositories := 0
	newWorld := func(t *testing.T) *world {
		repositories++
		w := &world{gitea: server, repo: server.AddRepository(t, "shop", fmt.Sprintf("fleet-%d", repositories)), clock: forgetest.NewClock()}
		w.front = forgetest.NewFront(t, server.URL, forgetest.WithPrefix("/code"))
		w.repo.Allow(t, "gitvirt", forges.Admin)
		return w
	}
	t.Run("conformance", func(t *testing.T) {
		conformance.Run(t, func(t *testing.T) conformance.World { return newWorld(t) })
	})
	t.Run("scopes", func(t *testing.T) { leastScopes(t, newWorld(t)) })
}

// leastScopes is what docs/forges.md names.
func leastScopes(t *testing.T, w *world) {
	w.repo.SetPrivate(t, true)
	number, head := w.repo.Open(t, giteatest.Opening{Author: "shop"})
	all := func(f forges.Forge) error {
		_, errAccount := f.Account(t.Context())
		_, errChanged := f.Changed(t.Context(), time.Time{})
		id, errComment := f.Comment(t.Context(), number, "a plan")
		errEdit := f.EditComment(t.Context(), number, id, "another plan")
		_, errPermission := f.Permission(t.Context(), "shop")
		errStatus := f.SetStatus(t.Context(), head, forges.Status{Context: "gitvirt/plan", State: forges.Success})
		return errors.Join(errAccount, errChanged, errComment, errEdit, errPermission, errStatus)
	}
	scopes := []string{"read:user", "write:issue", "write:repository"}
	if err := all(w.client(t, w.gitea.ScopedTokenFile(t, "gitvirt", scopes...))); err != nil {
		t.Errorf("with %v: %v", scopes, err)
	}
	for i, without := range scopes {
		rest := append(append([]string{}, scopes[:i]...), scopes[i+1:]...)
		err := all(w.client(t, w.gitea.ScopedTokenFile(t, "gitvirt", rest...)))
		if !errors.Is(err, forges.ErrDenied) || !strings.Contains(err.Error(), without) {
			t.Errorf("without %s: %v", without, err)
		}
	}
}

// world is a repository on a real Gitea. Between it and the clients is a server that counts requests and breaks them, with the forge at
// a path of its own.
type world struct {
	gitea *giteatest.Server
	repo  *giteatest.Repository
	front *forgetest.Server
	clock *forgetest.Clock
}

func (w *world) client(t *testing.T, file string) *gitea.Client {
	t.Helper()
	c, err := gitea.New(gitea.Config{URL: w.front.URL() + "/", Owner: w.repo.Owner, Repository: w.repo.Name, TokenFile: file, Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) Name() string {
	return strings.TrimPrefix(w.front.URL(), "http://") + "/" + w.repo.Owner + "/" + w.repo.Name
}

func (w *world) Account() string { return "gitvirt" }

func (w *world) Forge(t *testing.T) forges.Forge {
	return w.client(t, w.gitea.TokenFile(t, "gitvirt"))
}

func (w *world) As(t *testing.T, login string, permission forges.Permission) forges.Forge {
	w.gitea.AddUser(t, login)
	if permission != forges.NoPermission {
		w.repo.Allow(t, login, permission)
	}
	return w.client(t, w.gitea.TokenFile(t, login))
}

func (w *world) WithTokenFile(t *testing.T, file string) (client forges.Forge, token string) {
	return w.client(t, file), w.gitea.AddUser(t, "gitvirt")
}

func (w *world) Requests() int                      { return len(w.front.Requests()) }
func (w *world) Server() *forgetest.Server          { return w.front }
func (w *world) Clock() *forgetest.Clock            { return w.clock }
func (w *world) PageSize() int                      { return pageSize }
func (w *world) HookHeader() string                 { return "X-Gitea-Signature" }
func (w *world) AddUser(t *testing.T, login string) { w.gitea.AddUser(t, login) }
func (w *world) SetPrivate(t *testing.T)            { w.repo.SetPrivate(t, true) }
func (w *world) SetPublic(t *testing.T)             { w.repo.SetPrivate(t, false) }
func (w *world) Merge(t *testing.T, n int)          { w.repo.Merge(t, n) }
func (w *world) DeleteFork(t *testing.T, n int)     { w.repo.DeleteFork(t, n) }

func (w *world) Push(t *testing.T, n int) (head string)    { return w.repo.Push(t, n) }
func (w *world) GitHead(t *testing.T, ref string) string   { return w.repo.Head(t, ref) }
func (w *world) Retitle(t *testing.T, n int, title string) { w.edit(t, n, "title", title) }
func (w *world) Close(t *testing.T, n int)                 { w.edit(t, n, "state", "closed") }
func (w *world) Reopen(t *testing.T, n int)                { w.edit(t, n, "state", "open") }

func (w *world) edit(t *testing.T, n int, field, value string) {
	w.repo.Edit(t, n, map[string]any{field: value})
}

// NextSecond waits for the second to end, since Gitea goes by the machine's clock.
func (w *world) NextSecond(t *testing.T) {
	t.Helper()
	now := time.Now()
	select {
	case <-time.After(now.Truncate(time.Second).Add(time.Second).Sub(now)):
	case <-t.Context().Done():
	}
}

func (w *world) Allow(t *testing.T, login string, permission forges.Permission) {
	w.repo.Allow(t, login, permission)
}

func (w *world) SetDraft(t *testing.T, n int, draft bool) {
	title := "ready"
	if draft {
		title = "WIP: not ready"
	}
	w.Retitle(t, n, title)
}

func (w *world) Comment(t *testing.T, n int, login, body string) int64 {
	return w.repo.Comment(t, n, login, body)
}

func (w *world) Open(t *testing.T, opening conformance.Opening) (number int, head string) {
	title := opening.Title
	if opening.Draft {
		title = "WIP: " + title
	}
	return w.repo.Open(t, giteatest.Opening{Title: title, Author: opening.Author, Fork: opening.Fork})
}

// Hook lets Gitea send a webhook to a server of the test, by doing what it is about.
func (w *world) Hook(t *testing.T, kind forges.EventKind, n int, secret string) (header http.Header, body []byte) {
	t.Helper()
	return w.repo.Hook(t, secret, kind, n)
}

func (w *world) SignHook(body []byte, secret string) http.Header {
	return http.Header{"X-Gitea-Event": {"push"}, "X-Gitea-Signature": {forgetest.Sign(body, secret)}}
}
