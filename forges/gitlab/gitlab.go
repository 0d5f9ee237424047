// Package gitlab speaks to GitLab, whose merge requests are pull requests here. It implements forges.Forge.
package gitlab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	api "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Config says where a project is, and who asks.
type Config struct {
	// URL is the forge's, such as "https://gitlab.com" or "https://example.com/gitlab".
	URL string
	// Project is the project's path with all its groups, such as "shop/infrastructure/fleet".
	Project string
	// TokenFile holds the token of an account, a project or a group. A new one in it counts at once.
	TokenFile string
	// CAFile holds PEM certificates that the server is trusted by besides the system's; may be empty.
	CAFile string
	// Clock is the system's when nil.
	Clock backoff.Clock
}

const (
	// commentLimit is GitLab's, in characters.
	commentLimit = 1_000_000
	// pageSize is half of what GitLab has, since each item may have a text of commentLimit.
	pageSize = 50
	// precision is that of GitLab's times.
	precision = time.Millisecond
)

// Client is one project on a GitLab.
type Client struct {
	name    string
	project string
	api     *api.Client
}

var _ forges.Forge = (*Client)(nil)

var projectPath = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$`)

// New returns a client. It makes no request.
func New(config Config) (*Client, error) {
	base, err := rest.BaseURL(config.URL)
	switch {
	case err != nil:
		return nil, err
	case !projectPath.MatchString(config.Project):
		return nil, fmt.Errorf("the project is %q; want GROUP/NAME, with all groups", config.Project)
	case config.TokenFile == "":
		return nil, errors.New("want a token file")
	}
	client, err := rest.NewClient(rest.Config{
		Base: base, CAFile: config.CAFile, Clock: config.Clock, Credential: rest.TokenFile(config.TokenFile),
		Authorize: func(h http.Header, token string) { h.Set("Authorization", "Bearer "+token) },
	})
	if err != nil {
		return nil, err
	}
	c := &Client{name: base.Host + base.Path + "/" + config.Project, project: config.Project}
	// Retries, limits and credentials are package rest's.
	c.api, err = api.NewAuthSourceClient(api.Unauthenticated{}, api.WithBaseURL(base.String()+"/api/v4"), api.WithHTTPClient(client),
		api.WithoutRetries(), api.WithCustomLimiter(unlimited{}), api.WithURLWarningLogger(slog.New(slog.DiscardHandler)), api.WithUserAgent("gitvirt"))
	return c, err
}

// unlimited is a limiter of the SDK that limits nothing.
type unlimited struct{}

// Wait implements the SDK's RateLimiter.
func (unlimited) Wait(context.Context) error { return nil }

// Name implements forges.Forge.
func (c *Client) Name() string { return c.name }

// CommentLimit implements forges.Forge.
func (c *Client) CommentLimit() int { return commentLimit }

// HeadRef implements forges.Forge.
func (c *Client) HeadRef(number int) string {
	return fmt.Sprintf("refs/merge-requests/%d/head", number)
}

// Account implements forges.Forge.
func (c *Client) Account(ctx context.Context) (string, error) {
	user, _, err := c.api.Users.CurrentUser(api.WithContext(ctx))
	if err == nil && user.Username == "" {
		err = errors.New("it answers without a login")
	}
	if err != nil {
		return "", rest.Error(ctx, "asking "+c.name+" whose credentials these are", err)
	}
	return user.Username, nil
}

// Changed implements forges.Forge.
func (c *Client) Changed(ctx context.Context, since time.Time) ([]forges.PullRequest, error) {
	pulls, err := rest.Changed(ctx, since, precision, c.list)
	return pulls, rest.Error(ctx, "listing the merge requests of "+c.name, err)
}

func (c *Client) list(ctx context.Context, open bool, page int) ([]forges.PullRequest, int, error) {
	options := api.ListProjectMergeRequestsOptions{State: api.Ptr("all"), OrderBy: api.Ptr("updated_at"), Sort: api.Ptr("desc"), ListOptions: pageOf(page)}
	if open {
		options.State = api.Ptr("opened")
	} else if page == 1 {
		ctx = rest.Remember(ctx)
	}
	got, response, err := c.api.MergeRequests.ListProjectMergeRequests(c.project, &options, api.WithContext(ctx))
	if err != nil {
		return nil, 0, err
	}
	pulls, err := rest.PullRequests(got, convert)
	return pulls, int(response.NextPage), err
}

func pageOf(page int) api.ListOptions { return api.ListOptions{Page: int64(page), PerPage: pageSize} }

// PullRequest implements forges.Forge.
func (c *Client) PullRequest(ctx context.Context, number int) (forges.PullRequest, error) {
	var pull forges.PullRequest
	got, _, err := c.api.MergeRequests.GetMergeRequest(c.project, int64(number), nil, api.WithContext(ctx))
	if err == nil {
		pull, err = convert(&got.BasicMergeRequest)
	}
	return pull, rest.Error(ctx, c.mergeRequest("reading", number), err)
}

func (c *Client) mergeRequest(doing string, number int) string {
	return fmt.Sprintf("%s merge request %d of %s", doing, number, c.name)
}

func convert(m *api.BasicMergeRequest) (forges.PullRequest, error) {
	if m == nil || m.UpdatedAt == nil {
		return forges.PullRequest{}, errors.New("it answers with a merge request that has no time")
	}
	pull := forges.PullRequest{
		Number: int(m.IID), Title: m.Title, State: forges.Open, Draft: m.Draft, Base: m.TargetBranch, Head: m.SHA,
		Fork: m.SourceProjectID == 0 || m.SourceProjectID != m.TargetProjectID, URL: m.WebURL, Updated: *m.UpdatedAt,
	}
	if m.Author != nil {
		pull.Author = m.Author.Username
	}
	switch m.State {
	case "merged":
		pull.State = forges.Merged
	case "closed":
		pull.State = forges.Closed
	case "opened", "locked": // it is locked while it is being merged
	default:
		return pull, fmt.Errorf("it answers with a merge request in the state %q", m.State)
	}
	return pull, rest.CheckPullRequest(pull)
}

// Comments implements forges.Forge. What GitLab notes itself and what is said beside lines of a change is not among them.
func (c *Client) Comments(ctx context.Context, number int) ([]forges.Comment, error) {
	var comments []forges.Comment
	options := api.ListMergeRequestNotesOptions{OrderBy: api.Ptr("created_at"), Sort: api.Ptr("asc")}
	err := rest.Pages(func(page int) (int, bool, error) {
		options.ListOptions = pageOf(page)
		got, response, err := c.api.Notes.ListMergeRequestNotes(c.project, int64(number), &options, api.WithContext(ctx))
		if err != nil {
			return 0, false, err
		}
		for _, note := range got {
			if note == nil || note.CreatedAt == nil || note.UpdatedAt == nil {
				return 0, false, errors.New("it answers with a comment that has no time")
			}
			read := forges.Comment{ID: note.ID, Author: note.Author.Username, Body: note.Body, Created: *note.CreatedAt, Updated: *note.UpdatedAt}
			if err := rest.CheckComment(read); err != nil {
				return 0, false, err
			}
			if !note.System && note.Type != api.DiffNote {
				comments = append(comments, read)
			}
		}
		return int(response.NextPage), true, nil
	})
	if err != nil {
		return nil, rest.Error(ctx, c.mergeRequest("reading the comments of", number), err)
	}
	return comments, nil
}

// Comment implements forges.Forge.
func (c *Client) Comment(ctx context.Context, number int, body string) (int64, error) {
	err := rest.CheckBody(body, commentLimit)
	var id int64
	if err == nil {
		var note *api.Note
		note, _, err = c.api.Notes.CreateMergeRequestNote(c.project, int64(number), &api.CreateMergeRequestNoteOptions{Body: &body}, api.WithContext(ctx))
		if err == nil && note.ID == 0 {
			err = errors.New("it answers without the comment")
		}
		if err == nil {
			id = note.ID
		}
	}
	return id, rest.Error(ctx, c.mergeRequest("commenting on", number), err)
}

// EditComment implements forges.Forge.
func (c *Client) EditComment(ctx context.Context, number int, id int64, body string) error {
	err := rest.CheckBody(body, commentLimit)
	if err == nil {
		_, _, err = c.api.Notes.UpdateMergeRequestNote(c.project, int64(number), id, &api.UpdateMergeRequestNoteOptions{Body: &body}, api.WithContext(ctx))
	}
	return rest.Error(ctx, c.mergeRequest("editing a comment on", number), err)
}

// DeleteComment implements forges.Forge.
func (c *Client) DeleteComment(ctx context.Context, number int, id int64) error {
	_, err := c.api.Notes.DeleteMergeRequestNote(c.project, int64(number), id, api.WithContext(ctx))
	if errors.Is(err, forges.ErrNotFound) {
		return nil
	}
	return rest.Error(ctx, c.mergeRequest("deleting a comment on", number), err)
}

// Permission implements forges.Forge. Who is no member, or a guest, may read what is public.
func (c *Client) Permission(ctx context.Context, login string) (forges.Permission, error) {
	if !rest.IsLogin(login) {
		return forges.NoPermission, nil
	}
	permission, err := c.permission(ctx, login)
	return permission, rest.Error(ctx, "asking what "+login+" may do in "+c.name, err)
}

func (c *Client) permission(ctx context.Context, login string) (forges.Permission, error) {
	users, _, err := c.api.Users.ListUsers(&api.ListUsersOptions{Username: &login}, api.WithContext(ctx))
	if err != nil {
		return forges.NoPermission, err
	}
	if len(users) == 0 {
		return forges.NoPermission, nil
	}
	user := users[0]
	if user == nil || user.ID == 0 || !strings.EqualFold(user.Username, login) {
		return forges.NoPermission, errors.New("it answers with another user")
	}
	if user.State != "active" {
		return forges.NoPermission, nil
	}
	member, _, err := c.api.ProjectMembers.GetInheritedProjectMember(c.project, user.ID, api.WithContext(ctx))
	switch {
	case errors.Is(err, forges.ErrNotFound): // no member, or no project, which is asked for below
	case err != nil:
		return forges.NoPermission, err
	case member.State != "" && member.State != "active":
		return forges.NoPermission, nil
	case member.AccessLevel >= api.MaintainerPermissions:
		return forges.Admin, nil
	case member.AccessLevel >= api.DeveloperPermissions:
		return forges.Write, nil
	case member.AccessLevel >= api.ReporterPermissions:
		return forges.Read, nil
	}
	project, _, err := c.api.Projects.GetProject(c.project, nil, api.WithContext(ctx))
	if err != nil {
		return forges.NoPermission, err
	}
	if project.Visibility == api.PublicVisibility {
		return forges.Read, nil
	}
	return forges.NoPermission, nil
}
