package gitlab

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Hook implements forges.Forge. GitLab sends the secret itself. https://docs.gitlab.com/user/project/integrations/webhook_events
func (c *Client) Hook(header http.Header, body []byte, secret string) (forges.Event, error) {
	if err := rest.CheckSecret(header.Get("X-Gitlab-Token"), secret); err != nil {
		return forges.Event{}, err
	}
	var content struct {
		Attributes struct {
			IID int `json:"iid"`
		} `json:"object_attributes"`
		MergeRequest struct {
			IID int `json:"iid"`
		} `json:"merge_request"`
	}
	if err := json.Unmarshal(body, &content); err != nil {
		return forges.Event{}, fmt.Errorf("%w: the webhook's content is no JSON", forges.ErrRefused)
	}
	// The key stays the same when a webhook is sent once more; GitLab has it since 17.4.
	event := forges.Event{Kind: forges.EventOther, Delivery: header.Get("Idempotency-Key")}
	if event.Delivery == "" {
		event.Delivery = header.Get("X-Gitlab-Event-UUID")
	}
	switch header.Get("X-Gitlab-Event") {
	case "Push Hook":
		event.Kind = forges.EventPush
	case "Merge Request Hook":
		event.Kind, event.Number = forges.EventPullRequest, content.Attributes.IID
	case "Note Hook":
		if content.MergeRequest.IID != 0 { // issues and commits have notes as well
			event.Kind, event.Number = forges.EventComment, content.MergeRequest.IID
		}
	}
	return event, nil
}
