package forgetest

import (
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/gitvirt/gitvirt/forges"
)

type checkRun struct {
	id          int64
	app         *App
	name        string
	status      string
	conclusion  string
	url         string
	title       string
	summary     string
	started     time.Time
	annotations []forges.Annotation
}

// known finds a commit.
func (q *githubRequest) known(hash string) *commit {
	if c := q.repo.commits[hash]; c != nil {
		return c
	}
	q.fail(http.StatusUnprocessableEntity, "No commit found for SHA: "+hash)
	return nil
}

func githubStatus(s *status) object {
	return object{"id": s.id, "state": s.state, "context": s.context, "description": s.description, "target_url": s.url, "created_at": s.created, "updated_at": s.updated}
}

func (q *githubRequest) createStatus() {
	c := q.known(q.r.PathValue("sha"))
	var content struct {
		State, Context, Description string
		TargetURL                   string `json:"target_url"`
	}
	if c == nil || !q.decode(&content) {
		return
	}
	if !slices.Contains([]string{"error", "failure", "pending", "success"}, content.State) || utf8.RuneCountInString(content.Description) > forges.DescriptionLimit {
		q.fail(http.StatusUnprocessableEntity, "Validation Failed")
		return
	}
	if q.token.app != nil && !q.token.app.Statuses {
		q.fail(http.StatusForbidden, "Resource not accessible by integration")
		return
	}
	now := q.time()
	s := &status{
		id: q.id(), context: or(content.Context, "default"), state: content.State, description: content.Description, url: content.TargetURL,
		creator: q.token.user, created: now, updated: now,
	}
	c.statuses = append(c.statuses, s)
	answer(q.w, http.StatusCreated, githubStatus(s))
}

// latest returns the last status of each context, the last one first.
func latest(statuses []*status) []*status {
	seen := map[string]bool{}
	var result []*status
	for _, s := range slices.Backward(statuses) {
		if !seen[s.context] {
			seen[s.context] = true
			result = append(result, s)
		}
	}
	return result
}

func (q *githubRequest) combinedStatus() {
	c := q.known(q.r.PathValue("sha"))
	if c == nil {
		return
	}
	all := latest(c.statuses)
	q.conditional(object{"state": "pending", "sha": q.r.PathValue("sha"), "total_count": len(all), "statuses": listed(q, all, githubStatus)})
}

// checkRunContent is what a check run is made and changed with.
type checkRunContent struct {
	Name       *string
	HeadSHA    string  `json:"head_sha"`
	DetailsURL *string `json:"details_url"`
	Status     *string
	Conclusion *string
	Output     *struct {
		Title, Summary string
		Annotations    []struct {
			Path      string
			StartLine int    `json:"start_line"`
			EndLine   int    `json:"end_line"`
			Level     string `json:"annotation_level"`
			Message   string
		}
	}
}

// annotationsAtOnce is how many GitHub takes in one request.
const annotationsAtOnce = 50

func (q *githubRequest) fill(run *checkRun, content checkRunContent) bool {
	set := func(to, from *string) {
		if from != nil {
			*to = *from
		}
	}
	set(&run.name, content.Name)
	set(&run.url, content.DetailsURL)
	set(&run.status, content.Status)
	set(&run.conclusion, content.Conclusion)
	if run.conclusion != "" {
		run.status = "completed"
	}
	if content.Output == nil {
		return true
	}
	if len(content.Output.Annotations) > annotationsAtOnce || content.Output.Title == "" || content.Output.Summary == "" {
		q.fail(http.StatusUnprocessableEntity, "Invalid request.")
		return false
	}
	run.title, run.summary = content.Output.Title, content.Output.Summary
	for _, a := range content.Output.Annotations {
		if a.Path == "" || a.StartLine < 1 || a.EndLine < a.StartLine || a.Message == "" || !slices.Contains([]string{"notice", "warning", "failure"}, a.Level) {
			q.fail(http.StatusUnprocessableEntity, "Invalid request.")
			return false
		}
		run.annotations = append(run.annotations, forges.Annotation{Path: a.Path, Line: a.StartLine, Message: a.Message, Warning: a.Level == "warning"})
	}
	return true
}

func githubRun(run *checkRun) object {
	var conclusion any
	if run.conclusion != "" {
		conclusion = run.conclusion
	}
	return object{
		"id": run.id, "name": run.name, "status": run.status, "conclusion": conclusion, "details_url": run.url, "started_at": run.started,
		"app":    object{"id": run.app.ID, "slug": run.app.Slug},
		"output": object{"title": run.title, "summary": run.summary, "annotations_count": len(run.annotations)},
	}
}

func (q *githubRequest) createRun() {
	var content checkRunContent
	switch {
	case q.token.app == nil:
		q.fail(http.StatusForbidden, "You must authenticate via a GitHub App.")
	case !q.decode(&content):
	default:
		c := q.known(content.HeadSHA)
		if c == nil {
			return
		}
		run := &checkRun{id: q.id(), app: q.token.app, status: "queued", started: q.time()}
		if !q.fill(run, content) {
			return
		}
		c.runs = append(c.runs, run)
		answer(q.w, http.StatusCreated, githubRun(run))
	}
}

func (q *githubRequest) updateRun() {
	id, _ := strconv.ParseInt(q.r.PathValue("id"), 10, 64)
	for _, c := range q.repo.commits {
		for _, run := range c.runs {
			var content checkRunContent
			if run.id != id || run.app != q.token.app || !q.decode(&content) {
				continue
			}
			if q.fill(run, content) {
				answer(q.w, http.StatusOK, githubRun(run))
			}
			return
		}
	}
	q.fail(http.StatusNotFound, "Not Found")
}

// latestRuns returns the last check run of each name and app, the last one first.
func latestRuns(runs []*checkRun) []*checkRun {
	type key struct {
		app  *App
		name string
	}
	seen := map[key]bool{}
	var result []*checkRun
	for _, run := range slices.Backward(runs) {
		if k := (key{run.app, run.name}); !seen[k] {
			seen[k] = true
			result = append(result, run)
		}
	}
	return result
}

func (q *githubRequest) listRuns() {
	c := q.known(q.r.PathValue("sha"))
	if c == nil {
		return
	}
	runs := c.runs
	if or(q.r.URL.Query().Get("filter"), "latest") == "latest" {
		runs = latestRuns(runs)
	}
	if id := q.r.URL.Query().Get("app_id"); id != "" {
		runs = slices.DeleteFunc(slices.Clone(runs), func(run *checkRun) bool { return strconv.FormatInt(run.app.ID, 10) != id })
	}
	q.conditional(object{"total_count": len(runs), "check_runs": listed(q, runs, githubRun)})
}
