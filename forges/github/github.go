// Package github speaks to GitHub and GitHub Enterprise Server, with the token of an account or as a GitHub App. It implements forges.Forge.
package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	api "github.com/google/go-github/v89/github"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Config says where a repository is, and who asks. One of TokenFile and App is wanted.
type Config struct {
	// URL is the forge's, such as "https://github.com" or that of a GitHub Enterprise Server. The API's is found from it.
	URL string
	// Owner and Repository name the repository.
	Owner, Repository string
	// TokenFile holds the token of an account. A new one in it counts at once.
	TokenFile string
	// App is a GitHub App that is installed for the repository.
	App *App
	// CAFile holds PEM certificates that the server is trusted by besides the system's; may be empty.
	CAFile string
	// Clock is the system's when nil.
	Clock backoff.Clock
}

// App is a GitHub App. Its installation is found by itself.
type App struct {
	// ID is shown on the App's page.
	ID int64
	// PrivateKeyFile holds the key that GitHub has made for it, in PEM.
	PrivateKeyFile string
}

const (
	// commentLimit is GitHub's, in characters.
	commentLimit = 65536
	// pageSize is the largest that GitHub has.
	pageSize = 100
	// precision is that of GitHub's times.
	precision = time.Second
)

// Client is one repository on GitHub.
type Client struct {
	name        string
	owner, repo string
	api         *api.Client
	// app is nil with a token.
	app *appCredential
}

var _ forges.Forge = (*Client)(nil)

// New returns a client. It makes no request.
func New(config Config) (*Client, error) {
	base, err := rest.BaseURL(config.URL)
	if err != nil {
		return nil, err
	}
	switch {
	case !rest.IsLogin(config.Owner) || !rest.IsName(config.Repository):
		return nil, fmt.Errorf("the repository is %q; want OWNER/NAME", config.Owner+"/"+config.Repository)
	case (config.TokenFile == "") == (config.App == nil):
		return nil, errors.New("want either a token file or a GitHub App")
	case config.App != nil && (config.App.ID <= 0 || config.App.PrivateKeyFile == ""):
		return nil, errors.New("a GitHub App wants its ID and the file of its private key")
	}
	root := apiURL(base)
	c := &Client{name: base.Host + base.Path + "/" + config.Owner + "/" + config.Repository, owner: config.Owner, repo: config.Repository}
	transport := rest.Config{Base: root, CAFile: config.CAFile, Clock: config.Clock, Authorize: authorize}
	if config.App == nil {
		transport.Credential = rest.TokenFile(config.TokenFile)
	} else {
		unsigned, err := rest.NewClient(transport)
		if err != nil {
			return nil, err
		}
		c.app = newAppCredential(*config.App, config.Owner, config.Repository, root, unsigned, transport.Clock)
		transport.Credential = c.app
	}
	client, err := rest.NewClient(transport)
	if err != nil {
		return nil, err
	}
	c.api, err = newAPI(root, client)
	return c, err
}

func authorize(h http.Header, token string) { h.Set("Authorization", "Bearer "+token) }

// newAPI leaves limits to package rest: they are the same for all clients of an account.
func newAPI(root *url.URL, client *http.Client) (*api.Client, error) {
	address := root.String() + "/"
	return api.NewClient(api.WithHTTPClient(client), api.WithURLs(&address, &address), api.WithUserAgent("gitvirt"), api.WithDisableRateLimitCheck())
}

// apiURL returns where the API of a GitHub is: beside github.com and the tenants of ghe.com, and below an Enterprise Server.
// https://docs.github.com/en/rest/using-the-rest-api/getting-started-with-the-rest-api
func apiURL(base *url.URL) *url.URL {
	root := *base
	switch host := strings.ToLower(base.Hostname()); {
	case host == "github.com" || host == "www.github.com" || host == "api.github.com":
		root.Host, root.Path = "api.github.com", ""
	case strings.HasSuffix(host, ".ghe.com") && !strings.HasPrefix(host, "api."):
		root.Host = "api." + root.Host
	case strings.HasSuffix(host, ".ghe.com"):
	case !strings.HasSuffix(root.Path, "/api/v3"):
		root.Path += "/api/v3"
	}
	return &root
}

// Name implements forges.Forge.
func (c *Client) Name() string { return c.name }

// CommentLimit implements forges.Forge.
func (c *Client) CommentLimit() int { return commentLimit }

// HeadRef implements forges.Forge.
func (c *Client) HeadRef(number int) string { return fmt.Sprintf("refs/pull/%d/head", number) }

// Account implements forges.Forge. That of an App is its slug with "[bot]", which is who its comments are by.
func (c *Client) Account(ctx context.Context) (string, error) {
	doing := "asking " + c.name + " whose credentials these are"
	if c.app != nil {
		login, err := c.app.login(ctx)
		return login, rest.Error(ctx, doing, err)
	}
	user, _, err := c.api.Users.Get(ctx, "")
	if err == nil && user.GetLogin() == "" {
		err = errors.New("it answers without a login")
	}
	return user.GetLogin(), rest.Error(ctx, doing, err)
}

// Changed implements forges.Forge.
func (c *Client) Changed(ctx context.Context, since time.Time) ([]forges.PullRequest, error) {
	pulls, err := rest.Changed(ctx, since, precision, c.list)
	return pulls, rest.Error(ctx, "listing the pull requests of "+c.name, err)
}

func (c *Client) list(ctx context.Context, open bool, page int) ([]forges.PullRequest, int, error) {
	options := api.PullRequestListOptions{State: "all", Sort: "updated", Direction: "desc", ListOptions: api.ListOptions{Page: page, PerPage: pageSize}}
	if open {
		options.State = "open"
	} else if page == 1 {
		ctx = rest.Remember(ctx)
	}
	got, response, err := c.api.PullRequests.List(ctx, c.owner, c.repo, &options)
	if err != nil {
		return nil, 0, err
	}
	pulls, err := rest.PullRequests(got, convert)
	return pulls, response.NextPage, err
}

// PullRequest implements forges.Forge.
func (c *Client) PullRequest(ctx context.Context, number int) (forges.PullRequest, error) {
	var pull forges.PullRequest
	got, _, err := c.api.PullRequests.Get(ctx, c.owner, c.repo, number)
	if err == nil {
		pull, err = convert(got)
	}
	return pull, rest.Error(ctx, c.pullRequest("reading", number), err)
}

func (c *Client) pullRequest(doing string, number int) string {
	return fmt.Sprintf("%s pull request %d of %s", doing, number, c.name)
}

func convert(p *api.PullRequest) (forges.PullRequest, error) {
	pull := forges.PullRequest{
		Number: p.GetNumber(), Title: p.GetTitle(), Author: p.GetUser().GetLogin(), State: forges.Open, Draft: p.GetDraft(),
		Base: p.GetBase().GetRef(), Head: p.GetHead().GetSHA(), URL: p.GetHTMLURL(), Updated: p.GetUpdatedAt().Time,
	}
	from, to := p.GetHead().GetRepo(), p.GetBase().GetRepo()
	pull.Fork = from == nil || from.GetID() != to.GetID()
	if !p.GetMergedAt().IsZero() {
		pull.State = forges.Merged
	} else if p.GetState() != "open" {
		pull.State = forges.Closed
	}
	return pull, rest.CheckPullRequest(pull)
}

// Comments implements forges.Forge. What is said beside lines of a change is not among them.
func (c *Client) Comments(ctx context.Context, number int) ([]forges.Comment, error) {
	var comments []forges.Comment
	err := rest.Pages(func(page int) (int, bool, error) {
		got, response, err := c.api.Issues.ListComments(ctx, c.owner, c.repo, number, &api.IssueListCommentsOptions{ListOptions: api.ListOptions{Page: page, PerPage: pageSize}})
		if err != nil {
			return 0, false, err
		}
		for _, comment := range got {
			read := forges.Comment{
				ID: comment.GetID(), Author: comment.GetUser().GetLogin(), Body: comment.GetBody(),
				Created: comment.GetCreatedAt().Time, Updated: comment.GetUpdatedAt().Time,
			}
			if err := rest.CheckComment(read); err != nil {
				return 0, false, err
			}
			comments = append(comments, read)
		}
		return response.NextPage, true, nil
	})
	if err != nil {
		return nil, rest.Error(ctx, c.pullRequest("reading the comments of", number), err)
	}
	return comments, nil
}

// Comment implements forges.Forge.
func (c *Client) Comment(ctx context.Context, number int, body string) (int64, error) {
	err := rest.CheckBody(body, commentLimit)
	var comment *api.IssueComment
	if err == nil {
		comment, _, err = c.api.Issues.CreateComment(ctx, c.owner, c.repo, number, &api.IssueComment{Body: &body})
	}
	if err == nil && comment.GetID() == 0 {
		err = errors.New("it answers without the comment")
	}
	return comment.GetID(), rest.Error(ctx, c.pullRequest("commenting on", number), err)
}

// EditComment implements forges.Forge.
func (c *Client) EditComment(ctx context.Context, number int, id int64, body string) error {
	err := rest.CheckBody(body, commentLimit)
	if err == nil {
		_, _, err = c.api.Issues.EditComment(ctx, c.owner, c.repo, id, &api.IssueComment{Body: &body})
	}
	return rest.Error(ctx, c.pullRequest("editing a comment on", number), err)
}

// DeleteComment implements forges.Forge.
func (c *Client) DeleteComment(ctx context.Context, number int, id int64) error {
	_, err := c.api.Issues.DeleteComment(ctx, c.owner, c.repo, id)
	if errors.Is(err, forges.ErrNotFound) {
		return nil
	}
	return rest.Error(ctx, c.pullRequest("deleting a comment on", number), err)
}

// Permission implements forges.Forge. "maintain" is a kind of write, and "triage" of read.
func (c *Client) Permission(ctx context.Context, login string) (forges.Permission, error) {
	if !rest.IsLogin(login) {
		return forges.NoPermission, nil
	}
	doing := "asking what " + login + " may do in " + c.name
	level, _, err := c.api.Repositories.GetPermissionLevel(ctx, c.owner, c.repo, login)
	if errors.Is(err, forges.ErrNotFound) {
		// Either the user or the repository is not there.
		if _, _, known := c.api.Users.Get(ctx, login); errors.Is(known, forges.ErrNotFound) {
			return forges.NoPermission, nil
		}
	}
	if err != nil {
		return forges.NoPermission, rest.Error(ctx, doing, err)
	}
	switch level.GetPermission() {
	case "admin":
		return forges.Admin, nil
	case "write", "maintain":
		return forges.Write, nil
	case "read", "triage":
		return forges.Read, nil
	case "none":
		return forges.NoPermission, nil
	}
	return forges.NoPermission, rest.Error(ctx, doing, fmt.Errorf("it answers with the permission %q", level.GetPermission()))
}
