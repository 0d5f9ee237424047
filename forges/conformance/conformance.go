// Package conformance has the suite that every client of a forge passes: what the documentation of forges.Forge says, sentence by sentence. It is
// run on servers that keep state, real ones where that can be had.
package conformance

import (
	"net/http"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/forgetest"
)

// Opening is a pull request that somebody opens.
type Opening struct {
	Title, Author string
	Draft         bool
	// Fork says that it comes from a fork of the author's.
	Fork bool
}

// World is a new, empty, public repository on a forge, and what people do in it.
type World interface {
	// Name is what Forge.Name must be.
	Name() string
	// Account is the login of a client's account that may do all that gitvirt does.
	Account() string
	// Forge returns a client of that account.
	Forge(t *testing.T) forges.Forge
	// As returns a client of a user who has a permission in the repository.
	As(t *testing.T, login string, permission forges.Permission) forges.Forge
	// WithTokenFile returns a client whose token is in a file, and a good one for it; nil where there are no tokens.
	WithTokenFile(t *testing.T, file string) (client forges.Forge, token string)
	// Requests returns how many requests were made so far.
	Requests() int
	// Server is what stands between the clients and the forge.
	Server() *forgetest.Server
	// Clock is the clients'.
	Clock() *forgetest.Clock
	// PageSize is how many items are on a page.
	PageSize() int
	// NextSecond lets the forge's time go on by at least a second.
	NextSecond(t *testing.T)

	// AddUser makes a user who has no part in the repository.
	AddUser(t *testing.T, login string)
	// Allow lets a user do something in it.
	Allow(t *testing.T, login string, permission forges.Permission)
	// SetPrivate hides the repository, and SetPublic shows it to everybody.
	SetPrivate(t *testing.T)
	SetPublic(t *testing.T)
	// Open opens a pull request with a new commit and returns its number and head. Its base is "main".
	Open(t *testing.T, opening Opening) (number int, head string)
	// Push adds a commit to one and returns the new head.
	Push(t *testing.T, number int) (head string)
	Retitle(t *testing.T, number int, title string)
	SetDraft(t *testing.T, number int, draft bool)
	Close(t *testing.T, number int)
	Reopen(t *testing.T, number int)
	Merge(t *testing.T, number int)
	// DeleteFork removes the repository that a pull request comes from.
	DeleteFork(t *testing.T, number int)
	// Comment writes a comment as somebody.
	Comment(t *testing.T, number int, login, body string) int64
	// GitHead returns what git finds under a reference; "" where the forge of the test has no git.
	GitHead(t *testing.T, ref string) string
	// Hook returns what the forge sends to a webhook with a secret.
	Hook(t *testing.T, kind forges.EventKind, number int, secret string) (http.Header, []byte)
	// HookHeader is the header that proves a webhook's origin.
	HookHeader() string
	// SignHook proves the origin of any content.
	SignHook(body []byte, secret string) http.Header
}

// part is one of the suite.
type part struct {
	name string
	run  func(*testing.T, *shared)
	// server says that it is about how a client speaks to its server, or about what only a server knows.
	server bool
}

func parts() []part {
	return []part{
		{"who", who, false},
		{"statuses", statuses, false},
		{"statuses over pages", statusesOverPages, false},
		{"comments", comments, false},
		{"comments over pages", commentsOverPages, false},
		{"comments at the limit", commentsAtTheLimit, false},
		{"tokens", tokens, true},
		{"at the same time", atTheSameTime, false},
		{"context", contexts, false},
		{"faults", faults, true},
		{"limits", limits, true},
		{"hooks", hooks, true},
		{"pull requests", pullRequests, false},
		{"heads", heads, false},
		{"rights", rights, true},
		{"permissions", permissions, true},
	}
}

// Run runs the suite. Most parts share a repository, since a real forge takes its time to make one; each can be run alone.
func Run(t *testing.T, newWorld func(t *testing.T) World) { run(t, newWorld, parts()) }

// RunInMemory runs those parts that are about no server, for a fake that stands in for a client and its forge both.
func RunInMemory(t *testing.T, newWorld func(t *testing.T) World) {
	run(t, newWorld, slices.DeleteFunc(parts(), func(p part) bool { return p.server }))
}

func run(t *testing.T, newWorld func(t *testing.T) World, parts []part) {
	t.Run("changed", func(t *testing.T) {
		w := newWorld(t)
		changed(t, w)
		changedOverPages(t, w)
	})
	t.Run("shared", func(t *testing.T) {
		s := &shared{World: newWorld(t)}
		for _, part := range parts {
			t.Run(part.name, func(t *testing.T) { part.run(t, s) })
		}
	})
}

// shared is a World with two pull requests that parts of the suite share. What they find there is of no importance to them, but for the
// first ones.
type shared struct {
	World
	branchPull, forkPull     int
	branchCommit, forkCommit string
}

// branch returns a pull request of ann's.
func (s *shared) branch(t *testing.T) (number int, head string) {
	t.Helper()
	if s.branchPull == 0 {
		s.branchPull, s.branchCommit = s.Open(t, Opening{Title: unicodeText, Author: "ann"})
	}
	return s.branchPull, s.branchCommit
}

// fork returns a pull request of ben's, from a repository of his own.
func (s *shared) fork(t *testing.T) (number int, head string) {
	t.Helper()
	if s.forkPull == 0 {
		s.forkPull, s.forkCommit = s.Open(t, Opening{Title: "from a fork", Author: "ben", Fork: true})
	}
	return s.forkPull, s.forkCommit
}

// read returns the comments of a pull request that are newer than those that were there.
func read(t *testing.T, f forges.Forge, number int, before []forges.Comment) []forges.Comment {
	t.Helper()
	got := must[[]forges.Comment](t)(f.Comments(t.Context(), number))
	if len(got) < len(before) {
		t.Fatalf("there are %d comments, and %d before", len(got), len(before))
	}
	return got[len(before):]
}

// unicodeText has what goes wrong with texts: characters of four bytes, right-to-left, quotes, HTML, line ends.
const unicodeText = "plan für 数据库 🚀 عربى \"quoted\" <b>&amp;</b>"

var fullHash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// eventually waits until a forge that works in the background has caught up.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(20 * time.Second)
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: not after 20 s", what)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
