package forgetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

// Repository is one on a test server, with what people do in it. Its methods may be called while the server answers. What is named and is not
// there is a mistake of the test, and panics.
type Repository struct {
	server  *Server
	id      int64
	path    string
	private bool
	allowed map[string]forges.Permission
	numbers int
	pulls   map[int]*pull
	commits map[string]*commit
}

type pull struct {
	id        int64
	number    int
	title     string
	author    *user
	state     forges.State
	draft     bool
	base      string
	branch    string
	head      string
	headRepo  int64 // 0: it is gone
	created   time.Time
	updated   time.Time
	comments  []*comment
	mergeHash string
}

type comment struct {
	id               int64
	author           *user
	body             string
	created, updated time.Time
	system           bool
}

type commit struct {
	// onBranch says that a branch of the repository has it; those of forks are only in what forges keep for pull requests.
	onBranch bool
	number   int
	statuses []*status
	runs     []*checkRun
}

type status struct {
	id                                    int64
	context, state, description, url, ref string
	creator                               *user
	created, updated                      time.Time
}

// Opening is a pull request to be opened. Only Head is needed.
type Opening struct {
	Title, Author string
	// Base is "main" when empty, and Branch "change".
	Base, Branch string
	// Head is a full hash.
	Head  string
	Draft bool
	// Fork says that it comes from another repository.
	Fork bool
}

// AddRepository makes a repository: "owner/name", on GitLab with as many groups as are liked.
func (s *Server) AddRepository(path string, private bool) *Repository {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &Repository{
		server: s, id: s.id(), path: path, private: private,
		allowed: map[string]forges.Permission{}, pulls: map[int]*pull{}, commits: map[string]*commit{},
	}
	s.repos[strings.ToLower(path)] = r
	return r
}

// Path is its name with its owner.
func (r *Repository) Path() string { return r.path }

// Allow lets somebody do something in it.
func (r *Repository) Allow(login string, permission forges.Permission) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.allowed[strings.ToLower(r.server.user(login).login)] = permission
}

// AddCommit makes a commit known that is on a branch.
func (r *Repository) AddCommit(hash string) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.commit(hash).onBranch = true
}

func (r *Repository) commit(hash string) *commit {
	if r.commits[hash] == nil {
		r.commits[hash] = &commit{}
	}
	return r.commits[hash]
}

// Open opens a pull request and returns its number.
func (r *Repository) Open(opening Opening) int {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.numbers++
	now := r.server.time()
	p := &pull{
		id: r.server.id(), number: r.numbers, title: or(opening.Title, fmt.Sprintf("Change %d", r.numbers)),
		author: r.server.user(or(opening.Author, "ann")), state: forges.Open, draft: opening.Draft,
		base: or(opening.Base, "main"), branch: or(opening.Branch, "change"), headRepo: r.id, created: now, updated: now,
	}
	if opening.Fork {
		p.headRepo = r.server.id()
	}
	r.pulls[p.number] = p
	r.push(p, opening.Head)
	return p.number
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (r *Repository) push(p *pull, head string) {
	p.head = head
	c := r.commit(head)
	c.number = p.number
	c.onBranch = c.onBranch || p.headRepo == r.id
}

func (r *Repository) change(number int, how func(*pull)) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	p := r.pulls[number]
	if p == nil {
		panic(fmt.Sprintf("%s has no pull request %d", r.path, number))
	}
	how(p)
	p.updated = r.server.time()
}

// Push moves the head of a pull request.
func (r *Repository) Push(number int, head string) {
	r.change(number, func(p *pull) { r.push(p, head) })
}

// Retitle changes its title.
func (r *Repository) Retitle(number int, title string) {
	r.change(number, func(p *pull) { p.title = title })
}

// SetDraft makes it a draft, or ready.
func (r *Repository) SetDraft(number int, draft bool) {
	r.change(number, func(p *pull) { p.draft = draft })
}

// Rebase changes the branch that it is for.
func (r *Repository) Rebase(number int, base string) {
	r.change(number, func(p *pull) { p.base = base })
}

// Close closes it without merging it.
func (r *Repository) Close(number int) {
	r.change(number, func(p *pull) { p.state = forges.Closed })
}

// Reopen opens it again.
func (r *Repository) Reopen(number int) {
	r.change(number, func(p *pull) { p.state = forges.Open })
}

// Merge merges it and returns the new commit on its base. There is no git here, so the commit is but a hash.
func (r *Repository) Merge(number int) string {
	var hash string
	r.change(number, func(p *pull) {
		sum := sha256.Sum256([]byte(r.path + p.head))
		hash = hex.EncodeToString(sum[:20])
		p.state, p.mergeHash = forges.Merged, hash
		r.commit(hash).onBranch = true
	})
	return hash
}

// DeleteFork removes the repository that a pull request comes from.
func (r *Repository) DeleteFork(number int) {
	r.change(number, func(p *pull) { p.headRepo = 0 })
}

// Comment writes a comment as somebody.
func (r *Repository) Comment(number int, login, body string) int64 {
	var id int64
	r.change(number, func(p *pull) { id = r.comment(p, r.server.user(login), body).id })
	return id
}

// Note is what GitLab writes itself beside comments, such as "added 1 commit".
func (r *Repository) Note(number int, body string) {
	r.change(number, func(p *pull) { r.comment(p, p.author, body).system = true })
}

func (r *Repository) comment(p *pull, author *user, body string) *comment {
	now := r.server.time()
	c := &comment{id: r.server.id(), author: author, body: body, created: now, updated: now}
	p.comments = append(p.comments, c)
	p.updated = now
	return c
}

// Comments returns what is written under a pull request.
func (r *Repository) Comments(number int) []forges.Comment {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	var result []forges.Comment
	for _, c := range r.pulls[number].comments {
		if !c.system {
			result = append(result, forges.Comment{ID: c.id, Author: c.author.login, Body: c.body, Created: c.created, Updated: c.updated})
		}
	}
	return result
}

// Annotations returns what the latest check run of a name on a commit says beside lines.
func (r *Repository) Annotations(hash, name string) []forges.Annotation {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	for _, run := range latestRuns(r.commit(hash).runs) {
		if run.name == name {
			return slices.Clone(run.annotations)
		}
	}
	return nil
}

// Updates returns how often statuses were told of a commit.
func (r *Repository) Updates(hash string) int {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	c := r.commit(hash)
	return len(c.statuses) + len(c.runs)
}

// byUpdate returns pull requests in a state ("open", "closed", "all"), the latest update first.
func (r *Repository) byUpdate(state string) []*pull {
	var result []*pull
	for _, p := range r.pulls {
		if state == "all" || (p.state == forges.Open) == (state == "open") {
			result = append(result, p)
		}
	}
	slices.SortFunc(result, func(a, b *pull) int {
		if c := b.updated.Compare(a.updated); c != 0 {
			return c
		}
		return b.number - a.number
	})
	return result
}

func (r *Repository) findComment(id int64) (*pull, *comment) {
	for _, p := range r.pulls {
		for _, c := range p.comments {
			if c.id == id {
				return p, c
			}
		}
	}
	return nil, nil
}

func (p *pull) remove(id int64) {
	p.comments = slices.DeleteFunc(p.comments, func(c *comment) bool { return c.id == id })
}

// SetPrivate hides it from those who may not read it, or shows it to everybody.
func (r *Repository) SetPrivate(private bool) {
	r.server.mu.Lock()
	defer r.server.mu.Unlock()
	r.private = private
}
