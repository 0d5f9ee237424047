package forgetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

func gitlabStatus(s *status) object {
	return object{
		"id": s.id, "name": s.context, "status": s.state, "description": s.description, "target_url": s.url, "ref": s.ref,
		"author": gitlabUser(s.creator), "created_at": s.created,
	}
}

func (q *gitlabRequest) known() *commit {
	if c := q.repo.commits[q.r.PathValue("sha")]; c != nil {
		return c
	}
	q.fail(http.StatusNotFound, "404 Commit Not Found")
	return nil
}

// createStatus follows GitLab's state machine: what is pending or running is changed, where that is a transition, and anything else is a
// new status in place of the one before. What is on no branch, and has no pipeline yet, wants its reference named.
func (q *gitlabRequest) createStatus() {
	c := q.known()
	if c == nil {
		return
	}
	var content struct {
		State, Name, Context, Description, Ref string
		TargetURL                              string `json:"target_url"`
	}
	if err := json.NewDecoder(q.r.Body).Decode(&content); err != nil {
		answer(q.w, http.StatusBadRequest, object{"error": "state is missing"})
		return
	}
	event := map[string]string{"pending": "enqueue", "running": "run", "success": "success", "failed": "drop", "canceled": "cancel", "skipped": "skip"}[content.State]
	if event == "" {
		answer(q.w, http.StatusBadRequest, object{"error": "state does not have a valid value"})
		return
	}
	ref := content.Ref
	if ref == "" && len(c.statuses) > 0 {
		ref = c.statuses[0].ref
	}
	if ref == "" && c.onBranch {
		ref = "change"
	}
	if ref == "" {
		q.fail(http.StatusNotFound, "404 References for commit Not Found")
		return
	}
	name := or(content.Name, or(content.Context, "default"))
	live := slices.IndexFunc(c.statuses, func(s *status) bool {
		return s.context == name && s.ref == ref && s.creator == q.asker && (s.state == "pending" || s.state == "running")
	})
	s := &status{id: q.id(), context: name, ref: ref, creator: q.asker, created: q.time()}
	if live >= 0 {
		s = c.statuses[live]
		if event == "enqueue" || event == "run" && s.state == "running" {
			q.fail(http.StatusBadRequest, fmt.Sprintf("Cannot transition status via :%s from :%s (Reason(s): Status cannot transition via %q)", event, s.state, event))
			return
		}
	} else {
		c.statuses = append(c.statuses, s)
	}
	s.state, s.updated = content.State, q.time()
	if content.Description != "" {
		s.description = content.Description
	}
	if content.TargetURL != "" {
		s.url = content.TargetURL
	}
	answer(q.w, http.StatusCreated, gitlabStatus(s))
}

func (q *gitlabRequest) listStatuses() {
	c := q.known()
	if c == nil {
		return
	}
	shown := latest(c.statuses)
	if q.r.URL.Query().Get("all") == "true" {
		shown = c.statuses
	}
	list(q, shown, gitlabStatus)
}
