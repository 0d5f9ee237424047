package github_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/conformance"
	"github.com/gitvirt/gitvirt/forges/forgetest"
	"github.com/gitvirt/gitvirt/forges/github"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformanceWithToken(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.World { return newWorld(t, false) })
}

func TestConformanceAsApp(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.World { return newWorld(t, true) })
}

// world is a repository on a test server that answers as GitHub does.
type world struct {
	server *forgetest.GitHub
	clock  *forgetest.Clock
	repo   *forgetest.Repository
	app    *forgetest.App
	heads  int
}

func newWorld(t *testing.T, asApp bool) *world {
	w := &world{clock: forgetest.NewClock()}
	w.server = forgetest.NewGitHub(t, forgetest.WithNow(w.clock.Now))
	w.repo = w.server.AddRepository("shop/fleet", false)
	if asApp {
		w.app = w.server.AddApp(t, 7, "gitvirt")
		w.app.Install(w.repo)
	} else {
		w.repo.Allow("gitvirt", forges.Admin)
	}
	return w
}

func (w *world) client(t *testing.T, tokenFile string, app *github.App) *github.Client {
	t.Helper()
	c, err := github.New(github.Config{URL: w.server.URL(), Owner: "shop", Repository: "fleet", TokenFile: tokenFile, App: app, Clock: w.clock})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) Name() string {
	return strings.TrimPrefix(w.server.URL(), "http://") + "/shop/fleet"
}

func (w *world) Account() string {
	if w.app != nil {
		return "gitvirt[bot]"
	}
	return "gitvirt"
}

func (w *world) Forge(t *testing.T) forges.Forge {
	if w.app != nil {
		return w.client(t, "", &github.App{ID: 7, PrivateKeyFile: w.app.KeyFile(t)})
	}
	return w.client(t, w.server.TokenFile(t, "gitvirt"), nil)
}

func (w *world) As(t *testing.T, login string, permission forges.Permission) forges.Forge {
	if permission != forges.NoPermission {
		w.repo.Allow(login, permission)
	}
	return w.client(t, w.server.TokenFile(t, login), nil)
}

func (w *world) WithTokenFile(t *testing.T, file string) (forges.Forge, string) {
	if w.app != nil {
		return nil, ""
	}
	return w.client(t, file, nil), w.server.AddUser("gitvirt")
}

func (w *world) Requests() int                             { return len(w.server.Requests()) }
func (w *world) Server() *forgetest.Server                 { return w.server.Server }
func (w *world) Clock() *forgetest.Clock                   { return w.clock }
func (w *world) PageSize() int                             { return 100 }
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
func (w *world) HookHeader() string                        { return "X-Hub-Signature-256" }

func (w *world) Allow(_ *testing.T, login string, permission forges.Permission) {
	w.repo.Allow(login, permission)
}

func (w *world) Comment(_ *testing.T, n int, login, body string) int64 {
	return w.repo.Comment(n, login, body)
}

func (w *world) head() string {
	w.heads++
	return fmt.Sprintf("%040x", w.heads)
}

func (w *world) Open(_ *testing.T, opening conformance.Opening) (int, string) {
	head := w.head()
	return w.repo.Open(forgetest.Opening{Title: opening.Title, Author: opening.Author, Draft: opening.Draft, Fork: opening.Fork, Head: head}), head
}

func (w *world) Push(_ *testing.T, n int) string {
	head := w.head()
	w.repo.Push(n, head)
	return head
}

func (w *world) Hook(_ *testing.T, kind forges.EventKind, n int, secret string) (http.Header, []byte) {
	return w.server.Hook(w.repo, kind, n, secret)
}

func (w *world) SignHook(body []byte, secret string) http.Header {
	return http.Header{"X-Github-Event": {"push"}, "X-Hub-Signature-256": {"sha256=" + forgetest.Sign(body, secret)}}
}

func TestInstallationTokensAreRenewed(t *testing.T) {
	w := newWorld(t, true)
	f := w.Forge(t)
	ask := func(what string, issued int) {
		t.Helper()
		if _, err := f.Changed(t.Context(), time.Time{}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if got := w.app.Issued(); got != issued {
			t.Errorf("%s: %d tokens were issued, want %d", what, got, issued)
		}
	}
	ask("the first", 1)
	ask("it is kept", 1)
	w.clock.Advance(54 * time.Minute)
	ask("it is good for six minutes", 1)
	w.clock.Advance(2 * time.Minute)
	ask("it ends soon", 2)

	// A renewal that fails costs nothing as long as the token is good.
	w.clock.Advance(56 * time.Minute)
	tokens := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/access_tokens") }
	w.server.Fail(forgetest.Fault{Status: 500, Match: tokens})
	ask("no new one is to be had", 2)
	w.server.Heal()
	ask("there is one again", 3)

	w.app.RevokeTokens()
	ask("revoked", 4)
	w.app.Uninstall()
	if _, err := f.Changed(t.Context(), time.Time{}); !errors.Is(err, forges.ErrDenied) || !strings.Contains(err.Error(), "the App is not installed for shop/fleet") {
		t.Errorf("uninstalled: %v", err)
	}
	w.app.Install(w.repo)
	ask("installed anew", 5)

	for _, garbage := range []string{"null", "{}", "<html>", `{"token": ""}`, `{"token": "x"}`} {
		w.app.RevokeTokens()
		w.server.Fail(forgetest.Fault{Body: garbage, Match: tokens})
		if _, err := f.Changed(t.Context(), time.Time{}); !errors.Is(err, forges.ErrUnavailable) {
			t.Errorf("%s for a token: %v", garbage, err)
		}
		w.server.Heal()
	}
}

func TestAppKeys(t *testing.T) {
	w := newWorld(t, true)
	other := w.server.AddApp(t, 8, "other")
	text := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(text, []byte("s3cret words"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		filepath.Join(t.TempDir(), "none"): "no such file",
		text:                               "holds no RSA key in PEM",
		other.KeyFile(t):                   "could not be decoded",
	} {
		_, err := w.client(t, "", &github.App{ID: 7, PrivateKeyFile: file}).Changed(t.Context(), time.Time{})
		if !errors.Is(err, forges.ErrDenied) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("want %q: %v", want, err)
		}
	}
}

func TestAnnotations(t *testing.T) {
	w := newWorld(t, true)
	_, head := w.Open(t, conformance.Opening{})
	var want []forges.Annotation
	for i := range 120 {
		want = append(want, forges.Annotation{Path: "vms/web.yaml", Line: i + 1, Message: fmt.Sprintf("mistake %d", i), Warning: i%3 == 0})
	}
	status := forges.Status{Context: "gitvirt/plan", State: forges.Failure, Description: "120 mistakes", Annotations: want}
	if err := w.Forge(t).SetStatus(t.Context(), head, status); err != nil {
		t.Fatal(err)
	}
	if got := w.repo.Annotations(head, "gitvirt/plan"); !slices.Equal(got, want) {
		t.Errorf("%d annotations:\n%v", len(got), got)
	}
	status.Annotations = make([]forges.Annotation, 2000)
	for i := range status.Annotations {
		status.Annotations[i] = forges.Annotation{Path: "vms/web.yaml", Message: "a mistake"}
	}
	if err := w.Forge(t).SetStatus(t.Context(), head, status); err != nil {
		t.Fatal(err)
	}
	if got := w.repo.Annotations(head, "gitvirt/plan"); len(got) != 500 || got[0].Line != 1 {
		t.Errorf("%d annotations of 2000, the first at line %d", len(got), got[0].Line)
	}
}

func TestPollsCostNothingOfTheLimit(t *testing.T) {
	w := newWorld(t, false)
	f := w.Forge(t)
	w.Open(t, conformance.Opening{})
	since := w.clock.Now()
	if _, err := f.Changed(t.Context(), since); err != nil {
		t.Fatal(err)
	}
	w.server.Limit(0, w.clock.Now().Add(time.Hour))
	w.server.Forget()
	// With nothing left of the limit an unchanged list is answered still, since GitHub does not count what it answers with 304.
	if _, err := f.Changed(t.Context(), since); err == nil {
		t.Error("the test server counts nothing")
	}
	w.server.Limit(1, w.clock.Now().Add(time.Hour))
	w.clock.Advance(3 * time.Hour)
	w.server.Heal()
	w.server.Limit(1, w.clock.Now().Add(time.Hour))
	for range 5 {
		if _, err := f.Changed(t.Context(), since); err != nil {
			t.Error(err)
		}
	}
	for _, r := range w.server.Requests()[1:] {
		if r.Status != http.StatusNotModified {
			t.Errorf("%s", r)
		}
	}
}

func TestOwnServers(t *testing.T) {
	server := forgetest.NewGitHub(t, forgetest.WithTLS(), forgetest.WithPrefix("/code"))
	repo := server.AddRepository("shop/fleet", true)
	repo.Allow("gitvirt", forges.Write)
	repo.Open(forgetest.Opening{Head: strings.Repeat("a", 40)})
	config := github.Config{URL: server.URL() + "/", Owner: "shop", Repository: "fleet", TokenFile: server.TokenFile(t, "gitvirt"), Clock: forgetest.NewClock()}
	c, err := github.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Changed(t.Context(), time.Time{}); !errors.Is(err, forges.ErrUnavailable) || !strings.Contains(err.Error(), "its certificate is not trusted") {
		t.Errorf("without its certificate: %v", err)
	}
	config.CAFile = server.CAFile(t)
	if c, err = github.New(config); err != nil {
		t.Fatal(err)
	}
	got, err := c.Changed(t.Context(), time.Time{})
	if err != nil || len(got) != 1 {
		t.Errorf("with its certificate: %v, %v", got, err)
	}
	if !strings.HasSuffix(c.Name(), "/code/shop/fleet") {
		t.Errorf("its name is %s", c.Name())
	}
}

func TestConfig(t *testing.T) {
	good := github.Config{URL: "https://github.com", Owner: "shop", Repository: "fleet", TokenFile: "/token"}
	if _, err := github.New(good); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*github.Config){
		"want https://HOST":         func(c *github.Config) { c.URL = "github.com" },
		"name a token file instead": func(c *github.Config) { c.URL = "https://ann:s3cret@github.com" },
		"cannot be read":            func(c *github.Config) { c.URL = "https://ann:s3cret@git hub.com" },
		"would be readable":         func(c *github.Config) { c.URL = "http://github.example.com" },
		"want OWNER/NAME":           func(c *github.Config) { c.Owner = "" },
		`"shop/../x"; want`:         func(c *github.Config) { c.Repository = "../x" },
		"either a token file or":    func(c *github.Config) { c.TokenFile = "" },
		"a token file or a GitHub":  func(c *github.Config) { c.App = &github.App{ID: 7, PrivateKeyFile: "/key"} },
		"wants its ID":              func(c *github.Config) { c.TokenFile, c.App = "", &github.App{PrivateKeyFile: "/key"} },
		"holds no certificate":      func(c *github.Config) { c.CAFile = "/dev/null" },
		"that the forge is trusted": func(c *github.Config) { c.CAFile = "/no/such/file" },
	} {
		config := good
		change(&config)
		if _, err := github.New(config); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("want %q: %v", want, err)
		}
	}
}
