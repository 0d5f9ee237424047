package forgetest

import (
	"fmt"
	"net/http"

	"github.com/gitvirt/gitvirt/forges"
)

// Hook returns what GitLab sends to a webhook of a secret. The number is that of a merge request, for events that are about one.
func (g *GitLab) Hook(repo *Repository, kind forges.EventKind, number int, secret string) (http.Header, []byte) {
	g.mu.Lock()
	delivery := g.id()
	g.mu.Unlock()
	event, payload := "Pipeline Hook", object{"object_kind": "pipeline", "object_attributes": object{"iid": 3}}
	switch kind {
	case forges.EventPush:
		event, payload = "Push Hook", object{"object_kind": "push", "ref": "refs/heads/main"}
	case forges.EventPullRequest:
		event, payload = "Merge Request Hook", object{"object_kind": "merge_request", "object_attributes": object{"iid": number, "action": "update"}}
	case forges.EventComment:
		event = "Note Hook"
		payload = object{"object_kind": "note", "object_attributes": object{"id": 1, "noteable_type": "MergeRequest"}, "merge_request": object{"iid": number}}
	case forges.EventOther:
	}
	payload["project"] = object{"path_with_namespace": repo.path}
	return http.Header{
		"Content-Type": {"application/json"}, "X-Gitlab-Event": {event}, "X-Gitlab-Token": {secret},
		"X-Gitlab-Event-Uuid": {fmt.Sprintf("13792a34-cac6-4fda-95a8-%012d", delivery)}, "Idempotency-Key": {fmt.Sprintf("f5e57fff-6b6d-4d5c-9b7c-%012d", delivery)},
	}, encode(payload)
}
