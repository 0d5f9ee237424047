package branches

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gitvirt/gitvirt/forges"
)

// The files of a plan.
const (
	planFile   = "plan.md"
	statusFile = "status.json"
)

// plan is what is known of the reference of a branch's plan, and what it is to hold.
type plan struct {
	// commit is where it was last; "" when it is not there. body is plan.md there, when read says that it was read.
	commit string
	read   bool
	body   string
	// theirs says that it is no plan of this fleet, and to be left alone.
	theirs bool
	// next is what is to be pushed; nil when nothing is.
	next *next
}

// next is what a reference is to hold.
type next struct {
	// body is empty when the reference is to be removed.
	body    string
	files   map[string][]byte
	message string
}

// text is the plan as it is, or will be when it is pushed.
func (p *plan) text() string {
	switch {
	case p == nil:
		return ""
	case p.next != nil:
		return p.next.body
	}
	return p.body
}

// owner is the line by which package previews knows whose a plan is.
func owner(body string) string {
	line, _, _ := strings.Cut(body, "\n")
	if !strings.HasPrefix(line, "<!-- gitvirt:plan:") {
		return ""
	}
	return line
}

// Comments implements forges.Forge: the plan of a branch is its only one.
func (b *Branches) Comments(ctx context.Context, number int) ([]forges.Comment, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return nil, err
	}
	if p := b.plans[one.ref()]; p != nil && !p.read && p.next == nil {
		if err := b.readAll(ctx); err != nil {
			return nil, err
		}
	}
	body := b.plans[one.ref()].text()
	if body == "" {
		return nil, nil
	}
	return []forges.Comment{{ID: 1, Author: Account, Body: body, Created: one.Updated, Updated: one.Updated}}, nil
}

// readAll reads all plans that were not, in one fetch: mostly those that were there at the start. The caller holds mu.
func (b *Branches) readAll(ctx context.Context) error {
	var refs []string
	for ref, p := range b.plans {
		if !p.read && p.next == nil {
			refs = append(refs, ref)
		}
	}
	b.mu.Unlock()
	contents, err := b.refs.ReadRefs(ctx, refs, isPlanFile)
	b.mu.Lock()
	if err != nil {
		return failure(err)
	}
	for _, ref := range refs {
		if p := b.plans[ref]; !p.read && p.next == nil {
			p.commit, p.body, p.read = contents[ref].Commit, string(contents[ref].Files[planFile]), true
		}
	}
	return nil
}

func isPlanFile(path string) bool { return path == planFile || path == statusFile }

// Comment implements forges.Forge. What others have put where the plan should be stays.
func (b *Branches) Comment(ctx context.Context, number int, body string) (int64, error) {
	if strings.TrimSpace(body) == "" || len(body) > planBytes {
		return 0, fmt.Errorf("%w: a plan of %d bytes", forges.ErrRefused, len(body))
	}
	if _, err := b.Comments(ctx, number); err != nil { // reads what is there
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return 0, err
	}
	if p := b.plans[one.ref()]; p != nil && p.next == nil && p.commit != "" && owner(p.body) != owner(body) {
		p.theirs = true
		return 0, &failed{fmt.Errorf("%s holds what gitvirt has not written for this fleet; if nobody needs it: git push origin ':%s'", one.ref(), one.ref()), forges.ErrRefused}
	}
	b.write(one, body)
	return 1, nil
}

// EditComment implements forges.Forge. Of a branch that is gone or merged the plan is removed, whatever the text is.
func (b *Branches) EditComment(_ context.Context, number int, _ int64, body string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return err
	}
	switch p := b.plans[one.ref()]; {
	case p.text() == "":
		return fmt.Errorf("%s: %w", one.ref(), forges.ErrNotFound)
	case p.next == nil && owner(p.body) != owner(body):
		return fmt.Errorf("%s is somebody else's now: %w", one.ref(), forges.ErrNotFound)
	}
	if one.State != forges.Open {
		body = ""
	}
	b.write(one, body)
	return nil
}

// DeleteComment implements forges.Forge.
func (b *Branches) DeleteComment(_ context.Context, number int, _ int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	one, err := b.find(number)
	if err != nil {
		return err
	}
	if b.plans[one.ref()].text() != "" {
		b.write(one, "")
	}
	return nil
}

// write has a plan pushed soon, or removed when it is empty. The caller holds mu.
func (b *Branches) write(one *branch, body string) {
	p := b.plans[one.ref()]
	if p == nil {
		p = &plan{read: true}
		b.plans[one.ref()] = p
	}
	p.next = &next{body: body}
	if body != "" {
		p.next.files = map[string][]byte{planFile: []byte(body), statusFile: one.status()}
		p.next.message = "Plan of " + one.Title + ": " + one.told.Description
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// shown is status.json.
type shown struct {
	Branch      string             `json:"branch"`
	Commit      string             `json:"commit"`
	State       forges.StatusState `json:"state"`
	Description string             `json:"description"`
	Mistakes    []mistake          `json:"mistakes"`
}

type mistake struct {
	Path    string `json:"path"`
	Line    int    `json:"line"`
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"`
}

func (b *branch) status() []byte {
	content := shown{Branch: b.Title, Commit: b.of, State: b.told.State, Description: b.told.Description, Mistakes: []mistake{}}
	for _, a := range b.told.Annotations {
		content.Mistakes = append(content.Mistakes, mistake{a.Path, a.Line, a.Message, a.Warning})
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	_ = encoder.Encode(content) // texts and numbers can always be written
	return out.Bytes()
}
