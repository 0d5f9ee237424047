package github

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/internal/rest"
)

// Hook implements forges.Forge. https://docs.github.com/en/webhooks/webhook-events-and-payloads
func (c *Client) Hook(header http.Header, body []byte, secret string) (forges.Event, error) {
	signature, _ := strings.CutPrefix(header.Get("X-Hub-Signature-256"), "sha256=")
	if err := rest.CheckSignature(signature, body, secret); err != nil {
		return forges.Event{}, err
	}
	var content struct {
		Number int `json:"number"`
		Issue  struct {
			Number      int             `json:"number"`
			PullRequest json.RawMessage `json:"pull_request"`
		} `json:"issue"`
	}
	if err := json.Unmarshal(body, &content); err != nil {
		return forges.Event{}, fmt.Errorf("%w: the webhook's content is no JSON; choose the content type application/json in its settings", forges.ErrRefused)
	}
	event := forges.Event{Kind: forges.EventOther, Delivery: header.Get("X-GitHub-Delivery")}
	switch header.Get("X-GitHub-Event") {
	case "push":
		event.Kind = forges.EventPush
	case "pull_request":
		event.Kind, event.Number = forges.EventPullRequest, content.Number
	case "issue_comment":
		if len(content.Issue.PullRequest) > 0 { // issues have comments as well
			event.Kind, event.Number = forges.EventComment, content.Issue.Number
		}
	}
	return event, nil
}
