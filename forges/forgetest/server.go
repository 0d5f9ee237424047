// Package forgetest has servers that answer as GitHub's and GitLab's documented APIs do, for tests: they keep state, page, sign, count
// requests, limit their rate, and fail on demand. They know what gitvirt asks for and no more; a real Gitea is in forges/gitea/giteatest.
//
// What people do on a forge is done with the methods of Repository, and what a program sees of it comes over HTTP alone.
package forgetest

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

// Request is one that was answered.
type Request struct {
	Method string
	// Path is as it was sent, with the query.
	Path string
	// Status is that of the answer; 0 where there was none.
	Status int
}

// String implements fmt.Stringer.
func (r Request) String() string { return fmt.Sprintf("%s %s -> %d", r.Method, r.Path, r.Status) }

// Fault is something that goes wrong with requests. Exactly one of Status, Body, Cut, Hang and Drop is wanted.
type Fault struct {
	// Times is how many requests it is for; 0 means until Heal.
	Times int
	// Match says which requests it is for; nil means all.
	Match func(*http.Request) bool
	// Status answers with it and no JSON.
	Status int
	// Header is sent with Status, such as Retry-After.
	Header http.Header
	// Body answers 200 with it.
	Body string
	// Cut answers rightly and ends in the middle.
	Cut bool
	// Hang answers when the request ends, or the server.
	Hang bool
	// Drop closes the connection without an answer, as a server that is down does.
	Drop bool
	// After lets the request be carried out first, and then fails.
	After bool
}

// Server is what the servers have in common.
type Server struct {
	server *httptest.Server
	prefix string
	// precision is that of the forge's times.
	precision time.Duration
	web       string

	mu       sync.Mutex
	ids      int64
	users    map[string]*user
	tokens   map[string]*token
	repos    map[string]*Repository
	faults   []*Fault
	requests []Request
	// limit, when it is set, is how many requests are answered until reset.
	limited   bool
	remaining int
	reset     time.Time
	ended     chan struct{}
	now       func() time.Time
}

type user struct {
	id    int64
	login string
	bot   bool
}

// token is what a request is authenticated with.
type token struct {
	user *user
	// expires is zero for those of people.
	expires time.Time
	// app is that of an installation's token.
	app *App
	// repos are the repositories that an installation may see.
	repos map[*Repository]bool
}

// Option adjusts a server.
type Option func(*settings)

type settings struct {
	tls    bool
	prefix string
	now    func() time.Time
}

// WithTLS makes it an https server with a certificate of its own; CAFile is what it is trusted by.
func WithTLS() Option { return func(s *settings) { s.tls = true } }

// WithPrefix puts the forge below a path, such as "/git".
func WithPrefix(prefix string) Option { return func(s *settings) { s.prefix = prefix } }

// WithNow sets the server's clock, which pull requests and tokens are dated by.
func WithNow(now func() time.Time) Option { return func(s *settings) { s.now = now } }

func newServer(tb testing.TB, precision time.Duration, routes func(*Server, *http.ServeMux), options []Option) *Server {
	tb.Helper()
	chosen := settings{now: time.Now}
	for _, option := range options {
		option(&chosen)
	}
	s := &Server{
		precision: precision, prefix: chosen.prefix, now: chosen.now, ids: 1000,
		users: map[string]*user{}, tokens: map[string]*token{}, repos: map[string]*Repository{}, ended: make(chan struct{}),
	}
	mux := http.NewServeMux()
	routes(s, mux)
	handler := http.StripPrefix(s.prefix, mux)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, handler) }))
	if chosen.tls {
		s.server.StartTLS()
	} else {
		s.server.Start()
	}
	s.web = s.server.URL + s.prefix
	tb.Cleanup(func() {
		close(s.ended)
		s.server.Close()
	})
	return s
}

// URL is the forge's address, without a slash at its end.
func (s *Server) URL() string { return s.web }

// CAFile writes the certificate of a server with TLS into a file.
func (s *Server) CAFile(tb testing.TB) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "ca.pem")
	content := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.server.Certificate().Raw})
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// AddUser makes a user, if there is none of the name, and returns a new token of theirs.
func (s *Server) AddUser(login string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newToken(&token{user: s.user(login)})
}

// TokenFile makes a user as AddUser does, and writes the token into a file.
func (s *Server) TokenFile(tb testing.TB, login string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "token")
	if err := os.WriteFile(file, []byte(s.AddUser(login)+"\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// Revoke makes a token worthless.
func (s *Server) Revoke(secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tokens, secret)
}

func (s *Server) user(login string) *user {
	key := strings.ToLower(login)
	if s.users[key] == nil {
		s.users[key] = &user{id: s.id(), login: login}
	}
	return s.users[key]
}

func (s *Server) newToken(t *token) string {
	secret := make([]byte, 20)
	_, _ = rand.Read(secret) // it never fails
	text := "tkn_" + hex.EncodeToString(secret)
	s.tokens[text] = t
	return text
}

func (s *Server) id() int64 {
	s.ids++
	return s.ids
}

func (s *Server) time() time.Time { return s.now().UTC().Truncate(s.precision) }

// Fail adds a fault. The first that fits a request counts.
func (s *Server) Fail(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &fault)
}

// Heal removes all faults and limits.
func (s *Server) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.limited = nil, false
}

// Limit lets only so many requests through until a time, as an account's hourly limit does.
func (s *Server) Limit(remaining int, reset time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limited, s.remaining, s.reset = true, remaining, reset
}

// Requests returns what was asked since the last call of Forget.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Forget empties the list of Requests.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

func (s *Server) note(r *http.Request, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, Request{Method: r.Method, Path: r.URL.RequestURI(), Status: status})
}

// takeFault returns the fault that is for a request.
func (s *Server) takeFault(r *http.Request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, fault := range s.faults {
		if fault.Match != nil && !fault.Match(r) {
			continue
		}
		taken := *fault
		if fault.Times > 0 {
			if fault.Times--; fault.Times == 0 {
				s.faults = append(s.faults[:i], s.faults[i+1:]...)
			}
		}
		return &taken
	}
	return nil
}

// serve answers a request, or fails it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, handler http.Handler) {
	fault := s.takeFault(r)
	recorder := httptest.NewRecorder()
	if fault == nil || fault.After || fault.Cut {
		handler.ServeHTTP(recorder, r)
	}
	switch {
	case fault == nil:
		s.note(r, recorder.Code)
		send(w, recorder.Code, recorder.Header(), recorder.Body.Bytes())
	case fault.Hang:
		s.note(r, 0)
		select {
		case <-r.Context().Done():
		case <-s.ended:
		}
	case fault.Drop:
		s.note(r, 0)
		panic(http.ErrAbortHandler)
	case fault.Cut:
		s.note(r, recorder.Code)
		recorder.Header().Set("Content-Length", strconv.Itoa(recorder.Body.Len()+1))
		body := recorder.Body.Bytes()
		send(w, recorder.Code, recorder.Header(), body[:len(body)/2])
		panic(http.ErrAbortHandler)
	case fault.Status != 0:
		s.note(r, fault.Status)
		send(w, fault.Status, fault.Header, []byte("<html><body>"+http.StatusText(fault.Status)+"</body></html>"))
	default:
		s.note(r, http.StatusOK)
		send(w, http.StatusOK, http.Header{"Content-Type": {"text/html"}}, []byte(fault.Body))
	}
}

func send(w http.ResponseWriter, status int, header http.Header, body []byte) {
	maps.Copy(w.Header(), header)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

// object is JSON's.
type object = map[string]any

func answer(w http.ResponseWriter, status int, content any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(content) // into a recorder
}

// page cuts one page out of items, with the number that asks for the next one, or 0.
func page[T any](query url.Values, items []T) (part []T, number, next, last int) {
	size := number1(query.Get("per_page"), 30)
	size = min(size, 100)
	number = number1(query.Get("page"), 1)
	last = max((len(items)+size-1)/size, 1)
	from := min((number-1)*size, len(items))
	to := min(from+size, len(items))
	if to < len(items) {
		next = number + 1
	}
	return items[from:to], number, next, last
}

func number1(text string, otherwise int) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return otherwise
	}
	return n
}

// linkTo returns a request's own address with another page.
func (s *Server) linkTo(r *http.Request, number int) string {
	query := r.URL.Query()
	query.Set("page", strconv.Itoa(number))
	return s.web + strings.TrimPrefix(r.URL.EscapedPath(), s.prefix) + "?" + query.Encode()
}

func links(s *Server, r *http.Request, next, last int) string {
	var parts []string
	if next > 0 {
		parts = append(parts,
			fmt.Sprintf(`<%s>; rel="next"`, s.linkTo(r, next)),
			fmt.Sprintf(`<%s>; rel="last"`, s.linkTo(r, last)))
	}
	parts = append(parts, fmt.Sprintf(`<%s>; rel="first"`, s.linkTo(r, 1)))
	return strings.Join(parts, ", ")
}

// spend counts a request against the limit, and tells whether it may be answered.
func (s *Server) spend() (ok bool) {
	if !s.limited || s.now().After(s.reset) {
		return true
	}
	if s.remaining == 0 {
		return false
	}
	s.remaining--
	return true
}

// may tells what somebody may do in a repository.
func (r *Repository) may(login string) forges.Permission {
	if permission, ok := r.allowed[strings.ToLower(login)]; ok {
		return permission
	}
	if !r.private {
		return forges.Read
	}
	return forges.NoPermission
}
