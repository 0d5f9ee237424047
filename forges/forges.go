// Package forges says what gitvirt needs of a forge: the service around a git repository that has pull requests. The clients are in its
// subpackages, and all of them pass the suite in forges/conformance.
//
// It is a small part of what forges can do, in words that all of them share: a pull request is GitLab's merge request, a status is
// GitLab's external pipeline status. A forge is told of plans and of what was applied, and nothing is ever decided by what it says alone:
// git says what is wanted, and whoever comments is looked up.
package forges

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// The kinds of failures; callers decide with errors.Is. Every error of a Forge wraps one of them, or is a RateLimitedError.
var (
	// ErrDenied: the credentials are refused, or may not do this. Trying again helps when somebody has changed them.
	ErrDenied = errors.New("the forge denies it")
	// ErrNotFound: what was asked for is not there, or is hidden from these credentials.
	ErrNotFound = errors.New("the forge does not have it")
	// ErrRefused: the forge understands the request and will not have it, as it is.
	ErrRefused = errors.New("the forge refuses it")
	// ErrUnavailable: the forge cannot be reached, fails, or answers with what nobody understands. Try again later.
	ErrUnavailable = errors.New("the forge is unavailable")
)

// RateLimitedError says that too much was asked for. It is an ErrUnavailable.
type RateLimitedError struct {
	// Until is when the forge answers again.
	Until time.Time
}

// Error implements error.
func (e *RateLimitedError) Error() string {
	return "the forge wants no more requests until " + e.Until.UTC().Format(time.RFC3339)
}

// Is makes it an ErrUnavailable.
func (e *RateLimitedError) Is(target error) bool { return target == ErrUnavailable }

// State is that of a pull request.
type State string

// The states.
const (
	Open   State = "open"
	Closed State = "closed"
	Merged State = "merged"
)

// PullRequest is what is known of one.
type PullRequest struct {
	// Number is how people name it: #12, or !12 on GitLab.
	Number int
	Title  string
	// Author is the login of who opened it.
	Author string
	State  State
	Draft  bool
	// Base is the branch it is to be merged into.
	Base string
	// Head is the full hash of the commit to be merged.
	Head string
	// Fork says that Head comes from another repository than Base. Where the other repository is gone it counts as a fork.
	Fork bool
	// URL is its page.
	URL string
	// Updated is when something about it changed last, comments included, to the forge's precision.
	Updated time.Time
}

// Comment is one on a pull request.
type Comment struct {
	ID int64
	// Author is the login of who wrote it.
	Author string
	// Body is Markdown, as it was written.
	Body    string
	Created time.Time
	// Updated is when it was edited last; of one that never was, it is Created, or at most a second later.
	Updated time.Time
}

// StatusState is how far something is that is told of a commit.
type StatusState string

// The states. Forges know more, which are not needed.
const (
	Pending StatusState = "pending"
	Success StatusState = "success"
	Failure StatusState = "failure"
)

// Status is shown beside a commit, one for each Context.
type Status struct {
	// Context names who tells it, such as "gitvirt/plan".
	Context string
	State   StatusState
	// Description is one line; what is longer than DescriptionLimit is cut by the client.
	Description string
	// URL leads to more; may be empty.
	URL string
	// Annotations are shown beside the lines they are about, where the forge can do that; elsewhere they are left out.
	Annotations []Annotation
}

// DescriptionLimit is how much of a description forges take, in characters: GitHub's 140 are the fewest.
const DescriptionLimit = 140

// Annotation is a message about a line of a file.
type Annotation struct {
	// Path is relative to the root of the repository.
	Path string
	// Line counts from 1.
	Line    int
	Message string
	// Warning makes it one; otherwise it is a failure.
	Warning bool
}

// Permission is what somebody may do in a repository.
type Permission int

// The permissions; a greater one includes those before it.
const (
	NoPermission Permission = iota
	Read
	// Write is who may push branches and merge.
	Write
	Admin
)

// String implements fmt.Stringer.
func (p Permission) String() string {
	switch p {
	case NoPermission:
		return "none"
	case Read:
		return "read"
	case Write:
		return "write"
	case Admin:
		return "admin"
	}
	return fmt.Sprintf("permission %d", int(p))
}

// Forge is one repository on a forge, seen with one account. Its methods may be called at the same time, and end soon after their context
// does. They try again by themselves what is worth it within a few seconds, and wait for no rate limit that is further away than that.
type Forge interface {
	// Name names the repository for people, without credentials: "gitea.example.com/shop/fleet".
	Name() string
	// Account is the login that the credentials belong to.
	Account(ctx context.Context) (string, error)
	// Changed returns the pull requests that are in any state and were updated at a time or later, the newest first. A zero time stands for all
	// open ones. When nothing has changed it costs one request.
	Changed(ctx context.Context, since time.Time) ([]PullRequest, error)
	// PullRequest returns one.
	PullRequest(ctx context.Context, number int) (PullRequest, error)
	// HeadRef is the reference of the repository in which git finds the head of a pull request, also of one from a fork.
	HeadRef(number int) string
	// Comments returns those of a pull request, in the order in which they were written.
	Comments(ctx context.Context, number int) ([]Comment, error)
	// Comment writes a new one and returns its ID.
	Comment(ctx context.Context, number int, body string) (id int64, err error)
	// EditComment replaces the text of one.
	EditComment(ctx context.Context, number int, id int64, body string) error
	// DeleteComment removes one; that it is gone already is no error.
	DeleteComment(ctx context.Context, number int, id int64) error
	// CommentLimit is how long a comment may be: so many characters, or so many bytes when that is what the forge counts. Whoever keeps to it in
	// bytes is always within it.
	CommentLimit() int
	// SetStatus tells of a commit. Of one Context only what was told last is shown.
	SetStatus(ctx context.Context, commit string, status Status) error
	// Statuses returns what is shown beside a commit, one for each Context, without Annotations.
	Statuses(ctx context.Context, commit string) ([]Status, error)
	// Permission returns what somebody may do in the repository. Who is not known has NoPermission.
	Permission(ctx context.Context, login string) (Permission, error)
	// Hook reads what the forge has sent to a webhook, after its secret was checked in constant time. It makes no request. One that was not sent
	// with the secret, or cannot be understood, is an ErrDenied or an ErrRefused.
	Hook(header http.Header, body []byte, secret string) (Event, error)
}

// EventKind is what a webhook tells of.
type EventKind string

// The kinds.
const (
	EventPush        EventKind = "push"
	EventPullRequest EventKind = "pull_request"
	EventComment     EventKind = "comment"
	// EventOther is anything else, also the ping with which a forge tries a webhook.
	EventOther EventKind = "other"
)

// Event is what a webhook tells: enough to know who is to look again. What has changed is asked for, and not believed from here.
type Event struct {
	Kind EventKind
	// Delivery is the forge's name for this sending; a second one with the same name is a replay. Empty where the forge gives none.
	Delivery string
	// Number is that of the pull request; 0 where the event is about none.
	Number int
}
