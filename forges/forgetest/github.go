package forgetest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gitvirt/gitvirt/forges"
)

// GitHub answers as a GitHub Enterprise Server does, whose API is below /api/v3: https://docs.github.com/en/rest.
type GitHub struct {
	*Server
	apps map[int64]*App
}

// githubCommentLimit is how long GitHub lets a comment be, in characters.
const githubCommentLimit = 65536

// NewGitHub starts a server that ends with the test.
func NewGitHub(tb testing.TB, options ...Option) *GitHub {
	tb.Helper()
	g := &GitHub{apps: map[int64]*App{}}
	g.Server = newServer(tb, time.Second, func(s *Server, mux *http.ServeMux) {
		g.Server = s
		g.routes(mux)
	}, options)
	return g
}

func (g *GitHub) routes(mux *http.ServeMux) {
	const repo = "/api/v3/repos/{owner}/{repo}"
	handle := func(method, path string, needs forges.Permission, handler func(*githubRequest)) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) { g.handle(w, r, needs, handler) })
	}
	handle("GET", "/api/v3/user", forges.NoPermission, func(q *githubRequest) { q.user() })
	handle("GET", "/api/v3/users/{login}", forges.NoPermission, func(q *githubRequest) { q.userNamed() })
	handle("GET", repo+"/pulls", forges.Read, func(q *githubRequest) { q.listPulls() })
	handle("GET", repo+"/pulls/{number}", forges.Read, func(q *githubRequest) { q.getPull() })
	handle("GET", repo+"/issues/{number}/comments", forges.Read, func(q *githubRequest) { q.listComments() })
	handle("POST", repo+"/issues/{number}/comments", forges.Read, func(q *githubRequest) { q.createComment() })
	handle("PATCH", repo+"/issues/comments/{id}", forges.Read, func(q *githubRequest) { q.editComment() })
	handle("DELETE", repo+"/issues/comments/{id}", forges.Read, func(q *githubRequest) { q.deleteComment() })
	handle("POST", repo+"/statuses/{sha}", forges.Write, func(q *githubRequest) { q.createStatus() })
	handle("GET", repo+"/commits/{sha}/status", forges.Read, func(q *githubRequest) { q.combinedStatus() })
	handle("GET", repo+"/collaborators/{login}/permission", forges.Write, func(q *githubRequest) { q.permission() })
	handle("POST", repo+"/check-runs", forges.Write, func(q *githubRequest) { q.createRun() })
	handle("PATCH", repo+"/check-runs/{id}", forges.Write, func(q *githubRequest) { q.updateRun() })
	handle("GET", repo+"/commits/{sha}/check-runs", forges.Read, func(q *githubRequest) { q.listRuns() })
	mux.HandleFunc("GET /api/v3/app", func(w http.ResponseWriter, r *http.Request) { g.asApp(w, r, getApp) })
	mux.HandleFunc("GET "+repo+"/installation", func(w http.ResponseWriter, r *http.Request) { g.asApp(w, r, g.installationOf) })
	mux.HandleFunc("POST /api/v3/app/installations/{id}/access_tokens", func(w http.ResponseWriter, r *http.Request) { g.asApp(w, r, g.accessToken) })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { githubError(w, http.StatusNotFound, "Not Found") })
}

// githubRequest is one that is being answered; the server's lock is held.
type githubRequest struct {
	*GitHub
	w     http.ResponseWriter
	r     *http.Request
	token *token
	repo  *Repository
}

func githubError(w http.ResponseWriter, status int, message string) {
	answer(w, status, object{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

func (q *githubRequest) fail(status int, message string) { githubError(q.w, status, message) }

// handle finds out who asks and for what, and counts the request against the limit.
func (g *GitHub) handle(w http.ResponseWriter, r *http.Request, needs forges.Permission, handler func(*githubRequest)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := &githubRequest{GitHub: g, w: w, r: r, token: g.tokens[bearer(r)]}
	if q.token == nil || !q.token.expires.IsZero() && !g.now().Before(q.token.expires) {
		q.fail(http.StatusUnauthorized, "Bad credentials")
		return
	}
	if !g.spend() {
		g.rate(w)
		q.fail(http.StatusForbidden, "API rate limit exceeded for user ID "+strconv.FormatInt(q.token.user.id, 10)+".")
		return
	}
	g.rate(w)
	if needs > forges.NoPermission {
		q.repo = g.repos[strings.ToLower(r.PathValue("owner")+"/"+r.PathValue("repo"))]
		if q.repo == nil || q.may() < forges.Read {
			q.fail(http.StatusNotFound, "Not Found") // what is hidden is not there
			return
		}
		if q.may() < needs {
			q.fail(http.StatusForbidden, "Resource not accessible by personal access token")
			return
		}
	}
	handler(q)
}

func bearer(r *http.Request) string {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") || strings.EqualFold(scheme, "token") {
		return secret
	}
	return ""
}

func (q *githubRequest) may() forges.Permission {
	if q.token.app != nil {
		if q.token.repos[q.repo] {
			return forges.Write
		}
		return forges.NoPermission
	}
	return q.repo.may(q.token.user.login)
}

func (g *GitHub) rate(w http.ResponseWriter) {
	remaining, reset := 4999, g.now().Add(time.Hour)
	if g.limited {
		remaining, reset = g.remaining, g.reset
	}
	w.Header().Set("X-RateLimit-Limit", "5000")
	w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(remaining))
	w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
	w.Header().Set("X-RateLimit-Resource", "core")
}

// conditional answers with an ETag, or 304 to who has it; GitHub does not count the latter.
func (q *githubRequest) conditional(content any) {
	text, err := json.Marshal(content)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(append([]byte(bearer(q.r)), text...))
	etag := `W/"` + hex.EncodeToString(sum[:]) + `"`
	q.w.Header().Set("ETag", etag)
	if q.r.Header.Get("If-None-Match") == etag {
		if q.limited {
			q.remaining++
		}
		q.w.WriteHeader(http.StatusNotModified)
		return
	}
	q.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = q.w.Write(text) // into a recorder
}

func listed[T any](q *githubRequest, items []T, show func(T) object) []object {
	part, _, next, last := page(q.r.URL.Query(), items)
	if next > 0 || last > 1 {
		q.w.Header().Set("Link", links(q.Server, q.r, next, last))
	}
	result := []object{}
	for _, item := range part {
		result = append(result, show(item))
	}
	return result
}

func (q *githubRequest) decode(into any) bool {
	if err := json.NewDecoder(q.r.Body).Decode(into); err != nil {
		q.fail(http.StatusBadRequest, "Problems parsing JSON")
		return false
	}
	return true
}

func githubUser(u *user) object {
	kind := "User"
	if u.bot {
		kind = "Bot"
	}
	return object{"login": u.login, "id": u.id, "type": kind}
}

func (q *githubRequest) user() {
	if q.token.app != nil {
		q.fail(http.StatusForbidden, "Resource not accessible by integration")
		return
	}
	answer(q.w, http.StatusOK, githubUser(q.token.user))
}

func (q *githubRequest) userNamed() {
	if u := q.users[strings.ToLower(q.r.PathValue("login"))]; u != nil {
		answer(q.w, http.StatusOK, githubUser(u))
		return
	}
	q.fail(http.StatusNotFound, "Not Found")
}

func (q *githubRequest) pull(p *pull) object {
	state := "open"
	if p.state != forges.Open {
		state = "closed"
	}
	repo := func(id int64) any {
		if id == 0 {
			return nil
		}
		return object{"id": id, "full_name": q.repo.path, "fork": id != q.repo.id}
	}
	shown := object{
		"id": p.id, "number": p.number, "state": state, "title": p.title, "user": githubUser(p.author), "draft": p.draft,
		"html_url": fmt.Sprintf("%s/%s/pull/%d", q.web, q.repo.path, p.number), "body": nil,
		"head":       object{"ref": p.branch, "sha": p.head, "repo": repo(p.headRepo)},
		"base":       object{"ref": p.base, "sha": strings.Repeat("0", 40), "repo": repo(q.repo.id)},
		"created_at": p.created, "updated_at": p.updated, "merged_at": nil,
	}
	if p.state == forges.Merged {
		shown["merged_at"], shown["merge_commit_sha"] = p.updated, p.mergeHash
	}
	return shown
}

func (q *githubRequest) listPulls() {
	query := q.r.URL.Query()
	pulls := q.repo.byUpdate(or(query.Get("state"), "open"))
	if query.Get("sort") != "updated" {
		slices.SortFunc(pulls, func(a, b *pull) int { return b.number - a.number })
	}
	if query.Get("direction") == "asc" {
		slices.Reverse(pulls)
	}
	q.conditional(listed(q, pulls, q.pull))
}

func (q *githubRequest) numbered() *pull {
	number, err := strconv.Atoi(q.r.PathValue("number"))
	if p := q.repo.pulls[number]; err == nil && p != nil {
		return p
	}
	q.fail(http.StatusNotFound, "Not Found")
	return nil
}

func (q *githubRequest) getPull() {
	if p := q.numbered(); p != nil {
		q.conditional(q.pull(p))
	}
}

func githubComment(c *comment) object {
	return object{"id": c.id, "user": githubUser(c.author), "body": c.body, "created_at": c.created, "updated_at": c.updated}
}

func (q *githubRequest) listComments() {
	p := q.numbered()
	if p == nil {
		return
	}
	comments := slices.DeleteFunc(slices.Clone(p.comments), func(c *comment) bool { return c.system })
	q.conditional(listed(q, comments, githubComment))
}

// text reads the text of a comment.
func (q *githubRequest) text() (string, bool) {
	var content struct{ Body string }
	if !q.decode(&content) {
		return "", false
	}
	switch {
	case strings.TrimSpace(content.Body) == "":
		q.fail(http.StatusUnprocessableEntity, "Validation Failed")
		return "", false
	case utf8.RuneCountInString(content.Body) > githubCommentLimit:
		answer(q.w, http.StatusUnprocessableEntity, object{"message": "Validation Failed", "errors": []object{{
			"resource": "IssueComment", "code": "unprocessable", "field": "data", "message": "Body is too long (maximum is 65536 characters)",
		}}})
		return "", false
	}
	return content.Body, true
}

func (q *githubRequest) createComment() {
	p := q.numbered()
	if p == nil {
		return
	}
	if text, ok := q.text(); ok {
		answer(q.w, http.StatusCreated, githubComment(q.repo.comment(p, q.token.user, text)))
	}
}

// ownComment finds a comment that the asker may change.
func (q *githubRequest) ownComment() (*pull, *comment) {
	id, _ := strconv.ParseInt(q.r.PathValue("id"), 10, 64)
	p, c := q.repo.findComment(id)
	switch {
	case c == nil:
		q.fail(http.StatusNotFound, "Not Found")
		return nil, nil
	case c.author != q.token.user && q.may() < forges.Write:
		q.fail(http.StatusForbidden, "Must have admin rights to Repository.")
		return nil, nil
	}
	return p, c
}

func (q *githubRequest) editComment() {
	p, c := q.ownComment()
	if c == nil {
		return
	}
	if text, ok := q.text(); ok {
		c.body, c.updated = text, q.time()
		p.updated = c.updated
		answer(q.w, http.StatusOK, githubComment(c))
	}
}

func (q *githubRequest) deleteComment() {
	if p, c := q.ownComment(); c != nil {
		p.remove(c.id)
		p.updated = q.time()
		q.w.WriteHeader(http.StatusNoContent)
	}
}

func (q *githubRequest) permission() {
	u := q.users[strings.ToLower(q.r.PathValue("login"))]
	if u == nil {
		q.fail(http.StatusNotFound, q.r.PathValue("login")+" is not a user")
		return
	}
	permission := q.repo.may(u.login).String()
	answer(q.w, http.StatusOK, object{"permission": permission, "role_name": permission, "user": githubUser(u)})
}
