package gitea

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	api "code.gitea.io/sdk/gitea"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// SetStatus implements forges.Forge. Gitea has no annotations.
func (c *Client) SetStatus(ctx context.Context, commit string, status forges.Status) error {
	description, err := rest.CheckStatus(commit, status)
	if err == nil {
		_, _, err = call(rest.Idempotent(ctx), c, func(client *api.Client) (*api.Status, *api.Response, error) {
			return client.CreateStatus(c.owner, c.repo, commit, api.CreateStatusOption{
				State: api.StatusState(status.State), Context: status.Context, Description: description, TargetURL: status.URL,
			})
		})
	}
	if rest.Is(err, http.StatusInternalServerError) {
		// Gitea answers so for a commit that is not there.
		_, _, none := call(ctx, c, func(client *api.Client) (*api.Commit, *api.Response, error) {
			return client.GetSingleCommit(c.owner, c.repo, commit)
		})
		if errors.Is(none, forges.ErrNotFound) {
			err = none
		}
	}
	return rest.Error(ctx, "telling the status "+status.Context+" of "+commit+" in "+c.name, err)
}

// Statuses implements forges.Forge.
func (c *Client) Statuses(ctx context.Context, commit string) ([]forges.Status, error) {
	err := rest.CheckCommit(commit)
	var statuses []forges.Status
	if err == nil {
		err = rest.Pages(func(page int) (int, bool, error) {
			got, total, err := c.statusPage(ctx, commit, page)
			for _, s := range got {
				statuses = append(statuses, forges.Status{Context: s.Context, State: stateOf(s.State), Description: s.Description, URL: s.TargetURL})
			}
			return page + 1, len(got) > 0 && len(statuses) != total, err
		})
	}
	if err != nil {
		return nil, rest.Error(ctx, "reading the statuses of "+commit+" in "+c.name, err)
	}
	return statuses, nil
}

// statusPage returns a page of the last statuses of each context, and how many there are on all pages, or -1. The SDK knows the first page of
// them only, or all that was ever told.
func (c *Client) statusPage(ctx context.Context, commit string, page int) ([]*api.Status, int, error) {
	address := fmt.Sprintf("%s/api/v1/repos/%s/%s/commits/%s/status?page=%d&limit=%d", c.url, c.owner, c.repo, commit, page, pageSize)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, 0, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, err
	}
	var combined api.CombinedStatus
	if err := errors.Join(json.NewDecoder(response.Body).Decode(&combined), response.Body.Close()); err != nil {
		return nil, 0, err
	}
	if combined.SHA == "" {
		return nil, 0, errors.New("it answers with no statuses of a commit")
	}
	for _, s := range combined.Statuses {
		if s == nil {
			return nil, 0, errors.New("it answers with a status that is none")
		}
	}
	total, err := strconv.Atoi(response.Header.Get("X-Total-Count"))
	if err != nil {
		total = -1
	}
	return combined.Statuses, total, nil
}

func stateOf(state api.StatusState) forges.StatusState {
	switch state {
	case api.StatusPending:
		return forges.Pending
	case api.StatusSuccess, api.StatusWarning, "skipped":
		return forges.Success
	case api.StatusFailure, api.StatusError:
	}
	return forges.Failure
}
