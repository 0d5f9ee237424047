package forgetest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// App is a GitHub App: who it is, and where it is installed.
type App struct {
	ID   int64
	Slug string
	// Statuses lets it set commit statuses, which it needs no right for when it makes check runs.
	Statuses bool
	// TokenLife is how long its installation tokens are good; an hour when 0, as GitHub's.
	TokenLife time.Duration

	server        *GitHub
	key           *rsa.PrivateKey
	user          *user
	installations map[int64]map[*Repository]bool
	issued        int
}

// AddApp makes an App. Its account is the slug with "[bot]".
func (g *GitHub) AddApp(tb testing.TB, id int64, slug string) *App {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	bot := g.user(slug + "[bot]")
	bot.bot = true
	app := &App{ID: id, Slug: slug, server: g, key: key, user: bot, installations: map[int64]map[*Repository]bool{}}
	g.apps[id] = app
	return app
}

// KeyFile writes the App's private key into a file, in the format that GitHub hands out.
func (a *App) KeyFile(tb testing.TB) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "app.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(a.key)})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// Install installs it for some repositories and returns the installation's ID.
func (a *App) Install(repositories ...*Repository) int64 {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	id := a.server.id()
	a.installations[id] = map[*Repository]bool{}
	for _, r := range repositories {
		a.installations[id][r] = true
	}
	return id
}

// Uninstall removes all its installations, and their tokens with them.
func (a *App) Uninstall() {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	clear(a.installations)
	a.revoke()
}

// RevokeTokens makes the tokens of its installations worthless.
func (a *App) RevokeTokens() {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	a.revoke()
}

func (a *App) revoke() {
	for secret, t := range a.server.tokens {
		if t.app == a {
			delete(a.server.tokens, secret)
		}
	}
}

// Issued returns how many installation tokens it was given.
func (a *App) Issued() int {
	a.server.mu.Lock()
	defer a.server.mu.Unlock()
	return a.issued
}

// asApp answers a request that an App has signed with its key.
func (g *GitHub) asApp(w http.ResponseWriter, r *http.Request, handler func(http.ResponseWriter, *http.Request, *App)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	app, err := g.checkJWT(bearer(r))
	if err != nil {
		githubError(w, http.StatusUnauthorized, err.Error())
		return
	}
	g.rate(w)
	handler(w, r, app)
}

// checkJWT checks a token as GitHub does: RS256 by the App's key, issued in the past, good for ten minutes at most.
func (g *GitHub) checkJWT(text string) (*App, error) {
	unreadable := errors.New("a JSON web token could not be decoded")
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return nil, unreadable
	}
	var header struct{ Alg string }
	var claims struct {
		Iss      any
		Iat, Exp float64
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || decodePart(parts[0], &header) != nil || decodePart(parts[1], &claims) != nil || header.Alg != "RS256" {
		return nil, unreadable
	}
	id, err := strconv.ParseInt(fmt.Sprint(claims.Iss), 10, 64)
	app := g.apps[id]
	if err != nil || app == nil {
		return nil, errors.New("'Issuer' claim ('iss') must be an Integer")
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(&app.key.PublicKey, crypto.SHA256, sum[:], signature) != nil {
		return nil, unreadable
	}
	now := float64(time.Now().Unix()) // JWTs are dated by whoever signs, not by the server's clock of a test
	switch {
	case claims.Iat > now:
		return nil, errors.New("'Issued at' claim ('iat') must be an Integer representing the time that the assertion was issued")
	case claims.Exp <= now || claims.Exp > now+600:
		return nil, errors.New("'Expiration time' claim ('exp') is too far in the future")
	}
	return app, nil
}

func decodePart(part string, into any) error {
	content, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}

func getApp(w http.ResponseWriter, _ *http.Request, app *App) {
	answer(w, http.StatusOK, object{"id": app.ID, "slug": app.Slug, "name": app.Slug})
}

func (g *GitHub) installationOf(w http.ResponseWriter, r *http.Request, app *App) {
	repo := g.repos[strings.ToLower(r.PathValue("owner")+"/"+r.PathValue("repo"))]
	for id, repos := range app.installations {
		if repo != nil && repos[repo] {
			answer(w, http.StatusOK, object{"id": id, "app_id": app.ID, "app_slug": app.Slug})
			return
		}
	}
	githubError(w, http.StatusNotFound, "Not Found")
}

func (g *GitHub) accessToken(w http.ResponseWriter, r *http.Request, app *App) {
	id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
	repos, ok := app.installations[id]
	if !ok {
		githubError(w, http.StatusNotFound, "Not Found")
		return
	}
	life := app.TokenLife
	if life == 0 {
		life = time.Hour
	}
	expires := g.now().Add(life).UTC().Truncate(time.Second)
	app.issued++
	secret := g.newToken(&token{user: app.user, expires: expires, app: app, repos: repos})
	answer(w, http.StatusCreated, object{"token": secret, "expires_at": expires, "permissions": object{"checks": "write"}})
}
