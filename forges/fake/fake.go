// Package fake is a forge in memory, for tests of what is built on forges.Forge. It keeps state as the real ones do, counts the requests that
// they would get, and can be made to fail.
package fake

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gitvirt/gitvirt/forges"
)

var hash = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Account is the login of the credentials.
const Account = "gitvirt-bot"

// pageSize is how many of a list come with one request.
const pageSize = 50

// Forge is one repository on a forge. It is safe for concurrent use.
type Forge struct {
	// Limit is how long a comment may be, in bytes; 0 means GitHub's 65,536.
	Limit int

	mu       sync.Mutex
	now      func() time.Time
	pulls    map[int]*pull
	statuses map[string][]forges.Status
	rights   map[string]forges.Permission
	fault    func(method string) error
	requests int
	writes   int
	last     int64
}

type pull struct {
	forges.PullRequest
	comments []forges.Comment
}

var _ forges.Forge = (*Forge)(nil)

// New returns a forge without pull requests, whose clock is now.
func New(now func() time.Time) *Forge {
	return &Forge{now: now, pulls: map[int]*pull{}, statuses: map[string][]forges.Status{}, rights: map[string]forges.Permission{}}
}

// Open opens a pull request, or replaces one of that number. Its State and Updated are set here.
func (f *Forge) Open(pr forges.PullRequest) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pr.State, pr.Updated = forges.Open, f.now()
	f.pulls[pr.Number] = &pull{PullRequest: pr}
}

// Change changes a pull request, as people do who push to it, close it or merge it.
func (f *Forge) Change(number int, change func(pr *forges.PullRequest)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pulls[number]
	change(&p.PullRequest)
	p.Updated = f.now()
}

// Say is a comment of somebody.
func (f *Forge) Say(number int, author, body string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.say(f.pulls[number], author, body)
}

func (f *Forge) say(p *pull, author, body string) int64 {
	f.last++
	p.comments = append(p.comments, forges.Comment{ID: f.last, Author: author, Body: body, Created: f.now(), Updated: f.now()})
	p.Updated = f.now()
	return f.last
}

// Reword edits a comment of somebody, as they do themselves, or those who may edit what others write.
func (f *Forge) Reword(number int, id int64, body string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pulls[number]
	for i := range p.comments {
		if p.comments[i].ID == id {
			p.comments[i].Body, p.comments[i].Updated, p.Updated = body, f.now(), f.now()
		}
	}
}

// Grant gives somebody a right.
func (f *Forge) Grant(login string, right forges.Permission) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rights[login] = right
}

// Fail lets requests fail for which fault, which is told the name of the method, returns an error; nil ends that.
func (f *Forge) Fail(fault func(method string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// Requests returns how many requests there were, and how many of them wrote something.
func (f *Forge) Requests() (all, writes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests, f.writes
}

// Said returns what an account has written on a pull request.
func (f *Forge) Said(number int, author string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var bodies []string
	for _, comment := range f.pulls[number].comments {
		if comment.Author == author {
			bodies = append(bodies, comment.Body)
		}
	}
	return bodies
}

// Told returns what was told last of a commit, with its annotations.
func (f *Forge) Told(commit, context string) forges.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, status := range f.statuses[commit] {
		if status.Context == context {
			return status
		}
	}
	return forges.Status{}
}

// request counts a request and returns what it fails with. The caller holds mu.
func (f *Forge) request(ctx context.Context, method string, writes bool) error {
	f.requests++
	if writes {
		f.writes++
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %w", forges.ErrUnavailable, err)
	}
	if f.fault != nil {
		return f.fault(method)
	}
	return nil
}

func (f *Forge) find(number int) (*pull, error) {
	if p := f.pulls[number]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("pull request %d: %w", number, forges.ErrNotFound)
}

// Name implements forges.Forge.
func (f *Forge) Name() string { return "forge.example.org/shop/fleet" }

// Account implements forges.Forge.
func (f *Forge) Account(ctx context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Account, f.request(ctx, "Account", false)
}

// Changed implements forges.Forge.
func (f *Forge) Changed(ctx context.Context, since time.Time) ([]forges.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []forges.PullRequest
	for _, p := range f.pulls {
		if since.IsZero() && p.State == forges.Open || !since.IsZero() && !p.Updated.Before(since) {
			list = append(list, p.PullRequest)
		}
	}
	slices.SortFunc(list, func(a, b forges.PullRequest) int {
		if order := b.Updated.Compare(a.Updated); order != 0 {
			return order
		}
		return b.Number - a.Number
	})
	for range 1 + max(0, len(list)-1)/pageSize {
		if err := f.request(ctx, "Changed", false); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// PullRequest implements forges.Forge.
func (f *Forge) PullRequest(ctx context.Context, number int) (forges.PullRequest, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "PullRequest", false); err != nil {
		return forges.PullRequest{}, err
	}
	p, err := f.find(number)
	if err != nil {
		return forges.PullRequest{}, err
	}
	return p.PullRequest, nil
}

// HeadRef implements forges.Forge.
func (f *Forge) HeadRef(number int) string { return fmt.Sprintf("refs/pull/%d/head", number) }

// Comments implements forges.Forge.
func (f *Forge) Comments(ctx context.Context, number int) ([]forges.Comment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "Comments", false); err != nil {
		return nil, err
	}
	p, err := f.find(number)
	if err != nil {
		return nil, err
	}
	return slices.Clone(p.comments), nil
}

func (f *Forge) checkBody(body string) error {
	switch {
	case strings.TrimSpace(body) == "":
		return fmt.Errorf("%w: a comment without text", forges.ErrRefused)
	case len(body) > f.CommentLimit():
		return fmt.Errorf("%w: a comment of %d bytes", forges.ErrRefused, len(body))
	}
	return nil
}

// Comment implements forges.Forge.
func (f *Forge) Comment(ctx context.Context, number int, body string) (int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "Comment", true); err != nil {
		return 0, err
	}
	p, err := f.find(number)
	if err = errors.Join(err, f.checkBody(body)); err != nil {
		return 0, err
	}
	return f.say(p, Account, body), nil
}

// EditComment implements forges.Forge.
func (f *Forge) EditComment(ctx context.Context, number int, id int64, body string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "EditComment", true); err != nil {
		return err
	}
	p, err := f.find(number)
	if err = errors.Join(err, f.checkBody(body)); err != nil {
		return err
	}
	for i := range p.comments {
		if comment := &p.comments[i]; comment.ID == id {
			if comment.Author != Account {
				return fmt.Errorf("%w: it is a comment of %s", forges.ErrDenied, comment.Author)
			}
			comment.Body, comment.Updated, p.Updated = body, f.now(), f.now()
			return nil
		}
	}
	return fmt.Errorf("comment %d: %w", id, forges.ErrNotFound)
}

// DeleteComment implements forges.Forge.
func (f *Forge) DeleteComment(ctx context.Context, number int, id int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "DeleteComment", true); err != nil {
		return err
	}
	p, err := f.find(number)
	if err != nil {
		return err
	}
	p.comments = slices.DeleteFunc(p.comments, func(c forges.Comment) bool { return c.ID == id })
	return nil
}

// CommentLimit implements forges.Forge.
func (f *Forge) CommentLimit() int {
	if f.Limit > 0 {
		return f.Limit
	}
	return 65536
}

// SetStatus implements forges.Forge.
func (f *Forge) SetStatus(ctx context.Context, commit string, status forges.Status) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "SetStatus", true); err != nil {
		return err
	}
	if status.Context == "" || !slices.Contains([]forges.StatusState{forges.Pending, forges.Success, forges.Failure}, status.State) {
		return fmt.Errorf("%w: a status without a context, or in the state %q", forges.ErrRefused, status.State)
	}
	if !hash.MatchString(commit) {
		return fmt.Errorf("%w: %q is no full hash of a commit", forges.ErrRefused, commit)
	}
	status.Description = strings.Join(strings.Fields(status.Description), " ")
	if line := []rune(status.Description); len(line) > forges.DescriptionLimit {
		status.Description = string(line[:forges.DescriptionLimit])
	}
	others := slices.DeleteFunc(f.statuses[commit], func(s forges.Status) bool { return s.Context == status.Context })
	f.statuses[commit] = append(others, status)
	return nil
}

// Statuses implements forges.Forge.
func (f *Forge) Statuses(ctx context.Context, commit string) ([]forges.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "Statuses", false); err != nil {
		return nil, err
	}
	if !hash.MatchString(commit) {
		return nil, fmt.Errorf("%w: %q is no full hash of a commit", forges.ErrRefused, commit)
	}
	list := slices.Clone(f.statuses[commit])
	for i := range list {
		list[i].Annotations = nil
	}
	return list, nil
}

// Permission implements forges.Forge.
func (f *Forge) Permission(ctx context.Context, login string) (forges.Permission, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.request(ctx, "Permission", false); err != nil {
		return forges.NoPermission, err
	}
	return f.rights[login], nil
}

// Hook implements forges.Forge: the body is an Event in JSON, the header Secret is the secret.
func (f *Forge) Hook(header http.Header, body []byte, secret string) (forges.Event, error) {
	if secret == "" || subtle.ConstantTimeCompare([]byte(header.Get("Secret")), []byte(secret)) != 1 {
		return forges.Event{}, forges.ErrDenied
	}
	var event forges.Event
	if err := json.Unmarshal(body, &event); err != nil {
		return forges.Event{}, fmt.Errorf("%w: %w", forges.ErrRefused, err)
	}
	return event, nil
}
