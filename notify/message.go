package notify

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the schema
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gitvirt/gitvirt/reconciler"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
)

// The bounds of a message. Slack shows at most 40,000 characters of a text; nobody reads that much.
const (
	maxLines   = 20
	maxText    = 500
	maxEntries = 100
)

// FormatVersion is the version of Message. The minor part grows when fields are added, the major part when fields change or go.
const FormatVersion = "1.0"

// SignatureHeader holds "sha256=" and the HMAC-SHA256 of the body in hexadecimal digits, when the receiver has a secret.
const SignatureHeader = "Gitvirt-Signature-256"

//go:embed notification-1.0.json
var jsonSchema []byte

// SchemaName is the name of the file in which JSONSchema is published.
const SchemaName = "notification-" + FormatVersion + ".json"

// JSONSchema returns the JSON Schema (draft 7) of a Message.
func JSONSchema() []byte { return slices.Clone(jsonSchema) }

// Message is the body of what a receiver of kind http gets.
type Message struct {
	FormatVersion string `json:"format_version"`
	// ID is the same when a message is sent again.
	ID    string `json:"id"`
	Fleet string `json:"fleet"`
	// Receiver is its name in the Fleet.
	Receiver string `json:"receiver"`
	// Events are those since the last message, the oldest first.
	Events []Entry `json:"events"`
	// Dropped is how many others there were that nobody can be told any more.
	Dropped int `json:"dropped,omitempty"`
}

// Entry is one event of a Message.
type Entry struct {
	// Time is when it happened last, FirstTime when it happened first, and Count how often.
	Time      time.Time `json:"time"`
	FirstTime time.Time `json:"first_time"`
	Count     int       `json:"count"`
	// Type is Normal or Warning.
	Type   string `json:"type"`
	Reason string `json:"reason"`
	// Kind, Namespace and Name are those of the object; empty when it is about none.
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Message   string `json:"message"`
	Revision  string `json:"revision,omitempty"`
}

// jsonBody is what a receiver of kind http gets.
func jsonBody(fleet, receiver string, events []reconciler.Event, dropped int) ([]byte, error) {
	message := Message{FormatVersion: FormatVersion, ID: rand.Text(), Fleet: fleet, Receiver: receiver, Events: []Entry{}, Dropped: dropped}
	for i := range events {
		e := &events[i]
		message.Events = append(message.Events, Entry{
			Time: e.Time.UTC(), FirstTime: e.FirstTime.UTC(), Count: e.Count, Type: string(e.Type), Reason: string(e.Reason),
			Kind: e.Address.Kind, Namespace: e.Address.Namespace, Name: e.Address.Name, Message: e.Message, Revision: e.Revision,
		})
	}
	return json.Marshal(message)
}

// signature is the value of SignatureHeader.
func signature(secret, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write(body)
	return "sha256=" + hex.EncodeToString(mac.Sum(nil))
}

// slackBody is what a receiver of kind slack gets.
func slackBody(fleet string, events []reconciler.Event, dropped int) ([]byte, error) {
	lines := make([]string, 0, maxLines+2)
	for i := range events[:min(maxLines, len(events))] {
		lines = append(lines, line(fleet, &events[i]))
	}
	if len(events) > maxLines {
		lines = append(lines, "and "+more(events[maxLines:]))
	}
	if dropped > 0 {
		lines = append(lines, fmt.Sprintf("%d earlier events could not be told", dropped))
	}
	return json.Marshal(struct {
		Text string `json:"text"`
	}{strings.Join(lines, "\n")})
}

// line is one event as people read it.
func line(fleet string, e *reconciler.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s] ", escape(fleet))
	if e.Type != reconciler.Normal {
		b.WriteString(escape(string(e.Type)) + " ")
	}
	b.WriteString(escape(string(e.Reason)))
	if e.Address != (schemas.Address{}) {
		fmt.Fprintf(&b, " %s/%s", escape(e.Address.Namespace), escape(e.Address.Name))
	}
	text := []rune(e.Message)
	if len(text) > maxText {
		text = append(text[:maxText], '…')
	}
	fmt.Fprintf(&b, ": %s (", escape(string(text)))
	if e.Revision != "" {
		fmt.Fprintf(&b, "revision %s, ", escape(status.ShortRevision(e.Revision)))
	}
	if e.Count > 1 {
		fmt.Fprintf(&b, "%d times, ", e.Count)
	}
	b.WriteString(e.Time.UTC().Format("15:04:05 UTC)"))
	return b.String()
}

// more counts events by their reason, the most frequent first.
func more(events []reconciler.Event) string {
	counts := map[string]int{}
	for i := range events {
		counts[string(events[i].Reason)]++
	}
	reasons := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b))
	})
	parts := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", counts[reason], escape(reason)))
	}
	return fmt.Sprintf("%d more: %s", len(events), strings.Join(parts, ", "))
}

// escape makes a text one that nobody is called by: Slack's control characters are written as Slack wants them, which takes <!channel> and
// <@U1> apart, and every @ is followed by a character without a width, since Mattermost and others look for @here in plain text.
func escape(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, text)
	return escaper.Replace(text)
}

var escaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "@", "@\u200b") //nolint:gochecknoglobals // a constant
