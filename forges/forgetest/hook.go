package forgetest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/gitvirt/gitvirt/forges"
)

// Hook returns what GitHub sends to a webhook of a secret. The number is that of a pull request, for events that are about one.
func (g *GitHub) Hook(repo *Repository, kind forges.EventKind, number int, secret string) (http.Header, []byte) {
	g.mu.Lock()
	delivery := g.id()
	g.mu.Unlock()
	event, payload := "ping", object{"zen": "Keep it logically awesome."}
	about := object{"number": number, "url": fmt.Sprintf("%s/%s/pull/%d", g.web, repo.path, number)}
	switch kind {
	case forges.EventPush:
		event, payload = "push", object{"ref": "refs/heads/main"}
	case forges.EventPullRequest:
		event, payload = "pull_request", object{"action": "synchronize", "number": number, "pull_request": about}
	case forges.EventComment:
		event, payload = "issue_comment", object{"action": "created", "issue": object{"number": number, "pull_request": about}, "comment": object{"id": 1}}
	case forges.EventOther:
	}
	payload["repository"] = object{"full_name": repo.path}
	body := encode(payload)
	return http.Header{
		"Content-Type": {"application/json"}, "X-Github-Event": {event}, "X-Github-Delivery": {fmt.Sprintf("72d3162e-cc78-11e3-81ab-%012d", delivery)},
		"X-Hub-Signature-256": {"sha256=" + Sign(body, secret)},
	}, body
}

func encode(payload object) []byte {
	body, err := json.Marshal(payload)
	if err != nil {
		panic(err)
	}
	return body
}

// Sign returns the HMAC-SHA256 of a webhook's content, in hexadecimal digits.
func Sign(body []byte, secret string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}
