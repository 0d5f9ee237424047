package gitea

import (
	"context"
	"errors"
	"net/http"

	api "code.gitea.io/sdk/gitea"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Comments implements forges.Forge. Gitea has no pages of them; what is said beside lines of a change is not among them.
func (c *Client) Comments(ctx context.Context, number int) ([]forges.Comment, error) {
	got, _, err := call(ctx, c, func(client *api.Client) ([]*api.Comment, *api.Response, error) {
		return client.ListIssueComments(c.owner, c.repo, int64(number), api.ListIssueCommentOptions{})
	})
	var comments []forges.Comment
	for _, comment := range got {
		if err == nil && comment == nil {
			err = errors.New("it answers with a comment that is none")
		}
		if err != nil {
			break
		}
		read := forges.Comment{ID: comment.ID, Body: comment.Body, Created: comment.Created, Updated: comment.Updated}
		if comment.Poster != nil {
			read.Author = comment.Poster.UserName
		}
		comments = append(comments, read)
		err = rest.CheckComment(read)
	}
	if err != nil {
		return nil, rest.Error(ctx, c.pullRequest("reading the comments of", number), c.orNoPullRequest(ctx, number, err))
	}
	return comments, nil
}

// orNoPullRequest finds out whether there is a pull request at all, where Gitea has answered with 500: it does that for comments on nothing.
func (c *Client) orNoPullRequest(ctx context.Context, number int, err error) error {
	if !rest.Is(err, http.StatusInternalServerError) {
		return err
	}
	if _, none := c.PullRequest(ctx, number); errors.Is(none, forges.ErrNotFound) {
		return none
	}
	return err
}

// Comment implements forges.Forge.
func (c *Client) Comment(ctx context.Context, number int, body string) (int64, error) {
	err := rest.CheckBody(body, commentLimit)
	var id int64
	if err == nil {
		var comment *api.Comment
		comment, _, err = call(ctx, c, func(client *api.Client) (*api.Comment, *api.Response, error) {
			return client.CreateIssueComment(c.owner, c.repo, int64(number), api.CreateIssueCommentOption{Body: body})
		})
		if err == nil && comment.ID == 0 {
			err = errors.New("it answers without the comment")
		}
		if err == nil {
			id = comment.ID
		}
	}
	return id, rest.Error(ctx, c.pullRequest("commenting on", number), c.orNoPullRequest(ctx, number, err))
}

// EditComment implements forges.Forge.
func (c *Client) EditComment(ctx context.Context, number int, id int64, body string) error {
	err := rest.CheckBody(body, commentLimit)
	if err == nil {
		_, _, err = call(ctx, c, func(client *api.Client) (*api.Comment, *api.Response, error) {
			return client.EditIssueComment(c.owner, c.repo, id, api.EditIssueCommentOption{Body: body})
		})
	}
	return rest.Error(ctx, c.pullRequest("editing a comment on", number), err)
}

// DeleteComment implements forges.Forge.
func (c *Client) DeleteComment(ctx context.Context, number int, id int64) error {
	_, _, err := call(ctx, c, func(client *api.Client) (struct{}, *api.Response, error) {
		response, err := client.DeleteIssueComment(c.owner, c.repo, id)
		return struct{}{}, response, err
	})
	if errors.Is(err, forges.ErrNotFound) {
		return nil
	}
	return rest.Error(ctx, c.pullRequest("deleting a comment on", number), err)
}
