package previews

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/plan"
	"github.com/gitvirt/gitvirt/reconciler/status"
	"github.com/gitvirt/gitvirt/schemas"
	"github.com/gitvirt/gitvirt/sources"
)

// StatusContext names the status that commits get.
const StatusContext = "gitvirt/plan"

// report is what is told about one pull request: a comment and a status, which say the same.
type report struct {
	fleet string
	// branch is what it is to be merged into, base where that is; head is what is to be merged.
	branch, base, head string
	// node is what the plan is compared with, at is when that was so.
	node string
	at   time.Time
	// plan is what the pull request adds to what its base wants; nil when it cannot be made, and conflicts or problem say why.
	plan      *plan.Plan
	conflicts []sources.Conflict
	problem   string
	// anyway is how many steps the base asks for without it.
	anyway int
	// judged says that the pull request changes the Fleet, whose old rules judge it.
	judged bool
	// unread says that nobody knows what was approved.
	unread bool
	// link leads to the full plan; may be empty.
	link string
	// commands says that people may command by comments, said is what they did.
	commands bool
	said     memory
}

// The hidden first lines of a comment: whose it is, and what it was made of.
const (
	markerBegin = "<!-- gitvirt:plan:"
	digestBegin = "<!-- gitvirt:digest:"
	hiddenEnd   = " -->\n"
)

// marker is the line by which the comment of a Fleet is found again.
func marker(fleet string) string {
	var b strings.Builder
	b.WriteString(markerBegin)
	for i := range len(fleet) {
		switch c := fleet[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-' && i > 0 && fleet[i-1] != '-':
			b.WriteByte(c)
		default: // what could end a comment of HTML
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	b.WriteString(hiddenEnd)
	return b.String()
}

// digestOf is what a comment says it was made of; "" when it does not.
func digestOf(body string) string {
	_, rest, found := strings.Cut(body, digestBegin)
	digest, _, ended := strings.Cut(rest, strings.TrimSuffix(hiddenEnd, "\n"))
	if !found || !ended {
		return ""
	}
	return digest
}

// isOurs reports whether a comment begins as one of a Fleet does. Who wrote it is another question. Forges may end lines as they like.
func isOurs(body, fleet string) bool {
	return strings.HasPrefix(body, strings.TrimSuffix(marker(fleet), "\n"))
}

const (
	timeLayout = "2006-01-02 15:04 MST"
	// noTime stands for the time while the digest is made, so that the time alone makes no other comment.
	noTime = "0000-00-00 00:00 UTC"
)

// comment returns the text, of at most limit bytes, and the digest that is in it.
func (r *report) comment(limit int) (body, digest string) {
	first := marker(r.fleet)
	hidden, said := r.said.markdown(limit / 4)
	const digestBytes = 12
	budget := limit - len(first) - len(digestBegin) - 2*digestBytes - len(hiddenEnd) - len(hidden) - len(said)
	text := inComment(r.text(budget))
	sum := sha256.Sum256([]byte(r.head + "\x00" + r.base + "\x00" + hidden + text + said))
	digest = hex.EncodeToString(sum[:digestBytes])
	text = strings.Replace(text, noTime, r.at.UTC().Format(timeLayout), 1)
	return first + digestBegin + digest + hiddenEnd + hidden + text + said, digest
}

// inComment is text below the hidden lines: none of it is one, as a name may be.
func inComment(text string) string { return strings.ReplaceAll(text, "<!-- gitvirt:", "<!__ gitvirt:") }

// text is the part that people see, with noTime for the time.
func (r *report) text(budget int) string {
	switch {
	case len(r.conflicts) > 0:
		return r.conflictText(budget)
	case r.plan == nil:
		return clip("**There is no plan for this pull request.** "+r.about()+"\n\n```text\n"+r.problemLine()+"\n```\n", budget)
	}
	more := "`gitvirt plan` shows all."
	if r.link != "" {
		more = "[The full plan](" + r.link + ") has all."
	}
	return r.plan.Markdown(plan.MarkdownOptions{Budget: budget, About: r.remarks(), More: more})
}

// maxProblem is how much of a problem is told, in bytes.
const maxProblem = 1000

// problemLine is the problem as it stands in a block of code.
func (r *report) problemLine() string {
	line := strings.ReplaceAll(plan.Inert(r.problem), "`", "'")
	if len(line) > maxProblem {
		line = strings.ToValidUTF8(line[:maxProblem], "") + "..."
	}
	return line
}

// about says what was merged and compared. The time stands before everything that others have written.
func (r *report) about() string {
	if r.plan == nil {
		return "It is about " + plan.Span(short(r.head)) + " and " + plan.Span(r.branch) + " at " + plan.Span(short(r.base)) + "."
	}
	text := "As of " + noTime + ": " + plan.Span(short(r.head)) + " merged into " + plan.Span(r.branch) + " at " + plan.Span(short(r.base))
	if r.node != "" {
		text += ", compared with what lives on " + plan.Span(r.node)
	}
	return text + "."
}

// remarks is about with what else has to be said before the plan.
func (r *report) remarks() string {
	parts := []string{r.about()}
	if r.link != "" {
		parts[0] += " [Full plan](" + r.link + ")."
	}
	if r.judged {
		parts = append(parts, "**The Fleet changes.** This plan is judged by the Fleet of "+plan.Span(r.branch)+
			"; what the new one allows and forbids holds after the merge.")
	}
	if r.unread {
		parts = append(parts, "**What was approved cannot be read now**, so it is shown as waiting.")
	}
	if r.anyway > 0 {
		parts = append(parts, fmt.Sprintf("%s asks for %s already, with or without this pull request; %s not shown.",
			plan.Span(r.branch), count(r.anyway, "other step"), isAre(r.anyway)))
	}
	if r.commands && len(r.approval().Steps) > 0 {
		parts = append(parts, "**In a comment**, "+plan.Span(fmt.Sprintf("%s %s %.12s", address, verbApprove, r.plan.ID))+
			" lets happen after the merge what waits. "+plan.Span(address+" "+string(verbPlan))+" makes the plan anew.")
	}
	return strings.Join(parts, "\n\n")
}

// approval is what an approval of the plan reaches: the steps that wait and are the same after the merge. What may be needed again at another
// revision is not among them, and nothing is where the rules will be others.
func (r *report) approval() *status.Approval {
	return status.NewApproval(r.plan, func(step *plan.Step) bool { return !r.judged && !step.Recurs() })
}

// maxShownConflicts is how many conflicts are named.
const maxShownConflicts = 50

func (r *report) conflictText(budget int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "**There is no plan for this pull request.** It is in conflict with %s.\n\n%s\n\n", plan.Span(r.branch), r.about())
	for i, conflict := range r.conflicts {
		if i == maxShownConflicts {
			fmt.Fprintf(&b, "- and %d more\n", len(r.conflicts)-i)
			break
		}
		line := "- " + conflict.Reason + "\n"
		if conflict.Path != "" {
			line = "- " + plan.Span(conflict.Path) + ": " + conflict.Reason + "\n"
		}
		b.WriteString(line)
	}
	b.WriteString("\nThe plan comes when the conflicts are resolved.\n")
	return clip(b.String(), budget)
}

// clip drops the last lines of a text that is too long.
func clip(text string, budget int) string {
	for len(text) > budget {
		cut := strings.LastIndexByte(strings.TrimSuffix(text, "\n"), '\n')
		if cut < 0 {
			return ""
		}
		text = text[:cut+1]
	}
	return text
}

// lastSummary finds the summary of the plan in a comment.
var lastSummary = regexp.MustCompile(`(?m)^Plan: [0-9a-zA-Z ,.():]+`)

// closing is what becomes of a comment when nobody decides about the pull request any more; before is what it said. what says it in a few
// words, such as "was merged"; what people commanded stays.
func closing(fleet, what, before string, said *memory, limit int) (body, digest string) {
	digest = closedDigest
	hidden, shown := said.markdown(limit / 4)
	body = marker(fleet) + digestBegin + digest + hiddenEnd + hidden + "This pull request " + what + "."
	if summary := lastSummary.FindString(before); summary != "" {
		body += " Its last plan was: " + strings.TrimPrefix(summary, "Plan: ")
	}
	return body + "\n" + shown, digest
}

// closedDigest is the digest of a comment that is closed.
const closedDigest = "closed"

// maxAnnotations is how many lines are marked.
const maxAnnotations = 50

// status returns what is told of the head.
func (r *report) status() forges.Status {
	status := forges.Status{Context: StatusContext, URL: r.link, State: forges.Failure}
	switch {
	case len(r.conflicts) > 0:
		status.Description = "in conflict with " + r.branch + ": " + count(len(r.conflicts), "conflict")
		for _, conflict := range r.conflicts {
			if conflict.Path != "" && len(status.Annotations) < maxAnnotations {
				status.Annotations = append(status.Annotations, forges.Annotation{Path: conflict.Path, Line: 1, Message: "merge conflict: " + conflict.Reason})
			}
		}
		return status
	case r.plan == nil:
		status.Description = plan.Inert(r.problem)
		return status
	}
	summary := strings.TrimPrefix(r.plan.SummaryLine(), "Plan: ")
	status.State, status.Description = forges.Success, summary
	if n := r.plan.Diagnostics.Errors(); n > 0 {
		status.State, status.Description = forges.Failure, count(n, "mistake")+" in the manifests. "+summary
	}
	status.Annotations = annotations(r.plan.Diagnostics)
	return status
}

func annotations(diagnostics schemas.Diagnostics) []forges.Annotation {
	var list []forges.Annotation
	for _, d := range diagnostics {
		if d.Position.File == "" || d.Position.Source != "" || len(list) == maxAnnotations {
			continue // what is in another repository has no place in this one
		}
		message := d.Message
		if d.Path != "" {
			message = d.Path + ": " + message
		}
		if d.Fix != "" {
			message += "; " + d.Fix
		}
		list = append(list, forges.Annotation{
			Path: d.Position.File, Line: max(1, d.Position.Line), Message: plan.Inert(message), Warning: d.Severity == schemas.SeverityWarning,
		})
	}
	return list
}

// short cuts a commit hash to what git log shows.
func short(revision string) string { return revision[:min(len(revision), 9)] }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func isAre(n int) string {
	if n == 1 {
		return "it is"
	}
	return "they are"
}
