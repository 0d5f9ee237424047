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

// GitLab answers as GitLab does, whose API is below /api/v4: https://docs.gitlab.com/api/rest.
type GitLab struct{ *Server }

// gitlabCommentLimit is how long GitLab lets a comment be, in characters.
const gitlabCommentLimit = 1_000_000

// NewGitLab starts a server that ends with the test.
func NewGitLab(tb testing.TB, options ...Option) *GitLab {
	tb.Helper()
	g := &GitLab{}
	g.Server = newServer(tb, time.Millisecond, func(s *Server, mux *http.ServeMux) {
		g.Server = s
		g.routes(mux)
	}, options)
	return g
}

func (g *GitLab) routes(mux *http.ServeMux) {
	const project = "/api/v4/projects/{project}"
	handle := func(method, path string, needs forges.Permission, handler func(*gitlabRequest)) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) { g.handle(w, r, needs, handler) })
	}
	handle("GET", "/api/v4/user", forges.NoPermission, func(q *gitlabRequest) { answer(q.w, http.StatusOK, gitlabUser(q.asker)) })
	handle("GET", "/api/v4/users", forges.NoPermission, func(q *gitlabRequest) { q.usersNamed() })
	handle("GET", project, forges.Read, func(q *gitlabRequest) { q.getProject() })
	handle("GET", project+"/members/all/{user}", forges.Read, func(q *gitlabRequest) { q.member() })
	handle("GET", project+"/merge_requests", forges.Read, func(q *gitlabRequest) { q.listMerges() })
	handle("GET", project+"/merge_requests/{number}", forges.Read, func(q *gitlabRequest) { q.getMerge() })
	handle("GET", project+"/merge_requests/{number}/notes", forges.Read, func(q *gitlabRequest) { q.listNotes() })
	handle("POST", project+"/merge_requests/{number}/notes", forges.Read, func(q *gitlabRequest) { q.createNote() })
	handle("PUT", project+"/merge_requests/{number}/notes/{id}", forges.Read, func(q *gitlabRequest) { q.editNote() })
	handle("DELETE", project+"/merge_requests/{number}/notes/{id}", forges.Read, func(q *gitlabRequest) { q.deleteNote() })
	handle("POST", project+"/statuses/{sha}", forges.Write, func(q *gitlabRequest) { q.createStatus() })
	handle("GET", project+"/repository/commits/{sha}/statuses", forges.Read, func(q *gitlabRequest) { q.listStatuses() })
	handle("GET", project+"/repository/commits/{sha}/merge_requests", forges.Read, func(q *gitlabRequest) { q.mergesOfCommit() })
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusNotFound, object{"error": "404 Not Found"})
	})
}

// gitlabRequest is one that is being answered; the server's lock is held.
type gitlabRequest struct {
	*GitLab
	w     http.ResponseWriter
	r     *http.Request
	asker *user
	repo  *Repository
}

func (q *gitlabRequest) fail(status int, message any) {
	answer(q.w, status, object{"message": message})
}

// handle finds out who asks and for what, and counts the request against the limit.
func (g *GitLab) handle(w http.ResponseWriter, r *http.Request, needs forges.Permission, handler func(*gitlabRequest)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	q := &gitlabRequest{GitLab: g, w: w, r: r}
	secret := r.Header.Get("PRIVATE-TOKEN")
	if secret == "" {
		secret = bearer(r)
	}
	known := g.tokens[secret]
	if known == nil {
		q.fail(http.StatusUnauthorized, "401 Unauthorized")
		return
	}
	q.asker = known.user
	answered := g.spend()
	g.rate(w)
	if !answered {
		w.Header().Set("Retry-After", strconv.Itoa(int(g.reset.Sub(g.now()).Seconds())+1))
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("Retry later\n")) // into a recorder
		return
	}
	if needs > forges.NoPermission {
		q.repo = g.repos[strings.ToLower(r.PathValue("project"))]
		if q.repo == nil || q.may() < forges.Read {
			q.fail(http.StatusNotFound, "404 Project Not Found") // what is hidden is not there
			return
		}
		if q.may() < needs {
			q.fail(http.StatusForbidden, "403 Forbidden")
			return
		}
	}
	handler(q)
}

func (q *gitlabRequest) may() forges.Permission { return q.repo.may(q.asker.login) }

func (g *GitLab) rate(w http.ResponseWriter) {
	remaining, reset := 1999, g.now().Add(time.Minute)
	if g.limited {
		remaining, reset = g.remaining, g.reset
	}
	w.Header().Set("RateLimit-Limit", "2000")
	w.Header().Set("RateLimit-Remaining", strconv.Itoa(remaining))
	w.Header().Set("RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
}

// list answers with a page, and an ETag that stands for it.
func list[T any](q *gitlabRequest, items []T, show func(T) object) {
	part, number, next, last := page(q.r.URL.Query(), items)
	result := []object{}
	for _, item := range part {
		result = append(result, show(item))
	}
	text, err := json.Marshal(result)
	if err != nil {
		panic(err)
	}
	header := q.w.Header()
	sum := sha256.Sum256(text)
	etag := `W/"` + hex.EncodeToString(sum[:16]) + `"`
	header.Set("ETag", etag)
	header.Set("X-Page", strconv.Itoa(number))
	header.Set("X-Total", strconv.Itoa(len(items)))
	header.Set("X-Total-Pages", strconv.Itoa(last))
	header.Set("X-Next-Page", "")
	if next > 0 {
		header.Set("X-Next-Page", strconv.Itoa(next))
	}
	header.Set("Link", links(q.Server, q.r, next, last))
	if q.r.Header.Get("If-None-Match") == etag {
		q.w.WriteHeader(http.StatusNotModified)
		return
	}
	header.Set("Content-Type", "application/json")
	_, _ = q.w.Write(text) // into a recorder
}

func gitlabUser(u *user) object {
	return object{"id": u.id, "username": u.login, "name": u.login, "state": "active"}
}

func (q *gitlabRequest) usersNamed() {
	var found []*user
	if u := q.users[strings.ToLower(q.r.URL.Query().Get("username"))]; u != nil {
		found = append(found, u)
	}
	list(q, found, gitlabUser)
}

func (q *gitlabRequest) getProject() {
	visibility := "public"
	if q.repo.private {
		visibility = "private"
	}
	answer(q.w, http.StatusOK, object{"id": q.repo.id, "path_with_namespace": q.repo.path, "visibility": visibility})
}

func (q *gitlabRequest) member() {
	for key, u := range q.users {
		permission, ok := q.repo.allowed[key]
		if strconv.FormatInt(u.id, 10) != q.r.PathValue("user") || !ok || permission == forges.NoPermission {
			continue
		}
		level := map[forges.Permission]int{forges.Read: 20, forges.Write: 30, forges.Admin: 40}[permission]
		answer(q.w, http.StatusOK, object{"id": u.id, "username": u.login, "state": "active", "access_level": level})
		return
	}
	q.fail(http.StatusNotFound, "404 Not found")
}

func (q *gitlabRequest) merge(p *pull) object {
	state := map[forges.State]string{forges.Open: "opened", forges.Closed: "closed", forges.Merged: "merged"}[p.state]
	var source any
	if p.headRepo != 0 {
		source = p.headRepo
	}
	return object{
		"id": p.id, "iid": p.number, "project_id": q.repo.id, "title": p.title, "state": state, "draft": p.draft, "author": gitlabUser(p.author),
		"source_branch": p.branch, "target_branch": p.base, "source_project_id": source, "target_project_id": q.repo.id, "sha": p.head,
		"web_url": fmt.Sprintf("%s/%s/-/merge_requests/%d", q.web, q.repo.path, p.number), "created_at": p.created, "updated_at": p.updated,
	}
}

func (q *gitlabRequest) listMerges() {
	query := q.r.URL.Query()
	state := map[string]string{"": "all", "all": "all", "opened": "open", "closed": "closed", "merged": "closed"}[query.Get("state")]
	merges := q.repo.byUpdate(state)
	if query.Get("order_by") != "updated_at" {
		slices.SortFunc(merges, func(a, b *pull) int { return b.number - a.number })
	}
	if query.Get("sort") == "asc" {
		slices.Reverse(merges)
	}
	list(q, merges, q.merge)
}

func (q *gitlabRequest) numbered() *pull {
	number, err := strconv.Atoi(q.r.PathValue("number"))
	if p := q.repo.pulls[number]; err == nil && p != nil {
		return p
	}
	q.fail(http.StatusNotFound, "404 Not found")
	return nil
}

func (q *gitlabRequest) getMerge() {
	if p := q.numbered(); p != nil {
		answer(q.w, http.StatusOK, q.merge(p))
	}
}

func (q *gitlabRequest) mergesOfCommit() {
	var found []*pull
	for _, p := range q.repo.pulls {
		if p.head == q.r.PathValue("sha") {
			found = append(found, p)
		}
	}
	list(q, found, q.merge)
}

func gitlabNote(c *comment) object {
	return object{"id": c.id, "type": nil, "body": c.body, "author": gitlabUser(c.author), "system": c.system, "created_at": c.created, "updated_at": c.updated}
}

func (q *gitlabRequest) listNotes() {
	p := q.numbered()
	if p == nil {
		return
	}
	notes := slices.Clone(p.comments)
	if q.r.URL.Query().Get("sort") != "asc" {
		slices.Reverse(notes) // the last one first, unless told otherwise
	}
	list(q, notes, gitlabNote)
}

// text reads the text of a note.
func (q *gitlabRequest) text() (string, bool) {
	var content struct{ Body string }
	switch err := json.NewDecoder(q.r.Body).Decode(&content); {
	case err != nil:
		answer(q.w, http.StatusBadRequest, object{"error": "body is missing"})
	case strings.TrimSpace(content.Body) == "":
		q.fail(http.StatusBadRequest, object{"note": []string{"can't be blank"}})
	case utf8.RuneCountInString(content.Body) > gitlabCommentLimit:
		q.fail(http.StatusBadRequest, object{"note": []string{"is too long (maximum is 1000000 characters)"}})
	default:
		return content.Body, true
	}
	return "", false
}

func (q *gitlabRequest) createNote() {
	p := q.numbered()
	if p == nil {
		return
	}
	if text, ok := q.text(); ok {
		answer(q.w, http.StatusCreated, gitlabNote(q.repo.comment(p, q.asker, text)))
	}
}

// ownNote finds a note that the asker may change.
func (q *gitlabRequest) ownNote() (*pull, *comment) {
	p := q.numbered()
	if p == nil {
		return nil, nil
	}
	id, _ := strconv.ParseInt(q.r.PathValue("id"), 10, 64)
	at, c := q.repo.findComment(id)
	switch {
	case c == nil || at != p:
		q.fail(http.StatusNotFound, "404 Not found")
		return nil, nil
	case c.author != q.asker && q.may() < forges.Admin:
		q.fail(http.StatusForbidden, "403 Forbidden")
		return nil, nil
	}
	return p, c
}

func (q *gitlabRequest) editNote() {
	p, c := q.ownNote()
	if c == nil {
		return
	}
	if text, ok := q.text(); ok {
		c.body, c.updated = text, q.time()
		p.updated = c.updated
		answer(q.w, http.StatusOK, gitlabNote(c))
	}
}

func (q *gitlabRequest) deleteNote() {
	if p, c := q.ownNote(); c != nil {
		p.remove(c.id)
		p.updated = q.time()
		q.w.WriteHeader(http.StatusNoContent)
	}
}
