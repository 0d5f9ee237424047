package gitea

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Hook implements forges.Forge. Forgejo sends the same headers beside those of its own name. https://docs.gitea.com/usage/webhooks
func (c *Client) Hook(header http.Header, body []byte, secret string) (forges.Event, error) {
	if err := rest.CheckSignature(header.Get("X-Gitea-Signature"), body, secret); err != nil {
		return forges.Event{}, err
	}
	var content struct {
		Number int  `json:"number"`
		IsPull bool `json:"is_pull"`
		Issue  struct {
			Number int `json:"number"`
		} `json:"issue"`
	}
	if err := json.Unmarshal(body, &content); err != nil {
		return forges.Event{}, fmt.Errorf("%w: the webhook's content is no JSON; choose the content type application/json in its settings", forges.ErrRefused)
	}
	event := forges.Event{Kind: forges.EventOther, Delivery: header.Get("X-Gitea-Delivery")}
	switch header.Get("X-Gitea-Event") {
	case "push":
		event.Kind = forges.EventPush
	case "pull_request":
		event.Kind, event.Number = forges.EventPullRequest, content.Number
	case "issue_comment":
		if content.IsPull { // issues have comments as well
			event.Kind, event.Number = forges.EventComment, content.Issue.Number
		}
	}
	return event, nil
}
