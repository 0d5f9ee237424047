// Package gitea speaks to Gitea and to Forgejo, which has the same API. It implements forges.Forge.
package gitea

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	api "code.gitea.io/sdk/gitea"

	"github.com/gitvirt/gitvirt/backoff"
	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Config says where a repository is, and who asks.
type Config struct {
	// URL is the forge's, such as "https://gitea.example.com" or "https://example.com/git".
	URL string
	// Owner and Repository name the repository.
	Owner, Repository string
	// TokenFile holds the token of an account. A new one in it counts at once.
	TokenFile string
	// CAFile holds PEM certificates that the server is trusted by besides the system's; may be empty.
	CAFile string
	// Clock is the system's when nil.
	Clock backoff.Clock
}

const (
	// commentLimit is ours, in characters: Gitea names none, and browsers are slow with more.
	commentLimit = 262144
	// pageSize is the largest that Gitea has, unless its administrator has set another.
	pageSize = 50
	// precision is that of Gitea's times.
	precision = time.Second
)

// Client is one repository on a Gitea.
type Client struct {
	name        string
	url         string
	owner, repo string
	http        *http.Client
}

var _ forges.Forge = (*Client)(nil)

// New returns a client. It makes no request.
func New(config Config) (*Client, error) {
	base, err := rest.BaseURL(config.URL)
	switch {
	case err != nil:
		return nil, err
	case !rest.IsLogin(config.Owner) || !rest.IsName(config.Repository):
		return nil, fmt.Errorf("the repository is %q; want OWNER/NAME", config.Owner+"/"+config.Repository)
	case config.TokenFile == "":
		return nil, errors.New("want a token file")
	}
	client, err := rest.NewClient(rest.Config{
		Base: base, CAFile: config.CAFile, Clock: config.Clock, Credential: rest.TokenFile(config.TokenFile),
		Authorize: func(h http.Header, token string) { h.Set("Authorization", "token "+token) },
	})
	if err != nil {
		return nil, err
	}
	name := base.Host + base.Path + "/" + config.Owner + "/" + config.Repository
	return &Client{name: name, url: base.String(), owner: config.Owner, repo: config.Repository, http: client}, nil
}

// api returns a client of the SDK for one call: it keeps the context, which is the call's. It asks nobody for its version, since all that
// is used here has been there since Gitea 1.20 and Forgejo.
func (c *Client) api(ctx context.Context) (*api.Client, error) {
	return api.NewClient(c.url, api.SetContext(ctx), api.SetHTTPClient(c.http), api.SetGiteaVersion(""), api.SetUserAgent("gitvirt"))
}

// call makes a request with the SDK.
func call[T any](ctx context.Context, c *Client, request func(*api.Client) (T, *api.Response, error)) (T, *api.Response, error) {
	client, err := c.api(ctx)
	if err != nil {
		var none T
		return none, nil, err
	}
	return request(client)
}

// Name implements forges.Forge.
func (c *Client) Name() string { return c.name }

// CommentLimit implements forges.Forge.
func (c *Client) CommentLimit() int { return commentLimit }

// HeadRef implements forges.Forge.
func (c *Client) HeadRef(number int) string { return fmt.Sprintf("refs/pull/%d/head", number) }

// Account implements forges.Forge.
func (c *Client) Account(ctx context.Context) (string, error) {
	user, _, err := call(ctx, c, (*api.Client).GetMyUserInfo)
	if err == nil && user.UserName == "" {
		err = errors.New("it answers without a login")
	}
	if err != nil {
		return "", rest.Error(ctx, "asking "+c.name+" whose credentials these are", err)
	}
	return user.UserName, nil
}

// Changed implements forges.Forge.
func (c *Client) Changed(ctx context.Context, since time.Time) ([]forges.PullRequest, error) {
	pulls, err := rest.Changed(ctx, since, precision, c.list)
	return pulls, rest.Error(ctx, "listing the pull requests of "+c.name, err)
}

func (c *Client) list(ctx context.Context, open bool, page int) ([]forges.PullRequest, int, error) {
	options := api.ListPullRequestsOptions{State: api.StateAll, Sort: "recentupdate", ListOptions: api.ListOptions{Page: page, PageSize: pageSize}}
	if open {
		options.State = api.StateOpen
	}
	got, response, err := call(ctx, c, func(client *api.Client) ([]*api.PullRequest, *api.Response, error) {
		return client.ListRepoPullRequests(c.owner, c.repo, options)
	})
	if err != nil {
		return nil, 0, err
	}
	pulls, err := rest.PullRequests(got, convert)
	return pulls, response.NextPage, err
}

// PullRequest implements forges.Forge.
func (c *Client) PullRequest(ctx context.Context, number int) (forges.PullRequest, error) {
	var pull forges.PullRequest
	got, _, err := call(ctx, c, func(client *api.Client) (*api.PullRequest, *api.Response, error) {
		return client.GetPullRequest(c.owner, c.repo, int64(number))
	})
	if err == nil {
		pull, err = convert(got)
	}
	return pull, rest.Error(ctx, c.pullRequest("reading", number), err)
}

func (c *Client) pullRequest(doing string, number int) string {
	return fmt.Sprintf("%s pull request %d of %s", doing, number, c.name)
}

func convert(p *api.PullRequest) (forges.PullRequest, error) {
	if p == nil || p.Head == nil || p.Base == nil || p.Updated == nil {
		return forges.PullRequest{}, errors.New("it answers with a pull request that has no head, base or time")
	}
	pull := forges.PullRequest{
		Number: int(p.Index), Title: p.Title, State: forges.Open, Draft: p.Draft,
		Base: p.Base.Ref, Head: p.Head.Sha, URL: p.HTMLURL, Updated: *p.Updated,
		Fork: p.Head.Repository == nil || p.Head.RepoID != p.Base.RepoID,
	}
	if p.Poster != nil {
		pull.Author = p.Poster.UserName
	}
	if p.HasMerged {
		pull.State = forges.Merged
	} else if p.State != api.StateOpen {
		pull.State = forges.Closed
	}
	return pull, rest.CheckPullRequest(pull)
}

// Permission implements forges.Forge. Gitea tells it to administrators of the repository only.
func (c *Client) Permission(ctx context.Context, login string) (forges.Permission, error) {
	if !rest.IsLogin(login) {
		return forges.NoPermission, nil
	}
	doing := "asking what " + login + " may do in " + c.name
	got, _, err := call(ctx, c, func(client *api.Client) (*api.CollaboratorPermissionResult, *api.Response, error) {
		return client.CollaboratorPermission(c.owner, c.repo, login)
	})
	if errors.Is(err, forges.ErrNotFound) {
		// Either the user or the repository is not there.
		_, _, known := call(ctx, c, func(client *api.Client) (*api.User, *api.Response, error) { return client.GetUserInfo(login) })
		if errors.Is(known, forges.ErrNotFound) {
			return forges.NoPermission, nil
		}
	}
	if err != nil {
		return forges.NoPermission, rest.Error(ctx, doing, err)
	}
	switch got.Permission {
	case api.AccessModeOwner, api.AccessModeAdmin:
		return forges.Admin, nil
	case api.AccessModeWrite:
		return forges.Write, nil
	case api.AccessModeRead:
		return forges.Read, nil
	case api.AccessModeNone:
		return forges.NoPermission, nil
	}
	return forges.NoPermission, rest.Error(ctx, doing, fmt.Errorf("it answers with the permission %q", got.Permission))
}
