package gitlab_test

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
	"github.com/gitvirt/gitvirt/forges/gitlab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const project = "shop/infra.structure/fleet"

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.World {
		w := &world{clock: forgetest.NewClock()}
		w.server = forgetest.NewGitLab(t, forgetest.WithNow(w.clock.Now), forgetest.WithPrefix("/code"))
		w.repo = w.server.AddRepository(project, false)
		w.repo.Allow("gitvirt", forges.Admin)
		return w
	})
}

// world is a project on a test server that answers as GitLab does.
type world struct {
	server *forgetest.GitLab
	clock  *forgetest.Clock
	repo   *forgetest.Repository
	heads  int
}

func (w *world) client(t *testing.T, tokenFile string) *gitlab.Client {
	t.Helper()
	c, err := gitlab.New(gitlab.Config{URL: w.server.URL(), Project: project, TokenFile: tokenFile, Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) Name() string    { return strings.TrimPrefix(w.server.URL(), "http://") + "/" + project }
func (w *world) Account() string { return "gitvirt" }

func (w *world) Forge(t *testing.T) forges.Forge {
	return w.client(t, w.server.TokenFile(t, "gitvirt"))
}

func (w *world) As(t *testing.T, login string, permission forges.Permission) forges.Forge {
	if permission != forges.NoPermission {
		w.repo.Allow(login, permission)
	}
	return w.client(t, w.server.TokenFile(t, login))
}

func (w *world) WithTokenFile(t *testing.T, file string) (client forges.Forge, token string) {
	return w.client(t, file), w.server.AddUser("gitvirt")
}

func (w *world) Requests() int                             { return len(w.server.Requests()) }
func (w *world) Server() *forgetest.Server                 { return w.server.Server }
func (w *world) Clock() *forgetest.Clock                   { return w.clock }
func (w *world) PageSize() int                             { return 50 }
func (w *world) NextSecond(*testing.T)                     { w.clock.Advance(time.Second) }
func (w *world) AddUser(_ *testing.T, login string)        { w.server.AddUser(login) }
func (w *world) SetPrivate(*testing.T)                     { w.repo.SetPrivate(true) }
func (w *world) SetPublic(*testing.T)                      { w.repo.SetPrivate(false) }
func (w *world) Retitle(_ *testing.T, n int, title string) { w.repo.Retitle(n, title) }
func (w *world) SetDraft(_ *testing.T, n int, draft bool)  { w.repo.SetDraft(n, draft) }
func (w *world) Close(_ *testing.T, n int)                 { w.repo.Close(n) }
func (w *world) Reopen(_ *testing.T, n int)                { w.repo.Reopen(n) }
func (w *world) Merge(_ *testing.T, n int)                 { w.repo.Merge(n) }
func (w *world) DeleteFork(_ *testing.T, n int)            { w.repo.DeleteFork(n) }
func (w *world) GitHead(*testing.T, string) string         { return "" }
func (w *world) HookHeader() string                        { return "X-Gitlab-Token" }

func (w *world) Allow(_ *testing.T, login string, permission forges.Permission) {
	w.repo.Allow(login, permission)
}

// Comment writes one between those that GitLab writes itself.
func (w *world) Comment(_ *testing.T, n int, login, body string) int64 {
	w.repo.Note(n, "added 1 commit")
	return w.repo.Comment(n, login, body)
}

func (w *world) head() string {
	w.heads++
	return fmt.Sprintf("%040x", w.heads)
}

func (w *world) Open(_ *testing.T, opening conformance.Opening) (number int, head string) {
	head = w.head()
	return w.repo.Open(forgetest.Opening{Title: opening.Title, Author: opening.Author, Draft: opening.Draft, Fork: opening.Fork, Head: head}), head
}

func (w *world) Push(_ *testing.T, n int) (head string) {
	head = w.head()
	w.repo.Push(n, head)
	return head
}

func (w *world) Hook(_ *testing.T, kind forges.EventKind, n int, secret string) (header http.Header, body []byte) {
	return w.server.Hook(w.repo, kind, n, secret)
}

func (w *world) SignHook(_ []byte, secret string) http.Header {
	return http.Header{"X-Gitlab-Event": {"Push Hook"}, "X-Gitlab-Token": {secret}}
}

func TestPollsAreConditional(t *testing.T) {
	server := forgetest.NewGitLab(t)
	repo := server.AddRepository(project, true)
	repo.Allow("gitvirt", forges.Write)
	repo.Open(forgetest.Opening{Head: strings.Repeat("a", 40)})
	c, err := gitlab.New(gitlab.Config{URL: server.URL(), Project: project, TokenFile: server.TokenFile(t, "gitvirt")})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if i == 2 {
			repo.Retitle(1, "changed")
		}
		got, err := c.Changed(t.Context(), time.Unix(1, 0))
		if err != nil || len(got) != 1 || i >= 2 != (got[0].Title == "changed") {
			t.Errorf("poll %d: %+v, %v", i, got, err)
		}
	}
	var statuses []int
	for _, r := range server.Requests() {
		statuses = append(statuses, r.Status)
	}
	if got := fmt.Sprint(statuses); got != "[200 304 200 304]" {
		t.Errorf("the answers are %s", got)
	}
}

func TestSecondaryLimit(t *testing.T) {
	clock := forgetest.NewClock()
	server := forgetest.NewGitLab(t, forgetest.WithNow(clock.Now))
	server.AddRepository(project, false)
	c, err := gitlab.New(gitlab.Config{URL: server.URL(), Project: project, TokenFile: server.TokenFile(t, "gitvirt"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	server.Limit(1, clock.Now().Add(40*time.Second))
	if _, err := c.Changed(t.Context(), time.Unix(1, 0)); err != nil {
		t.Error(err)
	}
	_, err = c.Changed(t.Context(), time.Unix(1, 0))
	var limited *forges.RateLimitedError
	if !errors.As(err, &limited) || limited.Until.Before(clock.Now().Add(39*time.Second)) {
		t.Errorf("with nothing left: %v", err)
	}
	clock.Advance(time.Minute)
	if _, err := c.Changed(t.Context(), time.Unix(1, 0)); err != nil {
		t.Error(err)
	}
}

func TestConfig(t *testing.T) {
	good := gitlab.Config{URL: "https://gitlab.com", Project: project, TokenFile: "/token"}
	if _, err := gitlab.New(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*gitlab.Config){
		"want https://HOST": func(c *gitlab.Config) { c.URL = "gitlab.com" },
		`"fleet"; want`:     func(c *gitlab.Config) { c.Project = "fleet" },
		`"a/../b"; want`:    func(c *gitlab.Config) { c.Project = "a/../b" },
		"want a token file": func(c *gitlab.Config) { c.TokenFile = "" },
	} {
		config := good
		change(&config)
		if _, err := gitlab.New(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
