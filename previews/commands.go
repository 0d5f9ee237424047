package previews

import (
	"strings"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
)

// verb is what a command wants.
type verb string

// The verbs.
const (
	verbPlan    verb = "plan"
	verbApprove verb = "approve"
	verbOther   verb = "other" // there is no such command
)

// command is what somebody wants by a comment.
type command struct {
	verb verb
	// id is what approve names: a plan's ID, perhaps cut short.
	id string
	// text is the line as it was written, inert and cut short.
	text string
}

// address is how a comment begins that is for gitvirt.
const address = "/gitvirt"

// maxCommand is how much of a command, or of a name, is told, in bytes.
const maxCommand = 80

// commandIn reads the command of a comment: its whole first line, from the first character on. Everything else is text of people.
func commandIn(body string) (c command, ok bool) {
	line := body
	if end := strings.IndexAny(body, "\r\n"); end >= 0 {
		line = body[:end]
	}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != address || !strings.HasPrefix(line, address) {
		return command{}, false
	}
	c = command{verb: verbOther, text: told(line)}
	switch {
	case len(words) == 2 && words[1] == string(verbPlan):
		c.verb = verbPlan
	case len(words) == 3 && words[1] == string(verbApprove):
		c.verb, c.id = verbApprove, words[2]
	}
	return c, true
}

// told is a text of others as it may be told: on one line, not long, and without what does something to a terminal.
func told(text string) string {
	text = plan.Inert(strings.TrimSpace(text))
	if len(text) > maxCommand {
		text = strings.ToValidUTF8(text[:maxCommand-3], "") + "..."
	}
	return text
}

// heard is a comment that holds a command.
type heard struct {
	forges.Comment
	command command
}

// unanswered returns the comments of others that hold a command and have no answer yet, in the order in which they were written.
func unanswered(comments []forges.Comment, account string, known *memory) []heard {
	var list []heard
	for _, comment := range comments {
		if strings.EqualFold(comment.Author, account) || known.answered(comment.ID) {
			continue
		}
		if c, ok := commandIn(comment.Body); ok {
			list = append(list, heard{comment, c})
		}
	}
	return list
}
