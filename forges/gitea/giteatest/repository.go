package giteatest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

// Repository is one on the server, with a branch "main", and what people do in it.
type Repository struct {
	Server *Server
	// Owner and Name name it.
	Owner, Name string

	mu    sync.Mutex
	files int
	pulls map[int]source
}

// source is where a pull request comes from.
type source struct{ author, owner, branch string }

// Opening is a pull request to be opened.
type Opening struct {
	// Title has a default.
	Title string
	// Author is who opens it; they are made a user, and one who may write where it comes from no fork.
	Author string
	// Files are what it adds, by path; one of no importance when there are none.
	Files map[string]string
	// Fork says that it comes from a fork of the author's.
	Fork bool
}

// AddRepository makes a public repository that belongs to a user.
func (s *Server) AddRepository(tb testing.TB, owner, name string) *Repository {
	tb.Helper()
	token := s.AddUser(tb, owner)
	s.Do(tb, token, http.MethodPost, "/user/repos", map[string]any{"name": name, "auto_init": true, "default_branch": "main"}, nil)
	return &Repository{Server: s, Owner: owner, Name: name, pulls: map[int]source{}}
}

// URL is where git finds it; it is public unless SetPrivate hides it.
func (r *Repository) URL() string { return fmt.Sprintf("%s/%s/%s.git", r.Server.URL, r.Owner, r.Name) }

// URLAs is URL with the credentials of somebody, who may push if they may write.
func (r *Repository) URLAs(tb testing.TB, login string) string {
	tb.Helper()
	scheme, rest, _ := strings.Cut(r.URL(), "://")
	return scheme + "://" + login + ":" + r.Server.AddUser(tb, login) + "@" + rest
}

// Do makes a request below the repository's path as somebody.
func (r *Repository) Do(tb testing.TB, login, method, path string, content, into any) {
	tb.Helper()
	r.Server.Do(tb, r.Server.AddUser(tb, login), method, fmt.Sprintf("/repos/%s/%s%s", r.Owner, r.Name, path), content, into)
}

// Allow lets somebody do something in it. Gitea forgets a reader of a public repository when that becomes private, and does not notice it when
// they are to read again; so they are removed first.
func (r *Repository) Allow(tb testing.TB, login string, permission forges.Permission) {
	tb.Helper()
	r.Server.AddUser(tb, login)
	r.Do(tb, r.Owner, http.MethodDelete, "/collaborators/"+login, nil, nil)
	if permission == forges.NoPermission {
		return
	}
	r.Do(tb, r.Owner, http.MethodPut, "/collaborators/"+login, map[string]any{"permission": permission.String()}, nil)
}

// SetPrivate hides it, or shows it to everybody.
func (r *Repository) SetPrivate(tb testing.TB, private bool) {
	tb.Helper()
	r.Do(tb, r.Owner, http.MethodPatch, "", map[string]any{"private": private}, nil)
}

// Open opens a pull request for "main" and returns its number and head.
func (r *Repository) Open(tb testing.TB, opening Opening) (number int, head string) {
	tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	from := source{author: opening.Author, owner: r.Owner, branch: fmt.Sprintf("change-%d", len(r.pulls)+1)}
	base := from.branch
	r.Server.AddUser(tb, opening.Author)
	if opening.Fork {
		from.owner = opening.Author
		base = opening.Author + ":" + from.branch
		if !r.forked(opening.Author) {
			r.Do(tb, opening.Author, http.MethodPost, "/forks", map[string]any{}, nil)
		}
	} else if opening.Author != r.Owner {
		r.Allow(tb, opening.Author, forges.Write)
	}
	files := opening.Files
	if len(files) == 0 {
		files = map[string]string{r.nextFile(): "nothing of importance\n"}
	}
	first := true
	for path, text := range files {
		head = r.write(tb, from, path, text, first)
		first = false
	}
	title := opening.Title
	if title == "" {
		title = "Change " + from.branch
	}
	var made struct{ Number int }
	r.Do(tb, opening.Author, http.MethodPost, "/pulls", map[string]any{"title": title, "head": base, "base": "main"}, &made)
	r.pulls[made.Number] = from
	return made.Number, head
}

func (r *Repository) forked(author string) bool {
	for _, p := range r.pulls {
		if p.owner == author && p.owner != r.Owner {
			return true
		}
	}
	return false
}

func (r *Repository) nextFile() string {
	r.files++
	return fmt.Sprintf("notes/%d.txt", r.files)
}

// write adds a file to the branch of a pull request, which it makes when it is new, and returns the commit.
func (r *Repository) write(tb testing.TB, from source, path, text string, newBranch bool) string {
	tb.Helper()
	content := map[string]any{"content": base64.StdEncoding.EncodeToString([]byte(text)), "message": "Write " + path, "branch": from.branch}
	if newBranch {
		content["branch"], content["new_branch"] = "main", from.branch
	}
	var made struct{ Commit struct{ SHA string } }
	r.Server.Do(tb, r.Server.AddUser(tb, from.author), http.MethodPost, fmt.Sprintf("/repos/%s/%s/contents/%s", from.owner, r.Name, path), content, &made)
	return made.Commit.SHA
}

// Push adds a file of no importance to a pull request, and returns the new head.
func (r *Repository) Push(tb testing.TB, number int) string {
	tb.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write(tb, r.pulls[number], r.nextFile(), "more of it\n", false)
}

// Edit changes a pull request: its title, state or base.
func (r *Repository) Edit(tb testing.TB, number int, change map[string]any) {
	tb.Helper()
	r.Do(tb, r.Owner, http.MethodPatch, fmt.Sprintf("/pulls/%d", number), change, nil)
}

// Merge merges one. Gitea works out in the background whether it can be merged, and refuses until then.
func (r *Repository) Merge(tb testing.TB, number int) {
	tb.Helper()
	token := r.Server.AddUser(tb, r.Owner)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(time.Minute)
	for {
		err := r.Server.try(tb.Context(), token, http.MethodPost, fmt.Sprintf("/repos/%s/%s/pulls/%d/merge", r.Owner, r.Name, number), map[string]any{"Do": "merge"}, nil)
		switch {
		case err == nil:
			return
		case !strings.Contains(err.Error(), "Please try again later"):
			tb.Fatal(err)
		}
		select {
		case <-ticker.C:
		case <-deadline:
			tb.Fatal(err)
		}
	}
}

// DeleteFork removes the repository that a pull request comes from.
func (r *Repository) DeleteFork(tb testing.TB, number int) {
	tb.Helper()
	r.mu.Lock()
	from := r.pulls[number]
	r.mu.Unlock()
	r.Server.Do(tb, r.Server.AdminToken, http.MethodDelete, fmt.Sprintf("/repos/%s/%s", from.owner, r.Name), nil, nil)
}

// Comment writes a comment as somebody.
func (r *Repository) Comment(tb testing.TB, number int, login, body string) int64 {
	tb.Helper()
	var made struct{ ID int64 }
	r.Do(tb, login, http.MethodPost, fmt.Sprintf("/issues/%d/comments", number), map[string]any{"body": body}, &made)
	return made.ID
}

// Head asks git for what a reference of the repository points to.
func (r *Repository) Head(tb testing.TB, ref string) string {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), "git", "ls-remote", r.URL(), ref).Output()
	if err != nil {
		tb.Fatalf("git ls-remote %s: %v", r.URL(), err)
	}
	hash, _, _ := strings.Cut(string(out), "\t")
	return hash
}
