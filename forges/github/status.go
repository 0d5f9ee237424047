package github

import (
	"context"
	"errors"

	api "github.com/google/go-github/v89/github"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

const (
	// annotationsAtOnce is how many annotations GitHub takes in one request; more are sent after them.
	// https://docs.github.com/en/rest/checks/runs
	annotationsAtOnce = 50
	// annotationsLimit bounds the requests of one status. Whoever has made so many mistakes finds the others after mending these.
	annotationsLimit = 500
)

// SetStatus implements forges.Forge. An App tells it as a check run, which shows annotations and which only Apps may make; with a token it is a
// commit status without them.
func (c *Client) SetStatus(ctx context.Context, commit string, status forges.Status) error {
	description, err := rest.CheckStatus(commit, status)
	ctx = rest.Idempotent(ctx)
	switch {
	case err != nil:
	case c.app != nil:
		err = c.setCheckRun(ctx, commit, status, description)
	default:
		_, _, err = c.api.Repositories.CreateStatus(ctx, c.owner, c.repo, commit, api.RepoStatus{
			Context: &status.Context, State: api.Ptr(string(status.State)), Description: &description, TargetURL: pointer(status.URL),
		})
	}
	return rest.Error(ctx, "telling the status "+status.Context+" of "+commit+" in "+c.name, err)
}

// pointer returns nil for an empty text, which GitHub takes for a bad URL.
func pointer(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// setCheckRun makes a new check run, which takes the place of an earlier one of the same name.
func (c *Client) setCheckRun(ctx context.Context, commit string, status forges.Status, description string) error {
	state, conclusion := "completed", api.Ptr(string(status.State))
	if status.State == forges.Pending {
		state, conclusion = "in_progress", nil
	}
	if description == "" {
		description = string(status.State) // it may not be empty
	}
	annotations := convertAnnotations(status.Annotations)
	first, rest := annotations[:min(len(annotations), annotationsAtOnce)], annotations[min(len(annotations), annotationsAtOnce):]
	run, _, err := c.api.Checks.CreateCheckRun(ctx, c.owner, c.repo, api.CreateCheckRunOptions{
		Name: status.Context, HeadSHA: commit, DetailsURL: pointer(status.URL), Status: &state, Conclusion: conclusion,
		Output: &api.CheckRunOutput{Title: &description, Summary: &description, Annotations: first},
	})
	for err == nil && len(rest) > 0 {
		first, rest = rest[:min(len(rest), annotationsAtOnce)], rest[min(len(rest), annotationsAtOnce):]
		_, _, err = c.api.Checks.UpdateCheckRun(ctx, c.owner, c.repo, run.GetID(), api.UpdateCheckRunOptions{
			Name: status.Context, Output: &api.CheckRunOutput{Title: &description, Summary: &description, Annotations: first},
		})
	}
	return err
}

func convertAnnotations(annotations []forges.Annotation) []*api.CheckRunAnnotation {
	var result []*api.CheckRunAnnotation
	for _, a := range annotations[:min(len(annotations), annotationsLimit)] {
		level := "failure"
		if a.Warning {
			level = "warning"
		}
		result = append(result, &api.CheckRunAnnotation{
			Path: &a.Path, StartLine: api.Ptr(max(a.Line, 1)), EndLine: api.Ptr(max(a.Line, 1)), AnnotationLevel: &level, Message: &a.Message,
		})
	}
	return result
}

// Statuses implements forges.Forge. Of check runs it has those that the App itself has made.
func (c *Client) Statuses(ctx context.Context, commit string) ([]forges.Status, error) {
	err := rest.CheckCommit(commit)
	var statuses []forges.Status
	if err == nil {
		statuses, err = c.commitStatuses(ctx, commit)
	}
	if err == nil && c.app != nil {
		var runs []forges.Status
		runs, err = c.checkRuns(ctx, commit)
		statuses = append(statuses, runs...)
	}
	if err != nil {
		return nil, rest.Error(ctx, "reading the statuses of "+commit+" in "+c.name, err)
	}
	return statuses, nil
}

func (c *Client) commitStatuses(ctx context.Context, commit string) ([]forges.Status, error) {
	var statuses []forges.Status
	err := rest.Pages(func(page int) (int, bool, error) {
		got, response, err := c.api.Repositories.GetCombinedStatus(ctx, c.owner, c.repo, commit, &api.ListOptions{Page: page, PerPage: pageSize})
		if err != nil {
			return 0, false, err
		}
		if got.GetSHA() == "" {
			return 0, false, errors.New("it answers with no statuses of a commit")
		}
		for _, s := range got.Statuses {
			statuses = append(statuses, forges.Status{Context: s.GetContext(), State: stateOf(s.GetState()), Description: s.GetDescription(), URL: s.GetTargetURL()})
		}
		return response.NextPage, true, nil
	})
	return statuses, err
}

func (c *Client) checkRuns(ctx context.Context, commit string) ([]forges.Status, error) {
	var statuses []forges.Status
	err := rest.Pages(func(page int) (int, bool, error) {
		got, response, err := c.api.Checks.ListCheckRunsForRef(ctx, c.owner, c.repo, commit, &api.ListCheckRunsOptions{
			Filter: api.Ptr("latest"), AppID: &c.app.id, ListOptions: api.ListOptions{Page: page, PerPage: pageSize},
		})
		if err != nil {
			return 0, false, err
		}
		if got.Total == nil {
			return 0, false, errors.New("it answers with no check runs")
		}
		for _, run := range got.CheckRuns {
			state := forges.Pending
			if run.GetStatus() == "completed" {
				state = stateOf(run.GetConclusion())
			}
			statuses = append(statuses, forges.Status{Context: run.GetName(), State: state, Description: run.GetOutput().GetTitle(), URL: run.GetDetailsURL()})
		}
		return response.NextPage, true, nil
	})
	return statuses, err
}

// stateOf reads GitHub's states of statuses and the conclusions of check runs.
func stateOf(text string) forges.StatusState {
	switch text {
	case "pending":
		return forges.Pending
	case "success", "neutral", "skipped":
		return forges.Success
	}
	return forges.Failure
}
