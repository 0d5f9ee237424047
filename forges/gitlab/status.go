package gitlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	api "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// SetStatus implements forges.Forge. GitLab shows it as a job of an external pipeline, which has a state machine: what is pending cannot
// become pending once more, and a commit that is on no branch of the project wants to be told where it is. GitLab has no annotations.
// https://docs.gitlab.com/api/commits/#commit-status
func (c *Client) SetStatus(ctx context.Context, commit string, status forges.Status) error {
	description, err := rest.CheckStatus(commit, status)
	if err == nil {
		options := api.SetCommitStatusOptions{State: stateFor(status.State), Name: &status.Context, Description: &description}
		if status.URL != "" {
			options.TargetURL = &status.URL
		}
		err = c.setStatus(rest.Idempotent(ctx), commit, options)
	}
	return rest.Error(ctx, "telling the status "+status.Context+" of "+commit+" in "+c.name, err)
}

func (c *Client) setStatus(ctx context.Context, commit string, options api.SetCommitStatusOptions) error {
	set := func(state api.BuildStateValue) error {
		options.State = state
		_, _, err := c.api.Commits.SetCommitStatus(c.project, commit, &options, api.WithContext(ctx))
		if rest.Is(err, http.StatusConflict) {
			return fmt.Errorf("%w: another status of the commit is being set", forges.ErrUnavailable)
		}
		return err
	}
	state := options.State
	err := set(state)
	if rest.Is(err, http.StatusNotFound) && strings.Contains(rest.Message(err), "References for commit") {
		ref, found := c.mergeRequestOf(ctx, commit)
		if found != nil {
			return errors.Join(err, found)
		}
		options.Ref = &ref
		err = set(state)
	}
	if !rest.Is(err, http.StatusBadRequest) || !strings.Contains(rest.Message(err), "Cannot transition status") {
		return err
	}
	// Either it is told already, or it is to have other words: then it is ended first, as neither good nor bad.
	last, err := c.lastStatuses(ctx, commit)
	if err != nil {
		return err
	}
	if now := last[*options.Name]; now != nil && now.Status == string(state) && now.Description == *options.Description && (options.TargetURL == nil || now.TargetURL == *options.TargetURL) {
		return nil
	}
	if err := set(api.Canceled); err != nil {
		return err
	}
	return set(state)
}

// mergeRequestOf returns a reference to a commit that is known by its merge request only, as those from forks are.
func (c *Client) mergeRequestOf(ctx context.Context, commit string) (string, error) {
	merges, _, err := c.api.Commits.ListMergeRequestsByCommit(c.project, commit, api.WithContext(ctx))
	if err != nil {
		return "", err
	}
	for _, m := range merges {
		if m != nil && m.SHA == commit {
			return c.HeadRef(int(m.IID)), nil
		}
	}
	return "", fmt.Errorf("%w: the commit is the head of no merge request", forges.ErrNotFound)
}

func stateFor(state forges.StatusState) api.BuildStateValue {
	switch state {
	case forges.Success:
		return api.Success
	case forges.Failure:
		return api.Failed
	case forges.Pending:
	}
	return api.Pending
}

// Statuses implements forges.Forge. Jobs of pipelines are among them.
func (c *Client) Statuses(ctx context.Context, commit string) ([]forges.Status, error) {
	err := rest.CheckCommit(commit)
	var last map[string]*api.CommitStatus
	if err == nil {
		last, err = c.lastStatuses(ctx, commit)
	}
	if err != nil {
		return nil, rest.Error(ctx, "reading the statuses of "+commit+" in "+c.name, err)
	}
	var statuses []forges.Status
	for _, s := range last {
		statuses = append(statuses, forges.Status{Context: s.Name, State: stateOf(s.Status), Description: s.Description, URL: s.TargetURL})
	}
	return statuses, nil
}

// lastStatuses returns the last status of each name; a commit may have several pipelines.
func (c *Client) lastStatuses(ctx context.Context, commit string) (map[string]*api.CommitStatus, error) {
	last := map[string]*api.CommitStatus{}
	err := rest.Pages(func(page int) (int, bool, error) {
		got, response, err := c.api.Commits.GetCommitStatuses(c.project, commit, &api.GetCommitStatusesOptions{ListOptions: pageOf(page)}, api.WithContext(ctx))
		if err != nil {
			return 0, false, err
		}
		for _, s := range got {
			if s == nil || s.ID == 0 || s.Name == "" {
				return 0, false, errors.New("it answers with a status that is none")
			}
			if known := last[s.Name]; known == nil || known.ID < s.ID {
				last[s.Name] = s
			}
		}
		return int(response.NextPage), true, nil
	})
	return last, err
}

func stateOf(state string) forges.StatusState {
	switch state {
	case "success", "skipped", "manual":
		return forges.Success
	case "failed", "canceled", "canceling":
		return forges.Failure
	}
	return forges.Pending // created, waiting, preparing, scheduled, running
}
