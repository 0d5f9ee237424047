package fake_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gitvirt/gitvirt/forges"
	"github.com/gitvirt/gitvirt/forges/conformance"
	"github.com/gitvirt/gitvirt/forges/fake"
	"github.com/gitvirt/gitvirt/forges/forgetest"
)

func TestConformance(t *testing.T) {
	conformance.RunInMemory(t, func(*testing.T) conformance.World {
		clock := forgetest.NewClock()
		return &world{clock: clock, forge: fake.New(clock.Now)}
	})
}

// world is a forge in memory. What only a server knows, it has not: the parts of the suite that ask for that are not run.
type world struct {
	conformance.World
	clock  *forgetest.Clock
	forge  *fake.Forge
	number int
	heads  int
}

func (w *world) Name() string                  { return "forge.example.org/shop/fleet" }
func (w *world) Account() string               { return fake.Account }
func (w *world) Forge(*testing.T) forges.Forge { return w.forge }
func (w *world) Clock() *forgetest.Clock       { return w.clock }
func (w *world) PageSize() int                 { return 50 }
func (w *world) NextSecond(*testing.T)         { w.clock.Advance(time.Second) }
func (w *world) DeleteFork(*testing.T, int)    {} // it stays one

func (w *world) GitHead(*testing.T, string) string { return "" }

func (w *world) Requests() int {
	all, _ := w.forge.Requests()
	return all
}

func (w *world) head() string {
	w.heads++
	return fmt.Sprintf("%040x", w.heads)
}

func (w *world) Open(_ *testing.T, opening conformance.Opening) (number int, head string) {
	w.number++
	head = w.head()
	w.forge.Open(forges.PullRequest{
		Number: w.number, Title: opening.Title, Author: opening.Author, Draft: opening.Draft, Base: "main", Head: head, Fork: opening.Fork,
		URL: fmt.Sprintf("https://%s/pulls/%d", w.Name(), w.number),
	})
	return w.number, head
}

func (w *world) Push(_ *testing.T, n int) (head string) {
	head = w.head()
	w.forge.Change(n, func(p *forges.PullRequest) { p.Head = head })
	return head
}

func (w *world) Retitle(_ *testing.T, n int, title string) {
	w.forge.Change(n, func(p *forges.PullRequest) { p.Title = title })
}

func (w *world) SetDraft(_ *testing.T, n int, draft bool) {
	w.forge.Change(n, func(p *forges.PullRequest) { p.Draft = draft })
}

func (w *world) state(n int, state forges.State) {
	w.forge.Change(n, func(p *forges.PullRequest) { p.State = state })
}

func (w *world) Close(_ *testing.T, n int)  { w.state(n, forges.Closed) }
func (w *world) Reopen(_ *testing.T, n int) { w.state(n, forges.Open) }
func (w *world) Merge(_ *testing.T, n int)  { w.state(n, forges.Merged) }

func (w *world) Comment(_ *testing.T, n int, login, body string) int64 {
	return w.forge.Say(n, login, body)
}

func TestHookWantsASecret(t *testing.T) {
	f := fake.New(time.Now)
	if _, err := f.Hook(http.Header{}, []byte("{}"), ""); err == nil {
		t.Error("without a secret it lets everybody in")
	}
}
