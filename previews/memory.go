package previews

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gitvirt/gitvirt/plan"
)

// The bounds of what is remembered of commands.
const (
	// maxAnswers is how many answers are shown.
	maxAnswers = 5
	// maxAnswered is how many comments are remembered one by one.
	maxAnswered = 16
	// maxHidden is how long a hidden line may be that is read, in bytes.
	maxHidden = 16 << 10
)

// memory is what the comment of a pull request remembers of commands, in a hidden line: so no command is carried out a second time, and none
// is lost, by a controller that knows nothing else. Who may edit gitvirt's comments may write there what they like; it is shown, and decides
// about nothing but whether a comment was answered.
type memory struct {
	// Through is the ID of a comment: it and all with lower ones are answered. Answered are others that are, ordered: forges may show a
	// comment before one that has a lower ID.
	Through  int64   `json:"through,omitempty"`
	Answered []int64 `json:"answered,omitempty"`
	// Answers are the last ones, in the order in which they were given.
	Answers []answer `json:"answers,omitempty"`
}

// result is what became of a command.
type result string

// The results.
const (
	planned     result = "planned"
	approved    result = "approved"    // steps of the controller's plan
	foreseen    result = "foreseen"    // steps of the pull request's plan: they happen after the merge
	repeated    result = "repeated"    // they were approved before
	edited      result = "edited"      // the comment was; who wrote what of it is not known
	unknown     result = "unknown"     // no such command
	forbidden   result = "forbidden"   // the forge says that they may not
	undisclosed result = "undisclosed" // the forge does not say what they may
	tooShort    result = "too-short"   // the ID is
	stale       result = "stale"       // there is no such plan, or not any more
	needless    result = "needless"    // nothing waits
	recurring   result = "recurring"   // what waits is of the revision that the merge makes
	unsettled   result = "unsettled"   // the pull request changes the Fleet
	unrecorded  result = "unrecorded"  // nobody records approvals here
	over        result = "over"        // the pull request is not open any more
	// Those that are tried again, and are no answers yet.
	unwritten result = "unwritten" // the status branch cannot be written
	unasked   result = "unasked"   // the forge cannot be asked
)

// pending reports whether a command is still to be carried out.
func (r result) pending() bool { return r == unwritten || r == unasked }

// done reports whether a command was carried out.
func (r result) done() bool {
	return r == planned || r == approved || r == foreseen || r == repeated
}

// verdict is the result in a word.
func (r result) verdict() string {
	switch {
	case r.done():
		return "done"
	case r.pending():
		return "not yet"
	}
	return "refused"
}

// answer is what became of one command. All of it may come from others.
type answer struct {
	// At is when the command was written, in seconds since 1970.
	At      int64  `json:"at"`
	By      string `json:"by"`
	Command string `json:"command"`
	Result  result `json:"result"`
	// Plan is the plan that it is about, Steps how many of its steps, Later how many more have to be approved after the merge.
	Plan  string `json:"plan,omitempty"`
	Steps int    `json:"steps,omitempty"`
	Later int    `json:"later,omitempty"`
	// May is what somebody may who may not do that.
	May string `json:"may,omitempty"`
}

// answered reports whether a comment needs no answer any more.
func (m *memory) answered(id int64) bool {
	_, found := slices.BinarySearch(m.Answered, id)
	return found || id <= m.Through
}

// add remembers an answer to a comment.
func (m *memory) add(id int64, a answer) {
	m.Answers = append(slices.Clone(m.Answers), a)
	if !a.Result.pending() {
		m.Answered = append(slices.Clone(m.Answered), id)
	}
	m.bound()
}

// pending reports whether something is to be tried again.
func (m *memory) pending() bool {
	return slices.ContainsFunc(m.Answers, func(a answer) bool { return a.Result.pending() })
}

// dropPending forgets what is tried again.
func (m *memory) dropPending() {
	m.Answers = slices.DeleteFunc(slices.Clone(m.Answers), func(a answer) bool { return a.Result.pending() })
}

// join adds what another comment of ours remembers, as when a controller died and another one commented again.
func (m *memory) join(other memory) {
	m.Through = max(m.Through, other.Through)
	m.Answered = append(slices.Clone(m.Answered), other.Answered...)
	known := m.Answers
	m.Answers = slices.Clone(known)
	for _, a := range other.Answers {
		if !slices.Contains(known, a) { // within one comment, two may well be the same
			m.Answers = append(m.Answers, a)
		}
	}
	m.bound()
}

// bound keeps the memory small, whoever wrote it.
func (m *memory) bound() {
	slices.Sort(m.Answered)
	m.Answered = slices.Compact(m.Answered)
	if more := len(m.Answered) - maxAnswered; more > 0 {
		m.Through = max(m.Through, m.Answered[more-1])
		m.Answered = m.Answered[more:]
	}
	m.Answered = slices.DeleteFunc(m.Answered, func(id int64) bool { return id <= m.Through })
	m.Answers = m.Answers[max(0, len(m.Answers)-maxAnswers):]
	for i := range m.Answers {
		a := &m.Answers[i]
		a.By, a.Command, a.Plan, a.May = told(a.By), told(a.Command), told(a.Plan), told(a.May)
		a.Result = result(told(string(a.Result)))
	}
}

const commandsBegin = "<!-- gitvirt:commands:"

// memoryOf is what a comment remembers; nothing when it does not, or nobody can read it.
func memoryOf(body string) memory {
	_, rest, found := strings.Cut(body, commandsBegin)
	text, _, ended := strings.Cut(rest, strings.TrimSuffix(hiddenEnd, "\n"))
	if !found || !ended || len(text) > maxHidden {
		return memory{}
	}
	var m memory
	content, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(content, &m) != nil {
		return memory{}
	}
	m.bound()
	return m
}

// markdown returns the hidden line and what people see, of at most so many bytes together as long as there are answers to leave out; nothing when
// nobody has commanded anything.
func (m *memory) markdown(most int) (hidden, shown string) {
	if m.Through == 0 && len(m.Answered) == 0 && len(m.Answers) == 0 {
		return "", ""
	}
	short := *m
	for {
		content, _ := json.Marshal(&short) // texts and numbers: it cannot fail
		hidden = commandsBegin + base64.RawStdEncoding.EncodeToString(content) + hiddenEnd
		shown = inComment(short.section())
		if len(hidden)+len(shown) <= most || len(short.Answers) == 0 {
			return hidden, shown
		}
		short.Answers = short.Answers[1:]
	}
}

// section is what people see.
func (m *memory) section() string {
	if len(m.Answers) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n**Commands**\n\n")
	for i := range m.Answers {
		a := &m.Answers[i]
		fmt.Fprintf(&b, "- %s %s %s: **%s**, %s\n",
			time.Unix(a.At, 0).UTC().Format(timeLayout), plan.Span(a.By), plan.Span(a.Command), a.Result.verdict(), a.text(plan.Span))
	}
	return b.String()
}

// text says what became of the command; name writes a text of others.
func (a *answer) text(name func(string) string) string {
	switch a.Result {
	case planned:
		return "the plan was made anew"
	case approved:
		return fmt.Sprintf("approved %s of plan %s", count(a.Steps, "step"), name(a.Plan))
	case foreseen:
		return fmt.Sprintf("approved %s of plan %s, for after the merge, if they are the same then", count(a.Steps, "step"), name(a.Plan)) + a.later()
	case repeated:
		return fmt.Sprintf("approved before: %s of plan %s", count(a.Steps, "step"), name(a.Plan)) + a.later()
	case edited:
		return "the comment was edited; write a new one"
	case unknown:
		return "there is no such command, only `/gitvirt plan` and `/gitvirt approve PLAN-ID`"
	case forbidden:
		return "that takes write permission in the repository, and the forge says " + name(a.May)
	case undisclosed:
		return "the forge does not tell gitvirt's account what others may do; it may need an account that administers the repository"
	case tooShort:
		return "the ID needs 8 characters at least"
	case stale:
		if a.Plan == "" {
			return "there is no such plan now"
		}
		return "there is no such plan now; that of this pull request is " + name(a.Plan)
	case needless:
		return fmt.Sprintf("nothing in plan %s waits for an approval", name(a.Plan))
	case recurring:
		return "making and starting a VM is approved for one revision, and the merge makes another one: approve it then"
	case unsettled:
		return "the pull request changes the Fleet, whose new rules hold after the merge: approve it then"
	case unrecorded:
		return "the controller writes no status branch, which is where approvals are recorded"
	case over:
		return "nobody decides about the pull request any more"
	case unwritten:
		return "the status branch cannot be written; the controller's events say why, and it tries again"
	case unasked:
		return "the forge does not say at the moment what they may do; it is asked again"
	}
	return name(string(a.Result))
}

// later says what cannot be approved yet.
func (a *answer) later() string {
	if a.Later == 0 {
		return ""
	}
	return fmt.Sprintf("; %s more can be approved only after the merge, because making and starting a VM is approved for one revision", count(a.Later, "step"))
}
